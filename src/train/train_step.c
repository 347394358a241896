/*
 * train_step.c: one step: submitted with its batch and its step block, and retired.
 *
 *     submit   samples at positions p .. p+E-1  ->  inputs;  step block;  step and update are launched
 *     retire   the host waits for the oldest step and checks it; then step, position and broken advance
 *
 * `state` describes the retired steps, and is what a checkpoint stores. trainer_steps_submitted is
 * ahead of it by the steps in flight (stepper.h).
 */
#include "train/trainer.h"

#include <math.h>
#include <string.h>

#include "base/system.h"
#include "planning/parameter_groups.h"
#include "train/scaler.h"
#include "train/signals.h"

/* Sets the divisors of losses: what the batch counts, or for a program with its own batches
 * (`batch` NULL) samples, for a built-in model family tokens. */
static void set_counts(const struct trainer *t, const struct feed_batch *batch, struct step_block *b)
{
    const struct graph *g = &t->run.planned.graph;
    for (uint32_t k = 0; k < g->n_counts; k++) {
        double count =
            (double)t->run.planned.effective_batch * (t->run.planned.defined ? 1 : (double)(t->c->data_sequence - 1));
        /* if all samples are broken, the loss is 0 */
        if (batch) count = fmax(1, feed_count(&t->data, batch, graph_count_name(g, k)));
        b->inv_count[k] = (float)(1 / (t->count[k] ? t->count[k] : count));
    }
}

uint64_t trainer_steps_submitted(const struct trainer *t)
{
    return t->state.step + tickets_in_flight(&t->steps.tickets);
}

bool trainer_stopping(const struct trainer *t)
{
    return t->stopped || (t->o->ranks ? t->stop : t->o->signals && signals_received());
}

bool trainer_evaluation_due(const struct trainer *t, uint64_t step)
{
    int64_t every = t->c->train_eval_every;
    return t->validation.ops && (step == t->total || (every && (int64_t)step % every == 0));
}

const char *trainer_unit(const struct trainer *t) { return t->data.ops ? t->data.ops->unit : "tokens"; }

struct step_block trainer_step_block(const struct trainer *t)
{
    int64_t step = (int64_t)trainer_steps_submitted(t); /* steps before this one: its index from 0 */
    struct step_block b = {
        .learning_rate = (float)(groups_rate(t->c) * schedule_factor(&t->schedule, step)),
        .clip_norm = (float)t->c->train_clip_norm,
        .step = (int32_t)step + 1,
        .adam_t = (int32_t)t->state.adam_t + (int32_t)tickets_in_flight(&t->steps.tickets) + 1,
        .seed = (uint64_t)t->c->train_seed,
        .rng_step = (uint64_t)step,
    };
    for (int k = 0; k < STEP_COUNTS; k++) b.inv_count[k] = 1;
    scaler_put(&t->state, t->c, t->steps.tickets.scaled, &b);
    return b;
}

/* What all ranks have of the next step: counts are summed over them, so that a loss is divided by
 * the count of the whole step. `rc`: whether this rank could read its part. */
static int agree_on_step(struct trainer *t, struct feed_batch *batch, int rc, struct error *e)
{
    struct ranks *r = t->o->ranks;
    if (!r) return rc;
    struct step_samples *samples = &t->steps.samples[t->steps.tickets.submitted % TICKETS];
    struct agreement *a = &t->agreed;
    *a = (struct agreement){.units = batch->units, .busy = t->busy, .seen = feed_seen(&t->data) - t->seen, .broken = samples->broken - t->broken, .stop = t->o->signals && signals_received()};
    for (int k = 0; k < FEED_COUNTS; k++) a->count[k] = batch->count[k];
    r->step = (int64_t)trainer_steps_submitted(t) + 1;
    rc = agree(r, a, rc, e);
    for (int k = 0; k < FEED_COUNTS; k++) batch->count[k] = a->count[k];
    samples->units = a->units;
    t->seen += a->seen;
    samples->broken = t->broken += a->broken;
    if (!rc) rc = feed_check(&t->data, t->seen, t->broken, t->steps.position, samples->n, e);
    t->stop |= a->stop;
    r->patient = false;
    t->waited = r->waited + r->moving;
    return rc;
}

int trainer_submit_step(struct trainer *t, struct error *e)
{
    struct feed_batch batch = {0};
    const double from = clock_seconds();
    int rc = stepper_get_batch(&t->steps, t->state.position, t->state.broken, &batch, e);
    rc = agree_on_step(t, &batch, rc, e);
    struct step_block b = trainer_step_block(t);
    set_counts(t, t->data.ops ? &batch : NULL, &b);
    if (!rc) rc = stepper_submit(&t->steps, &b, from, e);
    if (rc) return rc;
    const uint64_t submitted = trainer_steps_submitted(t);
    return submitted < t->total && !trainer_evaluation_due(t, submitted) ? stepper_prefetch(&t->steps, e) : PL_OK;
}

/* Seconds of the step without waiting; and the process's memory, once everything has been
 * touched. */
static void observe_rank(struct trainer *t, double seconds)
{
    const struct ranks *r = t->o->ranks;
    struct system_process m;
    t->busy = fmax(0, seconds - (r->waited + r->moving - t->waited));
    t->busy_sum += t->busy;
    if (++t->retired != 3 && t->state.step != t->total) return;
    system_process(&m);
    if (t->retired <= 3) t->anonymous = m.anonymous;
    t->growth = (int64_t)m.anonymous - (int64_t)t->anonymous;
}

int trainer_retire_step(struct trainer *t, struct train_event *out, struct error *e)
{
    struct ticket k;
    struct step_samples samples;
    int rc = stepper_retire(&t->steps, &k, &samples, e);
    if (!rc) rc = trainer_check_step(t, &k, e);
    if (rc) return rc;
    t->state.step++;
    t->state.position += (uint64_t)samples.n;
    t->state.broken = samples.broken;
    *out = (struct train_event){(int64_t)t->state.step,
                                (int64_t)t->total,
                                k.loss,
                                k.block.learning_rate,
                                k.clip[0],
                                t->steps.tickets.seconds,
                                samples.units,
                                t->steps.tickets.scaled ? k.block.loss_scale : 0,
                                k.block.found_inf,
                                {0}};
    for (int i = 0; i < t->steps.tickets.parts; i++) out->part[i] = k.part[i];
    t->units += out->units;
    t->seconds += out->seconds;
    if (t->o->ranks) observe_rank(t, out->seconds);
    return PL_OK;
}

/* --- for a program with its own batches ------------------------------------------------------- */

bool trainer_count(struct trainer *t, const char *name, double count)
{
    const struct graph *g = &t->run.planned.graph;
    for (uint32_t k = 0; k < g->n_counts; k++)
        if (!strcmp(graph_count_name(g, k), name)) {
            t->count[k] = count;
            return true;
        }
    return false;
}

int trainer_step(struct trainer *t, struct train_event *out, struct error *e)
{
    int rc = trainer_submit_step(t, e);
    return rc ? rc : trainer_retire_step(t, out, e);
}

int trainer_forward(struct trainer *t, id output, void *to, struct error *e)
{
    struct step_block b = trainer_step_block(t);
    set_counts(t, NULL, &b);
    int rc = run_put_step(&t->run, &b, e);
    return rc ? rc : run_forward(&t->run, output, to, e);
}

/*
 * train_step.c: one step: its batch, its step block, its submission, and its results.
 *
 *     submit   samples at positions p .. p+E-1 -> inputs; step block; step and update are launched
 *     retire   waits for the oldest step and checks it; then step, position and broken advance
 *
 * `state` describes the retired steps, and is what a checkpoint stores. trainer_steps_submitted is
 * ahead of it by the steps in flight.
 *
 * The host prepares the next batch while a step runs; it is copied to the GPU after that step:
 *
 *     host    submit n, prefetch n+1, retire n-1   submit n+1, prefetch n+2, retire n
 *     GPU    .. n-1][ step n ............][update n][ step n+1 ..........][update n+1]
 *     copies                               [copy n+1]                      [copy n+2]
 *
 * The batch is in one buffer, which is free when the previous batch has been copied. That copy
 * follows the previous step, so the host has the whole duration of this step. The samples of a
 * batch depend only on its position, not on when it is prepared.
 *
 * With f16 the update itself decides on the next loss scale (op SCALER, graph/ops.def). Its result
 * in the step block is copied into the training state, which checkpoints store and the next step
 * starts from.
 */
#include "train/trainer.h"

#include <inttypes.h>
#include <math.h>

#include "base/caller.h"
#include "base/system.h"
#include "planning/parameter_groups.h"

enum { SKIPS_MOST = 100 }; /* steps in a row that f16 may skip */

/* --- the batch, prepared ahead of the device ------------------------------------------------ */

/* Returns the number of samples of the step at a position: the effective batch, or the rest at the
 * end of the last epoch. Other epochs end within a batch. */
static int64_t stepper_samples_at(const struct stepper *s, uint64_t position)
{
    if (!s->data->ops) return s->run->planned.effective_batch;
    uint64_t left = s->end - min_u64(s->end, position);
    return (int64_t)min_u64(left, (uint64_t)s->run->planned.effective_batch);
}

/* Reads this rank's shares of the step's n samples: share i has the samples from i times
 * planned_share_samples on. */
static int read_shares(struct stepper *s, uint64_t position, int64_t n, struct feed_batch *batch, struct error *e)
{
    const struct run *r = s->run;
    const int64_t each = planned_share_samples(&r->planned), rows = planned_share_rows(&r->planned);
    int rc = PL_OK;
    *batch = (struct feed_batch){0};
    for (int k = 0; k < planned_own_shares(&r->planned) && !rc; k++) {
        struct feed_batch share;
        const int64_t first = (planned_first_share(&r->planned) + k) * each;
        rc = feed_put(s->data, &(struct batch_target){.row = k * rows, .sample = first}, position + (uint64_t)first,
                      max_i64(0, min_i64(each, n - first)), rows, &share, e);
        for (int i = 0; i < FEED_COUNTS; i++) batch->count[i] += share.count[i];
        batch->units += share.units;
    }
    return rc;
}

static int read_batch(struct stepper *s, uint64_t position, struct step_samples *samples, struct feed_batch *batch,
                      struct error *e)
{
    int rc = read_shares(s, position, samples->n, batch, e);
    samples->broken = s->data->broken;
    samples->units = batch->units;
    return rc;
}

/* Gets the batch of the step that is submitted next, prefetched or read now. `position` and
 * `broken` are those after the last retired step, used if no step is in flight. Changes nothing if
 * there is no feed. */
static int stepper_get_batch(struct stepper *s, uint64_t position, uint64_t broken, struct feed_batch *batch,
                             struct error *e)
{
    struct step_samples *samples = &s->samples[s->tickets.submitted % TICKETS];
    if (!tickets_in_flight(&s->tickets)) s->position = position;
    *samples = (struct step_samples){.n = stepper_samples_at(s, s->position), .broken = broken};
    if (!s->data->ops) return PL_OK;
    const bool prefetched = s->next.samples.n && s->next.position == s->position;
    if (prefetched && s->next.failed.code) {
        *e = s->next.failed;
        return e->code;
    }
    if (!prefetched || !s->run->prefetched || s->next.samples.n != samples->n)
        return read_batch(s, s->position, samples, batch, e);
    *batch = s->next.batch;
    *samples = s->next.samples;
    return PL_OK;
}

/* Prefetches the batch of the next step if the device can; else does nothing. An evaluation would
 * overwrite the batch, so this is not called before one. An error of the batch is reported when its
 * step is submitted. */
static int stepper_prefetch(struct stepper *s, struct error *e)
{
    const int64_t n = stepper_samples_at(s, s->position);
    if (!s->data->ops || !n || !run_can_prefetch(s->run)) return PL_OK;
    TRY(run_prefetch_begin(s->run, e));
    s->next.position = s->position;
    s->next.samples = (struct step_samples){.n = n};
    s->next.failed.code = PL_OK;
    run_prefetch_end(s->run, !read_batch(s, s->position, &s->next.samples, &s->next.batch, &s->next.failed));
    return PL_OK;
}

/* Reads the batch of the step at a position again, if a later one has overwritten it. */
static void stepper_restore(struct stepper *s, uint64_t position)
{
    struct feed_batch batch;
    struct error ignored;
    if (!s->data->ops || !(tickets_in_flight(&s->tickets) || s->run->prefetched || s->next.failed.code)) return;
    read_shares(s, position, stepper_samples_at(s, position), &batch, &ignored);
}

/* --- the loss scale of f16 ------------------------------------------------------------------ */

/* Fills the loss scale's members of a step block. */
static void scaler_put(const struct train_state *s, const struct config *c, bool scaled, struct step_block *b)
{
    b->loss_scale = b->next_scale = scaled ? s->scale : 1;
    if (scaled) b->adam_t = (int32_t)s->adam_t; /* SCALER increments it unless the step is skipped */
    b->good_steps = (int32_t)s->good_steps;
    b->scale_window = (int32_t)c->train_scale_window;
}

/* Copies the update's result into the state; true: the step was skipped. */
static bool scaler_update(struct train_state *s, const struct step_block *b)
{
    s->scale = b->next_scale;
    s->good_steps = (uint64_t)b->good_steps;
    s->adam_t = (uint64_t)b->adam_t;
    s->skipped += b->found_inf != 0;
    s->in_a_row = b->found_inf ? s->in_a_row + 1 : 0;
    return b->found_inf;
}

/* Returns PL_FAIL with the name of the tensor. The step's inputs and weights are unchanged, so the
 * step runs again to find it. */
static int scaler_error(const struct train_state *s, const struct step_block *b, struct run *r, struct error *e)
{
    char name[256];
    bool low = s->scale < 1;
    run_find_nonfinite(r, name, sizeof name);
    if (!name[0]) run_find_nonfinite_gradient(r, name, sizeof name);
    return error_set(
        e, PL_FAIL,
        "step %d: %s: %" PRIu64
        " steps in a row had gradients that are not finite in f16%s%s; set memory.precision to bf16 or f32, "
        "lower train.learning_rate, or resume from an earlier checkpoint",
        b->step, low ? "the loss scale fell below 1" : "every step is skipped", s->in_a_row,
        name[0] ? "; first seen in " : "", name);
}

/* --- the step block, and submitting a step -------------------------------------------------- */

void trainer_set_counts(const struct trainer *t, const struct feed_batch *batch, struct step_block *b)
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
    return t->stopped || caller_stops() || (t->o->ranks ? t->stop : t->o->signals && signals_received());
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
        .clip_norm = (float)t->c->train_clip_norm, .step = (int32_t)step + 1,
        .adam_t = (int32_t)t->state.adam_t + (int32_t)tickets_in_flight(&t->steps.tickets) + 1,
        .seed = (uint64_t)t->c->train_seed, .rng_step = (uint64_t)step,
    };
    for (int k = 0; k < STEP_COUNTS; k++) b.inv_count[k] = 1;
    scaler_put(&t->state, t->c, t->steps.tickets.scaled, &b);
    return b;
}

/* Sums over all ranks what they have of the next step, so that a loss is divided by the count of
 * the whole step. `rc`: whether this rank could read its part. */
static int agree_on_step(struct trainer *t, struct feed_batch *batch, int rc, struct error *e)
{
    struct ranks *r = t->o->ranks;
    if (!r) return rc;
    struct step_samples *samples = &t->steps.samples[t->steps.tickets.submitted % TICKETS];
    struct agreement *a = &t->agreed;
    *a = (struct agreement){.units = batch->units, .busy = t->busy, .seen = feed_seen(&t->data) - t->seen,
                            .broken = samples->broken - t->broken, .stop = t->o->signals && signals_received()};
    for (int k = 0; k < FEED_COUNTS; k++) a->count[k] = batch->count[k];
    if (!planned_speaks(&t->run.planned)) /* another rank has the same samples */
        *a = (struct agreement){.busy = a->busy, .stop = a->stop};
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
    trainer_set_counts(t, t->data.ops ? &batch : NULL, &b);
    if (rc) return rc;
    const int64_t n = t->steps.samples[t->steps.tickets.submitted % TICKETS].n;
    TRY(ticket_submit(&t->steps.tickets, &b, from, e));
    t->steps.position += (uint64_t)n;
    const uint64_t submitted = trainer_steps_submitted(t);
    return submitted < t->total && !trainer_evaluation_due(t, submitted) ? stepper_prefetch(&t->steps, e) : PL_OK;
}

/* --- the results of a step ------------------------------------------------------------------ */

/* Restores the batch, the step block and the gradients of the step that was just retired, if a
 * later step overwrote them. The weights are unchanged. */
static void restore_step(struct trainer *t, const struct ticket *k)
{
    struct error ignored;
    stepper_restore(&t->steps, t->state.position);
    if (!tickets_in_flight(&t->steps.tickets)) return;
    struct step_block b = k->block;
    b.found_inf = 1; /* a fused step must not update weights again */
    if (!run_put_step(&t->run, &b, &ignored)) run_program(&t->run, PROGRAM_STEP, &ignored);
}

/* Returns PL_FAIL with the name of the first tensor that is not finite. A fused update has changed
 * the weights too, so only the gradients can show the cause. */
static int nonfinite_error(struct trainer *t, const struct ticket *k, struct error *e)
{
    char name[256];
    const bool updated = isfinite(k->loss);
    const char *what = updated ? "gradient norm" : "loss";
    const double x = updated ? k->clip[0] : k->loss;
    restore_step(t, k);
    if (updated) run_find_nonfinite_gradient(&t->run, name, sizeof name);
    else run_find_nonfinite(&t->run, name, sizeof name);
    return error_set(
        e, PL_FAIL,
        "step %" PRId64
        ": the %s is %g%s%s; lower train.learning_rate, set train.clip_norm, or resume from an earlier checkpoint",
        t->state.step + 1, what, x, name[0] ? "; first seen in " : "", name);
}

/* Checks the loss and the gradient norm of a retired step, which must be finite. With f16 a step
 * that is not finite is skipped and the loss scale halved, until that cannot help any more: a
 * smaller scale does not help if the forward pass is not finite. Otherwise the run ends with
 * PL_FAIL and the name of the first tensor that is not finite. After a loss that is not finite no
 * weight was updated, except by a fused step: on the CPU the update was not run, on a GPU the op
 * GUARD disabled it (passes/guard.c). */
static int check_step(struct trainer *t, const struct ticket *k, struct error *e)
{
    const struct step_block *b = &k->block;
    if (ticket_fatal(&t->steps.tickets, k->loss)) return nonfinite_error(t, k, e);
    if (!t->steps.tickets.scaled) {
        if (!isfinite(k->clip[0])) return nonfinite_error(t, k, e);
        t->state.adam_t++;
        return PL_OK;
    }
    if (scaler_update(&t->state, b))
        log_note("step %d: skipped: gradients are not finite at loss scale %g; the next loss scale is %g", b->step,
                 b->loss_scale, b->next_scale);
    if (t->state.scale >= 1 && t->state.in_a_row < SKIPS_MOST) return PL_OK;
    restore_step(t, k);
    return scaler_error(&t->state, b, &t->run, e);
}

/* Measures the seconds of the step without waiting, and the process's memory, once everything has
 * been touched. */
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
    const struct step_samples samples = t->steps.samples[t->steps.tickets.retired % TICKETS];
    TRY(ticket_retire(&t->steps.tickets, &k, e));
    TRY(check_step(t, &k, e));
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

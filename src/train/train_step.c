/*
 * train_step.c: one step: submitted with its batch and its step block, and retired.
 *
 *     submit   samples at positions p .. p+E-1  ->  inputs;  step block;  step and update are launched
 *     retire   the host waits for the oldest step and checks it; then step, position and broken advance
 *
 * `state` describes the retired steps, and is what a checkpoint stores. `position` and
 * trainer_steps_submitted are ahead of it by the steps in flight (ticket.h); the host's data of
 * each of those is in `pending`.
 */
#include "train/trainer.h"

#include <math.h>

#include "train/recipe.h"
#include "train/scaler.h"

/* The divisor of losses if a program has its own batches: samples, or tokens for a built-in model
 * family. */
static double default_count(const struct trainer *t)
{
    if (t->count) return t->count;
    return (double)t->run.effective_batch * (t->run.defined ? 1 : (double)(t->c->data_sequence - 1));
}

uint64_t trainer_steps_submitted(const struct trainer *t) { return t->state.step + tickets_in_flight(&t->tickets); }

struct step_block trainer_step_block(const struct trainer *t, double count)
{
    int64_t step = (int64_t)trainer_steps_submitted(t); /* steps before this one: its index from 0 */
    struct step_block b = {
        .learning_rate = (float)(recipe_rate(t->c) * schedule_factor(&t->schedule, step)),
        .inv_count = (float)(1 / count),
        .clip_norm = (float)t->c->train_clip_norm,
        .step = (int32_t)step + 1,
        .adam_t = (int32_t)t->state.adam_t + (int32_t)tickets_in_flight(&t->tickets) + 1,
        .seed = (uint64_t)t->c->train_seed,
        .rng_step = (uint64_t)step,
    };
    scaler_put(&t->state, t->c, t->tickets.scaled, &b);
    return b;
}

int trainer_submit_step(struct trainer *t, struct error *e)
{
    const int at = (int)(t->tickets.submitted % TICKETS);
    struct feed_batch batch = {.count = default_count(t)};
    const double from = clock_seconds();
    if (!tickets_in_flight(&t->tickets)) t->position = t->state.position;
    t->pending[at].samples = trainer_samples_at(t, t->position);
    t->pending[at].broken = t->state.broken;
    int rc = trainer_get_batch(t, t->pending[at].samples, &batch, &t->pending[at].broken, e);
    struct step_block b = trainer_step_block(t, t->count ? t->count : fmax(1, batch.count)); /* if all samples are broken, the loss is 0 */
    if (!rc) rc = ticket_submit(&t->tickets, &b, from, e);
    if (rc) return rc;
    t->pending[at].units = batch.units;
    t->position += (uint64_t)t->pending[at].samples;
    return trainer_prefetch_batch(t, e);
}

int trainer_retire_step(struct trainer *t, struct train_event *out, struct error *e)
{
    const int at = (int)(t->tickets.retired % TICKETS);
    struct ticket k;
    int rc = ticket_retire(&t->tickets, &k, e);
    if (!rc) rc = trainer_check_step(t, &k, e);
    if (rc) return rc;
    t->state.step++;
    t->state.position += (uint64_t)t->pending[at].samples;
    t->state.broken = t->pending[at].broken;
    *out = (struct train_event){(int64_t)t->state.step, (int64_t)t->total, k.loss, k.begun.learning_rate, k.clip[0], t->tickets.seconds,
                                t->pending[at].units, t->tickets.scaled ? k.block.loss_scale : 0, k.block.found_inf};
    t->units += out->units;
    return PL_OK;
}

/* --- for a program with its own batches ------------------------------------------------------------------ */

void trainer_count(struct trainer *t, double count) { t->count = count; }

int trainer_step(struct trainer *t, struct train_event *out, struct error *e)
{
    int rc = trainer_submit_step(t, e);
    return rc ? rc : trainer_retire_step(t, out, e);
}

int trainer_forward(struct trainer *t, id output, void *to, struct error *e)
{
    struct step_block b = trainer_step_block(t, default_count(t));
    int rc = run_put_step(&t->run, &b, e);
    return rc ? rc : run_forward(&t->run, output, to, e);
}

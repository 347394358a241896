/*
 * train.c: the training loop: step after step, from the beginning to the model folder.
 *
 *     samples at positions p .. p+E-1  ->  input storages  ->  step and update are asked for
 *     the step before is taken: its loss checked  ->  metrics line  ->  checkpoint?
 *
 * A GPU runs a step while the host looks at the one before (ticket.h): what is `asked` is then one step
 * ahead of `state`, which is what has been taken. Nothing is asked for beyond a step that is followed by an
 * evaluation or a checkpoint, so that those see its weights. On the CPU every step is taken at once.
 *
 * Everything a step needs is allocated before the first one. The loop's parts are in the files that trainer.h
 * names: train_begin.c, train_step.c, train_after.c and theirs.
 */
#include "train/trainer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "train/signals.h"

/* Bytes for the lists and headers of a save, taken before the first step. */
enum { SAVE_POOL = 1 << 20, SAVE_POOL_PER_WEIGHT = 4096 };

bool trainer_stopping(const struct trainer *t) { return t->stopped || (t->o->signals && signals_received()); }

/* The next step may be asked for before the last one that was is taken. One that a callback looks at, and may end the run
 * with, is the last one. */
static bool may_overlap(const struct trainer *t)
{
    const uint64_t step = trainer_steps_asked(t);
    return tickets_overlap(&t->tickets) && !t->o->on_step && step < t->total && !trainer_evaluation_due(t, step) && !trainer_save_due(t, step);
}

/* Takes steps until `left` are open, and does what each is followed by. */
static int take_steps(struct trainer *t, uint32_t left, struct train_event *v, struct error *e)
{
    int rc = PL_OK;
    while (tickets_pending(&t->tickets) > left && !rc) {
        rc = trainer_take_step(t, v, e);
        if (!rc) rc = trainer_after_step(t, v, e);
    }
    return rc;
}

/* One more step, and what is known by then of those before. What went wrong with an earlier one comes first. */
static int go_on(struct trainer *t, struct train_event *v, struct error *e)
{
    struct error failed;
    int asked = trainer_submit_step(t, &failed);
    int rc = take_steps(t, !asked && may_overlap(t) ? 1 : 0, v, e);
    if (rc || !asked) return rc;
    *e = failed;
    return asked;
}

/* Of masks the evaluation before the first step too: what training starts from. */
static int evaluate_first(struct trainer *t, struct error *e)
{
    struct evaluation found;
    if (!t->has_scores || t->state.step || t->o->resume || !t->c->train_eval_every) return PL_OK;
    return trainer_evaluate(t, &found, e);
}

static int interrupted(const struct trainer *t, const char *command, struct error *e)
{
    return error_set(e, t->stopped ? PL_STOPPED : PL_FAIL, "stopped by %s after step %" PRIu64 " of %" PRIu64 "; saved. Go on with: %s",
                     t->stopped ? "the step callback" : signals_name(signals_received()), t->state.step, t->total, command);
}

static int loop(struct trainer *t, const struct train_options *o, struct train_summary *out, struct error *e)
{
    struct train_event v = {.loss = NAN};
    double begun = clock_seconds();
    uint64_t allocations = 0;
    int rc = PL_OK;
    out->first_step = (int64_t)t->state.step;
    progress_begin(&t->progress, (int64_t)t->state.step, (int64_t)t->total, plan_arena(&t->run.plan), trainer_unit(t));
    mem_pool_take(SAVE_POOL + t->run.graph.params.n * SAVE_POOL_PER_WEIGHT);
    t->has_pool = true;
    if (t->validation.ops) t->has_scores = mask_scores_open(&t->scores, &t->run, &t->validation, PROGRAM_EVAL, o->worst ? (uint32_t)t->c->train_worst : 0);
    rc = evaluate_first(t, e);
    while (t->state.step < t->total && !rc && !trainer_stopping(t)) {
        if (!allocations) allocations = mem_allocations();
        rc = go_on(t, &v, e);
    }
    if (!rc) rc = take_steps(t, 0, &v, e);
    progress_break(&t->progress);
    if (rc) return rc;
    if (t->state.step < t->total) {
        /* A signal between two steps, or before the first one, found nobody saving. */
        if (t->saved != (int64_t)t->state.step && (rc = trainer_save(t, e))) return rc;
        return interrupted(t, o->command, e);
    }
    out->steps = (int64_t)t->state.step;
    out->loss = v.loss;
    out->seconds = clock_seconds() - begun;
    out->units_per_second = t->units / out->seconds;
    out->unit = trainer_unit(t);
    out->broken_samples = t->state.broken;
    out->loss_scale = t->state.scale;
    out->skipped_steps = t->state.skipped;
    out->allocations = allocations ? mem_allocations() - allocations : 0;
    if (t->has_scores && o->worst) {
        out->worst = t->scores.scores.n_worst;
        memcpy(o->worst, t->scores.scores.worst, out->worst * sizeof *o->worst);
    }
    return trainer_publish(t, e);
}

/* A new run that took no step is as if it had never been: what was wrong with it can be set right, and the same
 * command given again. */
static void forget(struct trainer *t)
{
    if (!t->has_folder || t->o->resume || t->state.step || t->saved >= 0) return;
    events_abandon(&t->events);
    folder_abandon(&t->folder);
    t->has_folder = false;
}

int train_run(const struct config *c, const struct train_options *o, struct train_summary *out, struct error *e)
{
    struct trainer *t = trainer_open(c, o);
    *out = (struct train_summary){.eval_loss = NAN};
    if (o->signals) signals_install();
    int rc = trainer_begin(t, o, e);
    if (rc == PL_NOFIT && t->has_run) {
        out->smallest_budget = t->run.plan.smallest;
        out->refused_by = run_note(&t->run, false).refused_by;
    }
    if (!rc) {
        out->arena_bytes = plan_arena(&t->run.plan);
        out->allocated_bytes = t->run.device.bytes[SPACE_DEVICE];
        out->host_bytes = t->run.device.bytes[SPACE_HOST];
        snprintf(out->model, sizeof out->model, "%s/model", c->train_out);
        rc = loop(t, o, out, e);
        out->eval_loss = t->eval;
        out->best_step = t->best.step;
        out->best_loss = isfinite(t->best.loss) ? t->best.loss : NAN;
    }
    if (rc) forget(t);
    trainer_close(t);
    return rc;
}

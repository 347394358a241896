/*
 * train_check.c: checks the results of a retired step.
 *
 * Its loss and gradient norm must be finite. With f16 a step that is not finite is skipped and the
 * loss scale halved, until that cannot help any more (ticket_fatal, scaler_stuck). Otherwise the
 * run ends with the name of the first tensor that is not finite. The search for it (nonfinite.c)
 * reads the gradients or runs the step again, so batch and step block are restored if a later step
 * has overwritten them. After a loss that is not finite no weight was updated, except by a fused
 * step: on the CPU the update was not run, on a GPU the op GUARD disabled it (passes/guard.c).
 */
#include "train/trainer.h"

#include <inttypes.h>
#include <math.h>

#include "train/scaler.h"

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

/* A fused update has changed the weights too, so only the gradients can show the cause. */
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

/* Checks the loss, the gradient norm, and in f16 the next loss scale. */
int trainer_check_step(struct trainer *t, const struct ticket *k, struct error *e)
{
    const struct step_block *b = &k->block;
    if (ticket_fatal(&t->steps.tickets, k->loss)) return nonfinite_error(t, k, e);
    if (!t->steps.tickets.scaled) {
        if (!isfinite(k->clip[0])) return nonfinite_error(t, k, e);
        t->state.adam_t++;
        return PL_OK;
    }
    if (scaler_update(&t->state, b)) {
        log_note("step %d: skipped: gradients are not finite at loss scale %g; the next loss scale is %g", b->step,
                 b->loss_scale, b->next_scale);
    }
    if (!scaler_stuck(&t->state)) return PL_OK;
    restore_step(t, k);
    return scaler_error(&t->state, b, &t->run, e);
}

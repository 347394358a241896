/*
 * scaler.c: see scaler.h.
 */
#include "train/scaler.h"

#include <inttypes.h>

float scaler_first(const struct config *c) { return (float)(c->train_loss_scale ? c->train_loss_scale : SCALE_FIRST); }

void scaler_begin(struct train_state *s, const struct config *c, bool scaled)
{
    if (!scaled) s->scale = 0, s->good_steps = s->in_a_row = 0;
    else if (!(s->scale > 0)) s->scale = scaler_first(c);
}

void scaler_put(const struct train_state *s, const struct config *c, bool scaled, struct step_block *b)
{
    b->loss_scale = b->next_scale = scaled ? s->scale : 1;
    if (scaled) b->adam_t = (int32_t)s->adam_t; /* SCALER increments it unless the step is skipped */
    b->good_steps = (int32_t)s->good_steps;
    b->scale_window = (int32_t)c->train_scale_window;
}

bool scaler_update(struct train_state *s, const struct step_block *b)
{
    s->scale = b->next_scale;
    s->good_steps = (uint64_t)b->good_steps;
    s->adam_t = (uint64_t)b->adam_t;
    s->skipped += b->found_inf != 0;
    s->in_a_row = b->found_inf ? s->in_a_row + 1 : 0;
    return b->found_inf;
}

bool scaler_stuck(const struct train_state *s) { return s->scale < 1 || s->in_a_row >= SKIPS_MOST; }

int scaler_error(const struct train_state *s, const struct step_block *b, struct run *r, struct error *e)
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

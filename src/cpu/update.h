/*
 * update.h: what the updates of the CPU share: when nothing may change, the scalars of a
 * step, and bringing a changed weight home.
 */
#ifndef CPU_UPDATE_H
#define CPU_UPDATE_H

#include "cpu/rows.h"

/* Where in an update's inputs these stand (ops.def). */
struct update_slots {
    int step, clip, w;
};

/* step.found_inf, or a norm that is not finite: every byte stays as it is. */
bool update_is_off(const struct launch *l, struct update_slots at);
/* Factor on the gradient. */
float update_clip(const struct launch *l, struct update_slots at);
/* The step's rate for this weight. */
double update_rate(const struct launch *l, struct update_slots at);
/* p f32 or bf16; what else is given must be of types that tiles are made of. */
bool update_match(const struct query *q, struct update_slots at);

/* A tile of an operand to change: its own memory where it is f32, else a copy in scratch. */
static inline float *update_view(const struct operand *x, int64_t at, int n, float scratch[TILE])
{
    return (float *)row_view(x, at, n, scratch);
}

/* Stores p's elements at .. at+n from f32: as they are, or in bf16 rounded at random
 * (round.h). Then w takes what p became. */
void update_store(const struct launch *l, struct update_slots at, int64_t from, int n, const float *p);

#endif

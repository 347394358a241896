/*
 * update.h: shared by the CPU's optimizer updates: the check for a skipped update, the scalars of a
 * step, and storing a changed weight.
 */
#ifndef CPU_UPDATE_H
#define CPU_UPDATE_H

#include "cpu/rows.h"

/* The indices of these inputs of an update (ops.def). */
struct update_slots {
    int step, clip, w;
};

/* True if step.found_inf is set or the norm is not finite: the update must change nothing. */
bool update_is_off(const struct launch *l, struct update_slots at);
/* Factor on the gradient. */
float update_clip(const struct launch *l, struct update_slots at);
/* The learning rate of this weight in this step. */
double update_rate(const struct launch *l, struct update_slots at);
/* p is f32 or bf16; all other given operands must have dtypes that tiles support. */
bool update_match(const struct query *q, struct update_slots at);

/* A tile of an operand to update: its own memory if it is f32, else a copy in scratch. */
static inline float *update_view(const struct operand *x, int64_t at, int n, float scratch[TILE])
{
    return (float *)row_view(x, at, n, scratch);
}

/* Stores p's elements at .. at+n from f32: unchanged, or in bf16 with stochastic rounding
 * (round.h). Then w gets the stored value of p. */
void update_store(const struct launch *l, struct update_slots at, int64_t from, int n, const float *p);

#endif

/*
 * update.h: shared by the CPU's optimizer updates and their references: the inputs of an update,
 * the scalars of a step, and storing a changed weight, also in bf16 with stochastic rounding:
 *
 *     bf16 --exact--> f32 --update--> f32 --up or down, at random--> bf16
 *
 * A step changes most weights by less than half of the spacing of bf16 (1/256 of the weight), and
 * rounding to nearest would undo it every time. With rounding up at the probability given by the
 * dropped bits, a weight moves by the right amount on average.
 *
 * Invariant: the rounding of an element is a pure function of the run's seed, the step, the
 * parameter's key and the element's index: threads, tiles and a resume change no bit. Every update
 * also supports f32 weights, which are updated in place.
 */
#pragma once

#include "base/optimizers.h"
#include "cpu/cpu.h"

/* The indices of these inputs of an update (ops.def). */
struct update_slots {
    int step, clip, w;
};

/* Reports whether the update must change nothing: step.found_inf is set or the norm is not
 * finite. */
bool update_is_off(const struct launch *l, struct update_slots at);
/* Ends an update that changes nothing: only a fresh w gets its value. */
void update_nothing(const struct launch *l, struct update_slots at);
/* Returns the factor on the gradient. */
float update_clip(const struct launch *l, struct update_slots at);
/* Returns the learning rate of this weight in this step. */
double update_rate(const struct launch *l, struct update_slots at);
/* Reports whether p is f32 or bf16, and all other given operands have dtypes that tiles support. */
bool update_match(const struct query *q, struct update_slots at);

/* Returns a tile of an operand to update: its own memory if it is f32, else a copy in scratch. */
static inline float *update_view(const struct operand *x, int64_t at, int n, float scratch[TILE])
{
    return (float *)row_view(x, at, n, scratch);
}

/* Stores p's elements at .. at+n from f32: unchanged, or in bf16 with stochastic rounding. Then w
 * gets the stored value of p. */
void update_store(const struct launch *l, struct update_slots at, int64_t from, int n, const float *p);

/* Returns the random stream of a parameter in a step: one draw of 64 bits serves four elements. */
uint64_t round_key(const struct step_block *step, uint64_t parameter);
/* Rounds to bf16 by 16 random bits. Inf and NaN are unchanged, and so are values that bf16
 * represents. */
uint16_t round_at_random(float x, uint32_t bits);
/* Rounds n weights into p from `at` on, a multiple of four; so is `first`, the place of p in the
 * whole weight. */
void round_store(uint16_t *p, int64_t at, int64_t first, int n, const float *from, uint64_t key);

/* --- Adafactor -------------------------------------------------------------------------------- */

static const struct update_slots adafactor_at = {3, 4, 5};
enum { ADAFACTOR_ROWS = 2, ADAFACTOR_COLUMNS = 6 };

/* N matrices of R x C. A weight that is not factored is rows of one tile: there are no means over
 * them. */
struct matrices {
    int64_t N, R, C;
};
static inline struct matrices matrices_of(int rank, const int64_t *dim)
{
    struct matrices x = {1, 1, 1};
    for (int i = 0; i < rank - 2; i++) x.N *= dim[i];
    if (rank >= 2) x.R = dim[rank - 2];
    if (rank >= 1) x.C = dim[rank - 1];
    return x;
}

/*
 * thin.h: products of a few rows with a long matrix, as both halves of the family see them. Plain C.
 *
 * Filters s [m,K] with m up to 4, places x [N,K] by the thousand, results y [m,N], for each of the
 * batches; of the three, two are given:
 *
 *     down      y = s x^T       a mask is a filter over a map
 *     up        x = y^T s       the gradient of the map
 *     across    s = y x         the gradient of the filters
 *
 * Whichever way, all time goes into moving x once. Where x is an activation (BMM_ACT), its argument is what
 * is moved, and GELU is applied to what was read.
 */
#ifndef CUDA_THIN_H
#define CUDA_THIN_H

#include <stdbool.h>
#include <stdint.h>

enum thin_mode { THIN_NONE, THIN_DOWN, THIN_UP, THIN_ACROSS };
enum { THIN_ROWS = 4, THIN_LEAST = 256 /* places */, THIN_STEP = 256 /* places of a block at a time */ };
enum { THIN_GELU = 32 /* the one depth that has an activation */ };

struct thin {
    enum thin_mode mode;
    int64_t batches, N, m, K;
    int64_t each, blocks; /* a batch is cut into so many pieces of so many places */
    bool add;             /* the result is added to */
    bool gelu;            /* x is GELU's argument: it stands for gelu(x), and up makes the argument's gradient */
};

/* The batch's pieces. Across, each leaves a partial sum: some 2000 of them in all; the other ways
 * they are short, to be many. A function of the shapes alone, so that the order of additions is. */
static inline void thin_cut(struct thin *t)
{
    const int64_t steps = (t->N + THIN_STEP - 1) / THIN_STEP;
    int64_t turns = t->mode == THIN_ACROSS ? steps * t->batches / 2048 : 4;
    if (turns < 1) turns = 1;
    if (turns > 16) turns = 16;
    t->each = turns * THIN_STEP;
    t->blocks = (t->N + t->each - 1) / t->each;
}

/* Dense a [...,.,.], b and c of a BMM; way THIN_NONE: it is none of these. */
static inline struct thin thin_of(bool ta, bool tb, int rank, const int64_t *a, const int64_t *b, const int64_t *c)
{
    struct thin t = {THIN_NONE, 1, 0, 0, 0, 0, 0, false, false};
    if (ta && tb) return t;
    t.mode = tb ? THIN_DOWN : ta ? THIN_UP : THIN_ACROSS;
    for (int d = 0; d + 2 < rank; d++) t.batches *= c[d];
    t.m = a[rank - 2];
    t.N = t.mode == THIN_DOWN ? b[rank - 2] : a[rank - 1];
    t.K = b[rank - 1];
    if (t.m > THIN_ROWS || t.N < THIN_LEAST || (t.K != 16 && t.K != 32 && t.K != 64)) t.mode = THIN_NONE;
    if (t.mode) thin_cut(&t);
    if (t.batches * t.blocks > INT32_MAX) t.mode = THIN_NONE;
    return t;
}

#endif

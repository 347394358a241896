/*
 * thin.h: products of a few rows with a long (tall and skinny) matrix, for both halves of the
 * family. Plain C.
 *
 * Filters s [m,K] with m up to 4, points x [N,K] by the thousand, results y [m,N], for each batch.
 * Two of the three are inputs, and the mode names the one that is computed:
 *
 *     down      y = s x^T       a mask is a filter over a map
 *     up        x = y^T s       the gradient of the map
 *     across    s = y x         the gradient of the filters
 *
 * In each mode the time is that of moving x once. If x is an activation (BMM_ACT), the argument of
 * the activation is moved, and GELU is applied to the elements as they are read.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum thin_mode { THIN_NONE, THIN_DOWN, THIN_UP, THIN_ACROSS };
enum { THIN_ROWS = 4, THIN_LEAST = 256 /* points */, THIN_STEP = 256 /* points of a block at a time */ };
enum { THIN_GELU = 32 /* the only K with kernels for an activation */ };

struct thin {
    enum thin_mode mode;
    int64_t batches, N, m, K;
    int64_t each, blocks; /* a batch is split into `blocks` chunks of `each` points */
    bool add;             /* the result is added to */
    bool gelu;            /* x is GELU's argument, and gelu(x) is used; up computes the argument's gradient */
};

/* Splits a batch into chunks. In mode across each chunk has a partial sum, and there are about 2000
 * of them in total; in the other modes chunks are short, so that there are many. It is a
 * function of the shapes, so that the order of additions is too. */
static inline void thin_split(struct thin *t)
{
    const int64_t steps = (t->N + THIN_STEP - 1) / THIN_STEP;
    int64_t turns = t->mode == THIN_ACROSS ? steps * t->batches / 2048 : 4;
    if (turns < 1) turns = 1;
    if (turns > 16) turns = 16;
    t->each = turns * THIN_STEP;
    t->blocks = (t->N + t->each - 1) / t->each;
}

/* The kernels: of mode down there is another for depths other than that of SAM's filters. */
enum thin_form { THIN_FORM_DOWN, THIN_FORM_DOWN_ANY, THIN_FORM_UP, THIN_FORM_ACROSS };
static inline enum thin_form thin_form(const struct thin *t)
{
    if (t->mode == THIN_DOWN) return t->K == THIN_GELU ? THIN_FORM_DOWN : THIN_FORM_DOWN_ANY;
    return t->mode == THIN_UP ? THIN_FORM_UP : THIN_FORM_ACROSS;
}

/* Returns the product of the dense operands a [...,.,.], b and c of a BMM; mode THIN_NONE: the
 * kernels do not support it. */
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
    if (t.mode) thin_split(&t);
    if (t.batches * t.blocks > INT32_MAX) t.mode = THIN_NONE;
    return t;
}

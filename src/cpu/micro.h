/*
 * micro.h: the innermost loops of matrix products and attention, one set per ISA.
 *
 * Everything here works on f32 panels. A panel of width w holds an operand as
 * rows of w neighbours, so that the inner loop reads memory in order:
 *
 *     A, width mr: [k][mr]        B, width nr: [k][nr]        C: mr rows of nr
 *
 *         a0 a1 .. | next k           b0 b1 .. | next k         c += a (x) b
 *
 * The product of two panels keeps C in registers over all of k: that is where
 * the machine's peak is reached. pack.h makes panels, gemm.c and attention.c
 * cut their work into them.
 *
 * A tile's sum runs over k in order, each element in its own lane, so an
 * element's bits depend on its row, its column and K, not on its neighbours
 * nor on who computes it.
 */
#ifndef CPU_MICRO_H
#define CPU_MICRO_H

#include <stdbool.h>
#include <stdint.h>

/* mr divides PANEL_A, nr divides PANEL_B on every ISA: workspaces sized in
 * these units do not depend on the machine that runs the plan. */
enum { PANEL_A = 24, PANEL_B = 96, MR_MAX = 12, NR_MAX = 32 };

/* Rows of `dots` at a time. */
enum { DOT_ROWS = 4 };

/* What a block of queries sees of a block of keys: query i the keys i + first .. i + last;
 * and what is added to a score by its key, in powers of two. A bias of -inf hides a key. */
struct sight {
    int64_t first, last;
    const float *bias; /* NULL: nothing */
};

struct micro {
    const char *name;
    int mr, nr;

    /* c [mr][nr], rows ldc apart = (add ? c : 0) + sum over k of a[k][mr] (x) b[k][nr]. */
    void (*product)(int64_t K, const float *a, const float *b, float *c, int64_t ldc, bool add);

    /* sum[m] += a[m][0..n) . b[0..n), rows of a lda apart, for m < rows <= DOT_ROWS. */
    void (*dots)(int rows, const float *a, int64_t lda, const float *b, int64_t n, float *sum);

    /* One block of n keys for nr queries, one query per lane. s [n][nr] holds scores, which
     * times factor are in powers of two, and becomes the probabilities
     * 2^(factor s + bias - max), 0 where a query does not see. max and sum [nr] are the
     * running ones; o [D][nr] is rescaled when max grows. */
    void (*softmax)(float *s, int64_t n, const struct sight *see, float factor, float *max, float *sum, float *o,
                    int64_t D);

    /* Scores and probability gradients of n queries against nr keys, one key per lane,
     * become in place p = 2^(factor s + bias - lse) and ds = p (dp - delta) scale; both are
     * 0 where a query does not see. */
    void (*gradient)(float *s, float *dp, int64_t n, const struct sight *see, float factor, float scale,
                     const float *lse, const float *delta);

    /* Positions on a grid `width` wide (grid.h). s = factor s + position, in both layouts.
     * One query per lane, rows are n keys from column kw on: position = rel_h[row][lane] +
     * rel_w[column][lane], rel_h [.][nr] from the first key's row on, rel_w [width][nr]. */
    void (*grid_queries)(float *s, int64_t n, float factor, const float *rel_h, const float *rel_w, int64_t kw,
                         int64_t width);
    /* One key per lane, rows are n queries, whose rel_h and rel_w lie `stride` apart: position =
     * rel_w[lane] + the sum over r < steps of rel_h[r] masks[r][lane]. */
    void (*grid_keys)(float *s, int64_t n, float factor, const float *rel_h, const float *rel_w, int64_t stride, int steps,
                      const float *masks);
    /* And its transpose: rel_w[lane] += ds[lane], rel_h[r] += sum over lanes of ds masks[r]. */
    void (*grid_gather)(const float *ds, int64_t n, float *rel_h, float *rel_w, int64_t stride, int steps,
                        const float *masks);
};

/* The best set that this processor runs. */
const struct micro *micro_best(void);
/* All sets that this processor runs, best first: for tests. NULL after the last. */
const struct micro *micro_at(int i);

#endif

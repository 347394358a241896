/*
 * micro.h: the innermost loops of matrix products and attention, one set per ISA.
 *
 * All of them work on f32 panels. A panel of width w holds an operand as rows of w neighbours, so
 * that the inner loop reads memory in order:
 *
 *     A, width mr: [k][mr]        B, width nr: [k][nr]        C: mr rows of nr
 *
 *         a0 a1 .. | next k           b0 b1 .. | next k         c += a (x) b
 *
 * The product of two panels keeps C in registers over all of k, which reaches the machine's peak.
 * pack.h packs panels; gemm.c and attention.c partition their work into them.
 *
 * The sum of a tile runs over k in order, each element in its own SIMD lane, so an element's bits
 * depend on its row, its column and K, not on its neighbours or on the thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* mr divides PANEL_A, nr divides PANEL_B on every ISA: workspaces sized in these units do not
 * depend on the machine that executes the plan. */
enum { PANEL_A = 24, PANEL_B = 96, MR_MAX = 12, NR_MAX = 32 };

/* Rows per call of `dots`. */
enum { DOT_ROWS = 4 };

/* The keys that are visible to a block of queries in a block of keys: query i sees keys i + first
 * .. i + last, or those of its range; and the bias of each key, in powers of two. A bias of -inf
 * masks a key out. */
struct key_range {
    int32_t begin, end; /* one past the last */
};
struct key_band {
    int64_t first, last;
    const float *bias;             /* NULL: none */
    const struct key_range *range; /* of each query; NULL: none, first and last say it */
};

struct micro {
    const char *name;
    int mr, nr;

    /* c [mr][nr], rows ldc apart = (add ? c : 0) + sum over k of a[k][mr] (x) b[k][nr]. */
    void (*product)(int64_t K, const float *a, const float *b, float *c, int64_t ldc, bool add);

    /* sum[m] += a[m][0..n) . b[0..n), rows of a lda apart, for m < rows <= DOT_ROWS. */
    void (*dots)(int rows, const float *a, int64_t lda, const float *b, int64_t n, float *sum);

    /* One block of n keys for nr queries, one query per lane; the band has nr ranges. On entry s
     * [n][nr] holds scores, which times factor are in powers of two; on return the probabilities
     * 2^(factor s + bias - max), 0 where a key is not visible. max and sum [nr] are the running
     * values; o [D][nr] is rescaled when max grows. With a cap, in powers of two (0: none), x =
     * factor s becomes cap tanh(x / cap) before the bias is added. */
    void (*softmax)(float *s, int64_t n, const struct key_band *band, float factor, float cap, float *max, float *sum,
                    float *o, int64_t D);

    /* In place, scores and probability gradients of n queries against nr keys, one key per lane,
     * become p = 2^(factor s + bias - lse) and ds = p (dp - delta) scale; both are 0 where a key is
     * not visible. With a cap, as in softmax, ds is also multiplied by the tanh's slope. */
    void (*gradient)(float *s, float *dp, int64_t n, const struct key_band *band, float factor, float cap, float scale,
                     const float *lse, const float *delta);

    /* Positions on a grid `width` wide (grid.h): s = factor s + position, in both layouts. One
     * query per lane, rows are n keys from column kw on: position = rel_h[row][lane] +
     * rel_w[column][lane], rel_h [.][nr] from the first key's row on, rel_w [width][nr]. */
    void (*grid_queries)(float *s, int64_t n, float factor, const float *rel_h, const float *rel_w, int64_t kw,
                         int64_t width);
    /* One key per lane, rows are n queries, with rel_h and rel_w `stride` apart: position =
     * rel_w[lane] + the sum over r < steps of rel_h[r] masks[r][lane]. */
    void (*grid_keys)(float *s, int64_t n, float factor, const float *rel_h, const float *rel_w, int64_t stride,
                      int steps, const float *masks);
    /* The transpose: rel_w[lane] += ds[lane], rel_h[r] += sum over lanes of ds masks[r]. */
    void (*grid_gather)(const float *ds, int64_t n, float *rel_h, float *rel_w, int64_t stride, int steps,
                        const float *masks);
};

/* Returns the fastest set that this processor supports. */
const struct micro *micro_best(void);

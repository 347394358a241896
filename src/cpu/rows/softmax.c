/*
 * softmax.c: SOFTMAX over the last dimension and its gradient.
 *
 * Invariant: a row is processed by one thread, tile by tile, with f32 sums within a tile and double
 * across tiles. The exponentials are computed twice, once for the sum and once for the result, so
 * that a lower-precision output is rounded once and nothing is stored between the passes. Each pass
 * reads a tile before it writes it: the result may overlap an input.
 */
#include <math.h>

#include "cpu/cpu.h"
#include "cpu/math.h"
#include "cpu/rows.h"

static bool softmax_match(const struct query *q) { return query_is_fast(q); }
static bool softmax_bwd_match(const struct query *q) { return query_is_fast(q); }

/* --- forward ------------------------------------------------------------------- */

/* NaN compares as not larger; the sum propagates it. */
static float row_largest(const struct operand *x, int64_t at, int64_t C)
{
    float scratch[TILE], most = -INFINITY;
    for (int64_t c = 0; c < C; c += TILE) {
        int n = row_tile(C - c);
        const float *v = row_view(x, at + c, n, scratch);
#pragma omp simd reduction(max : most)
        for (int i = 0; i < n; i++) most = v[i] > most ? v[i] : most;
    }
    return most;
}

static double row_exp_sum(const struct operand *x, int64_t at, int64_t C, float most)
{
    double total = 0;
    float scratch[TILE];
    for (int64_t c = 0; c < C; c += TILE) {
        int n = row_tile(C - c);
        const float *v = row_view(x, at + c, n, scratch);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int i = 0; i < n; i++) sum += exp_fast(v[i] - most);
        total += sum;
    }
    return total;
}

static void softmax_run(const struct launch *l)
{
    const struct operand *x = &l->in[0], *y = &l->out[0];
    const int64_t rows = operand_rows(x), C = operand_last(x);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (rows * C > 4096)
    for (int64_t r = 0; r < rows; r++) {
        float scratch[TILE];
        const float most = row_largest(x, r * C, C);
        const float inv = (float)(1.0 / row_exp_sum(x, r * C, C, most));
        for (int64_t c = 0; c < C; c += TILE) {
            int n = row_tile(C - c);
            const float *v = row_view(x, r * C + c, n, scratch);
            float *to = row_place(y, r * C + c, scratch);
#pragma omp simd
            for (int i = 0; i < n; i++) to[i] = exp_fast(v[i] - most) * inv;
            row_store(y, r * C + c, n, to);
        }
    }
}

/* --- backward: dx = y (dy - sum(dy y)) -------------------------------------------- */

static double row_dot(const struct operand *a, const struct operand *b, int64_t at, int64_t C)
{
    double total = 0;
    float as[TILE], bs[TILE];
    for (int64_t c = 0; c < C; c += TILE) {
        int n = row_tile(C - c);
        const float *av = row_view(a, at + c, n, as), *bv = row_view(b, at + c, n, bs);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int i = 0; i < n; i++) sum += av[i] * bv[i];
        total += sum;
    }
    return total;
}

static void softmax_bwd_run(const struct launch *l)
{
    const struct operand *dy = &l->in[0], *y = &l->in[1], *dx = &l->out[0];
    const int64_t rows = operand_rows(y), C = operand_last(y);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (rows * C > 8192)
    for (int64_t r = 0; r < rows; r++) {
        float ds[TILE], ys[TILE];
        const float sum = (float)row_dot(dy, y, r * C, C);
        for (int64_t c = 0; c < C; c += TILE) {
            int n = row_tile(C - c);
            const float *d = row_view(dy, r * C + c, n, ds), *v = row_view(y, r * C + c, n, ys);
            float *to = row_place(dx, r * C + c, ds);
#pragma omp simd
            for (int i = 0; i < n; i++) to[i] = v[i] * (d[i] - sum);
            row_store(dx, r * C + c, n, to);
        }
    }
}

CPU_KERNEL(SOFTMAX, softmax);
CPU_KERNEL(SOFTMAX_BWD, softmax_bwd);

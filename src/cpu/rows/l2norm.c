/*
 * l2norm.c: L2NORM and its gradient, the reference and the fast kernels.
 *
 *     y = x / n,  n = max(|x|, eps),  |x|^2 the sum of squares of a row
 *
 * Where |x| > eps, dn/dx = x / n, so dx = dy / n - x (dy . x) / n^3; otherwise n = eps is constant
 * and dx = dy / eps.
 *
 * Invariant of the fast kernels: a row is processed by one thread, tile by tile, with f32 sums
 * within a tile and double across tiles, and its sum is complete before any of it is written: the
 * result may overlap an input.
 */
#include <math.h>

#include "cpu/cpu.h"
#include "cpu/reference/ref.h"
#include "cpu/rows.h"

/* --- the reference ---------------------------------------------------------------- */

static void ref_l2norm(const struct launch *l)
{
    const struct operand *x = &l->in[0];
    const int64_t rows = operand_rows(x), C = operand_last(x);
    for (int64_t r = 0; r < rows; r++) {
        const double n = fmax(sqrt(ref_dot(x, r * C, x, r * C, C)), l->attr->rmsnorm.eps);
        for (int64_t c = r * C; c < (r + 1) * C; c++) ref_put(&l->out[0], c, ref_get(x, c) / n);
    }
}

static void ref_l2norm_bwd(const struct launch *l)
{
    const struct operand *dy = &l->in[0], *x = &l->in[1];
    const int64_t rows = operand_rows(x), C = operand_last(x);
    for (int64_t r = 0; r < rows; r++) {
        const double size = sqrt(ref_dot(x, r * C, x, r * C, C)), n = fmax(size, l->attr->rmsnorm.eps);
        const double along = size > l->attr->rmsnorm.eps ? ref_dot(dy, r * C, x, r * C, C) / (n * n * n) : 0;
        for (int64_t c = r * C; c < (r + 1) * C; c++)
            ref_put(&l->out[0], c, ref_get(dy, c) / n - ref_get(x, c) * along);
    }
}

/* --- fast ---------------------------------------------------------------------------- */

static bool l2norm_match(const struct query *q) { return query_is_fast(q); }
static bool l2norm_bwd_match(const struct query *q) { return query_is_fast(q); }

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

static void l2norm_run(const struct launch *l)
{
    const struct operand *x = &l->in[0], *y = &l->out[0];
    const int64_t rows = operand_rows(x), C = operand_last(x);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (rows * C > 8192)
    for (int64_t r = 0; r < rows; r++) {
        float scratch[TILE];
        const float inverse = (float)(1 / fmax(sqrt(row_dot(x, x, r * C, C)), l->attr->rmsnorm.eps));
        for (int64_t c = 0; c < C; c += TILE) {
            int n = row_tile(C - c);
            const float *v = row_view(x, r * C + c, n, scratch);
            float *to = row_place(y, r * C + c, scratch);
#pragma omp simd
            for (int i = 0; i < n; i++) to[i] = v[i] * inverse;
            row_store(y, r * C + c, n, to);
        }
    }
}

static void l2norm_bwd_run(const struct launch *l)
{
    const struct operand *dy = &l->in[0], *x = &l->in[1], *dx = &l->out[0];
    const int64_t rows = operand_rows(x), C = operand_last(x);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (rows * C > 8192)
    for (int64_t r = 0; r < rows; r++) {
        float ds[TILE], xs[TILE];
        const double size = sqrt(row_dot(x, x, r * C, C)), norm = fmax(size, l->attr->rmsnorm.eps);
        const float inverse = (float)(1 / norm);
        const float along = size > l->attr->rmsnorm.eps ? (float)(row_dot(dy, x, r * C, C) / (norm * norm * norm)) : 0;
        for (int64_t c = 0; c < C; c += TILE) {
            int n = row_tile(C - c);
            const float *d = row_view(dy, r * C + c, n, ds), *v = row_view(x, r * C + c, n, xs);
            float *to = row_place(dx, r * C + c, ds);
#pragma omp simd
            for (int i = 0; i < n; i++) to[i] = d[i] * inverse - v[i] * along;
            row_store(dx, r * C + c, n, to);
        }
    }
}

REF_KERNEL(L2NORM, l2norm);
REF_KERNEL(L2NORM_BWD, l2norm_bwd);
CPU_KERNEL(L2NORM, l2norm);
CPU_KERNEL(L2NORM_BWD, l2norm_bwd);

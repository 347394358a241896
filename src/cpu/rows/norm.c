/*
 * norm.c: RMSNORM and its gradient: kernels that reduce along rows.
 *
 * Invariant: a row is processed by one thread, tile by tile, with f32 sums within a tile and double
 * across tiles. Sums over rows use the fixed blocks of row_blocks(): partial sums [blocks, C] in
 * the workspace, combined in order.
 */
/* What is added to dx is added after dx was rounded, with every compiler: clang would fuse the two
 * (passes/rewrites/residual.c). */
#pragma STDC FP_CONTRACT OFF

#include <math.h>
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/rows.h"

/* --- rmsnorm ---------------------------------------------------------------- */

static bool rmsnorm_match(const struct query *q)
{
    return query_is_fast(q) && q->out[1]->dtype == DT_F32;
}

static double row_sum_of_squares(const struct operand *x, int64_t at, int64_t C)
{
    double total = 0;
    float scratch[TILE];
    for (int64_t c = 0; c < C; c += TILE) {
        int n = row_tile(C - c);
        const float *v = row_view(x, at + c, n, scratch);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int i = 0; i < n; i++) sum += v[i] * v[i];
        total += sum;
    }
    return total;
}

/* Normalises x, which is first computed as the sum of `two` operands if given. */
static void rmsnorm_rows(const struct launch *l, const struct operand *x, const struct operand *two,
                         const struct operand *w)
{
    const struct operand *y = &l->out[0];
    float *rstd = l->out[1].data;
    const int64_t rows = operand_rows(x), C = operand_last(x);
    const double eps = l->attr->rmsnorm.eps;
#pragma omp parallel for num_threads(l->threads) schedule(static) if (rows * C > 8192)
    for (int64_t r = 0; r < rows; r++) {
        float xs[TILE], ws[TILE];
        if (two) row_sum(x, &two[0], &two[1], r * C, C);
        float inv = (float)(1.0 / sqrt(row_sum_of_squares(x, r * C, C) / (double)C + eps));
        rstd[r] = inv;
        for (int64_t c = 0; c < C; c += TILE) {
            int n = row_tile(C - c);
            const float *xv = row_view(x, r * C + c, n, xs), *wv = row_view(w, c, n, ws);
            float *yv = row_place(y, r * C + c, xs);
#pragma omp simd
            for (int i = 0; i < n; i++) yv[i] = xv[i] * inv * wv[i];
            row_store(y, r * C + c, n, yv);
        }
    }
}

static void rmsnorm_run(const struct launch *l) { rmsnorm_rows(l, &l->in[0], NULL, &l->in[1]); }

static bool add_rmsnorm_match(const struct query *q) { return rmsnorm_match(q); }
static void add_rmsnorm_run(const struct launch *l) { rmsnorm_rows(l, &l->out[2], l->in, &l->in[2]); }

/* --- rmsnorm backward ----------------------------------------------------------
 *
 * With r = rstd and y_i = x_i r w_i:  dr/dx_j = -r^3 x_j / C, so
 *     dx_j = r w_j dy_j - x_j r^3 / C * sum_i(w_i dy_i x_i)
 *     dw_i = sum over rows of dy_i x_i r
 * and the gradient of the residual branch is added to dx. */

static bool rmsnorm_bwd_match(const struct query *q)
{
    return query_is_fast(q) && q->in[3]->dtype == DT_F32 && q->out[1]->dtype == DT_F32;
}

static uint64_t rmsnorm_bwd_workspace(const struct query *q)
{
    int64_t C = tensor_last(q->in[1]);
    return (uint64_t)(row_blocks(tensor_rows(q->in[1])).n * C) * sizeof(float);
}

/* First pass over a row: adds to dw, returns sum(w dy x). */
static double rmsnorm_row_sums(const struct launch *l, int64_t r, int64_t C, float rstd, float *dw)
{
    float ds[TILE], xs[TILE], ws[TILE];
    double total = 0;
    for (int64_t c = 0; c < C; c += TILE) {
        int n = row_tile(C - c);
        const float *d = row_view(&l->in[0], r * C + c, n, ds);
        const float *x = row_view(&l->in[1], r * C + c, n, xs);
        const float *w = row_view(&l->in[2], c, n, ws);
        float *dwv = dw + c, sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int i = 0; i < n; i++) {
            float dx = d[i] * x[i];
            dwv[i] += dx * rstd;
            sum += dx * w[i];
        }
        total += sum;
    }
    return total;
}

/* Second pass: dx = rstd w dy - x k, + add; dx may overlap any of its inputs. */
static void rmsnorm_row_dx(const struct launch *l, int64_t r, int64_t C, float rstd, float k)
{
    float ds[TILE], xs[TILE], ws[TILE], as[TILE];
    for (int64_t c = 0; c < C; c += TILE) {
        int n = row_tile(C - c);
        const float *d = row_view(&l->in[0], r * C + c, n, ds);
        const float *x = row_view(&l->in[1], r * C + c, n, xs);
        const float *w = row_view(&l->in[2], c, n, ws);
        const float *add = launch_has(l, 4) ? row_view(&l->in[4], r * C + c, n, as) : NULL;
        float *dx = row_place(&l->out[0], r * C + c, ds);
        if (add) {
#pragma omp simd
            for (int i = 0; i < n; i++) dx[i] = rstd * w[i] * d[i] - x[i] * k + add[i];
        } else {
#pragma omp simd
            for (int i = 0; i < n; i++) dx[i] = rstd * w[i] * d[i] - x[i] * k;
        }
        row_store(&l->out[0], r * C + c, n, dx);
    }
}

static void rmsnorm_bwd_run(const struct launch *l)
{
    const int64_t rows = operand_rows(&l->in[1]), C = operand_last(&l->in[1]);
    const float *rstd = l->in[3].data;
    const struct row_blocks blocks = row_blocks(rows);
    float *partial = l->work; // [blocks, C]
#pragma omp parallel for num_threads(l->threads) schedule(static) if (rows * C > 8192)
    for (int64_t b = 0; b < blocks.n; b++) {
        float *dw = partial + b * C;
        memset(dw, 0, (size_t)C * sizeof *dw);
        for (int64_t r = b * blocks.each; r < min_i64(rows, (b + 1) * blocks.each); r++) {
            double sum = rmsnorm_row_sums(l, r, C, rstd[r], dw);
            double inv = rstd[r];
            rmsnorm_row_dx(l, r, C, rstd[r], (float)(inv * inv * inv * sum / (double)C));
        }
    }
    row_combine(l->out[1].data, partial, blocks.n, C, false, l->threads);
}

CPU_KERNEL(RMSNORM, rmsnorm);
CPU_KERNEL(ADD_RMSNORM, add_rmsnorm);
CPU_KERNEL_WORK(RMSNORM_BWD, rmsnorm_bwd);

/*
 * layernorm.c: LAYERNORM and its gradient, along the last dimension.
 *
 * Invariant: a row is processed by one thread, tile by tile, with f32 sums within a tile and double
 * across tiles. The variance is computed around the mean in a separate pass, so a large mean costs
 * no precision. Sums over rows (dw, db) use the fixed blocks of row_blocks(): partial sums in the
 * workspace, combined in order.
 */
/* What is added to dx is added after dx was rounded, with every compiler: clang would fuse the two
 * (passes/rewrites/residual.c). */
#pragma STDC FP_CONTRACT OFF

#include <math.h>
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/rows.h"

/* --- forward ---------------------------------------------------------------- */

static bool layernorm_match(const struct query *q)
{
    return query_is_fast(q) && q->out[1]->dtype == DT_F32 && q->out[2]->dtype == DT_F32;
}

static double row_mean(const struct operand *x, int64_t at, int64_t C)
{
    double total = 0;
    float scratch[TILE];
    for (int64_t c = 0; c < C; c += TILE) {
        int n = row_tile(C - c);
        const float *v = row_view(x, at + c, n, scratch);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int i = 0; i < n; i++) sum += v[i];
        total += sum;
    }
    return total / (double)C;
}

static double row_variance(const struct operand *x, int64_t at, int64_t C, float mean)
{
    double total = 0;
    float scratch[TILE];
    for (int64_t c = 0; c < C; c += TILE) {
        int n = row_tile(C - c);
        const float *v = row_view(x, at + c, n, scratch);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int i = 0; i < n; i++) sum += (v[i] - mean) * (v[i] - mean);
        total += sum;
    }
    return total / (double)C;
}

/* Normalises x, which is first computed as the sum of `two` operands if given; w, followed by b. */
static void layernorm_rows(const struct launch *l, const struct operand *x, const struct operand *two,
                           const struct operand *w)
{
    const struct operand *b = w + 1, *y = &l->out[0];
    float *means = l->out[1].data, *rstds = l->out[2].data;
    const int64_t rows = operand_rows(x), C = operand_last(x);
    const double eps = l->attr->layernorm.eps;
#pragma omp parallel for num_threads(l->threads) schedule(static) if (rows * C > 8192)
    for (int64_t r = 0; r < rows; r++) {
        float xs[TILE], ws[TILE], bs[TILE];
        if (two) row_sum(x, &two[0], &two[1], r * C, C);
        const float mean = means[r] = (float)row_mean(x, r * C, C);
        const float rstd = rstds[r] = (float)(1.0 / sqrt(row_variance(x, r * C, C, mean) + eps));
        for (int64_t c = 0; c < C; c += TILE) {
            int n = row_tile(C - c);
            const float *xv = row_view(x, r * C + c, n, xs), *wv = row_view(w, c, n, ws), *bv = row_view(b, c, n, bs);
            float *yv = row_place(y, r * C + c, xs);
#pragma omp simd
            for (int i = 0; i < n; i++) yv[i] = (xv[i] - mean) * rstd * wv[i] + bv[i];
            row_store(y, r * C + c, n, yv);
        }
    }
}

static void layernorm_run(const struct launch *l) { layernorm_rows(l, &l->in[0], NULL, &l->in[1]); }

static bool add_layernorm_match(const struct query *q) { return layernorm_match(q); }
static void add_layernorm_run(const struct launch *l) { layernorm_rows(l, &l->out[3], l->in, &l->in[2]); }

/* --- backward -----------------------------------------------------------------
 *
 * With h = (x - mean) r and g = dy w (derivation beside vjp_layernorm):
 *     dx = r (g - mean(g) - h mean(g h)),  dw = sum over rows of dy h,  db = of dy,
 * and the gradient of the residual branch is added to dx. */

static bool layernorm_bwd_match(const struct query *q)
{
    return query_is_fast(q) && q->in[3]->dtype == DT_F32 && q->in[4]->dtype == DT_F32 && q->out[1]->dtype == DT_F32 &&
           q->out[2]->dtype == DT_F32;
}

/* Partial sums of dw, then those of db: [2, blocks, C]. */
static uint64_t layernorm_bwd_workspace(const struct query *q)
{
    int64_t C = tensor_last(q->in[1]);
    return (uint64_t)(2 * row_blocks(tensor_rows(q->in[1])).n * C) * sizeof(float);
}

struct norm_row {
    int64_t at, C;     /* index of its first element, its length */
    float mean, rstd;
    double g, gh;      /* sum(g), sum(g h) */
};

/* First pass over a row: adds to dw and db, sums g and g h. */
static void layernorm_row_sums(const struct launch *l, struct norm_row *row, float *dw, float *db)
{
    float ds[TILE], xs[TILE], ws[TILE];
    const float mean = row->mean, rstd = row->rstd;
    for (int64_t c = 0; c < row->C; c += TILE) {
        int n = row_tile(row->C - c);
        const float *d = row_view(&l->in[0], row->at + c, n, ds);
        const float *x = row_view(&l->in[1], row->at + c, n, xs);
        const float *w = row_view(&l->in[2], c, n, ws);
        float *dwv = dw + c, *dbv = db + c, sum = 0, sum_h = 0;
#pragma omp simd reduction(+ : sum, sum_h)
        for (int i = 0; i < n; i++) {
            float h = (x[i] - mean) * rstd;
            dwv[i] += d[i] * h;
            dbv[i] += d[i];
            sum += d[i] * w[i];
            sum_h += d[i] * w[i] * h;
        }
        row->g += sum;
        row->gh += sum_h;
    }
}

/* Second pass: dx, which may overlap any of its inputs. */
static void layernorm_row_dx(const struct launch *l, const struct norm_row *row)
{
    float ds[TILE], xs[TILE], ws[TILE], as[TILE];
    const float mean = row->mean, rstd = row->rstd;
    const float g = (float)(row->g / (double)row->C), gh = (float)(row->gh / (double)row->C);
    for (int64_t c = 0; c < row->C; c += TILE) {
        int n = row_tile(row->C - c);
        const float *d = row_view(&l->in[0], row->at + c, n, ds);
        const float *x = row_view(&l->in[1], row->at + c, n, xs);
        const float *w = row_view(&l->in[2], c, n, ws);
        const float *add = launch_has(l, 5) ? row_view(&l->in[5], row->at + c, n, as) : NULL;
        float *dx = row_place(&l->out[0], row->at + c, ds);
        if (add) {
#pragma omp simd
            for (int i = 0; i < n; i++) dx[i] = rstd * (d[i] * w[i] - g - (x[i] - mean) * rstd * gh) + add[i];
        } else {
#pragma omp simd
            for (int i = 0; i < n; i++) dx[i] = rstd * (d[i] * w[i] - g - (x[i] - mean) * rstd * gh);
        }
        row_store(&l->out[0], row->at + c, n, dx);
    }
}

static void layernorm_bwd_run(const struct launch *l)
{
    const int64_t rows = operand_rows(&l->in[1]), C = operand_last(&l->in[1]);
    const float *means = l->in[3].data, *rstds = l->in[4].data;
    const struct row_blocks blocks = row_blocks(rows);
    float *dws = l->work, *dbs = dws + blocks.n * C; // [blocks, C] each
#pragma omp parallel for num_threads(l->threads) schedule(static) if (rows * C > 8192)
    for (int64_t b = 0; b < blocks.n; b++) {
        float *dw = dws + b * C, *db = dbs + b * C;
        memset(dw, 0, (size_t)C * sizeof *dw);
        memset(db, 0, (size_t)C * sizeof *db);
        for (int64_t r = b * blocks.each; r < min_i64(rows, (b + 1) * blocks.each); r++) {
            struct norm_row row = {.at = r * C, .C = C, .mean = means[r], .rstd = rstds[r]};
            layernorm_row_sums(l, &row, dw, db);
            layernorm_row_dx(l, &row);
        }
    }
    row_combine(l->out[1].data, dws, blocks.n, C, false, l->threads);
    row_combine(l->out[2].data, dbs, blocks.n, C, false, l->threads);
}

CPU_KERNEL(LAYERNORM, layernorm);
CPU_KERNEL(ADD_LAYERNORM, add_layernorm);
CPU_KERNEL_WORK(LAYERNORM_BWD, layernorm_bwd);

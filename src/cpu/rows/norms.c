/*
 * norms.c: RMSNORM, LAYERNORM, L2NORM and SOFTMAX along the last dimension, and their gradients;
 * for L2NORM the reference too.
 *
 * Invariant: a row is processed by one thread, tile by tile, with f32 sums within a tile and double
 * across tiles. A row's sums are complete before any of it is written, and each pass reads a tile
 * before it writes it: a result may overlap an input. Sums over rows (dw, db) use the fixed blocks
 * of row_blocks(): partial sums [blocks, C] in the workspace, combined in order.
 */
/* What is added to dx is added after dx was rounded, with every compiler: clang would fuse the two
 * (passes/rewrites/residual.c). */
#pragma STDC FP_CONTRACT OFF

#include <math.h>

#include "cpu/cpu.h"
#include "cpu/math.h"
#include "cpu/reference/ref.h"
#include "cpu/rows/row_parts.h"

/* --- RMSNORM ---------------------------------------------------------------------------------- */

/* Returns what is added to the weights: unit_offset. */
static float weight_offset(const struct launch *l) { return l->attr->rmsnorm.unit_offset ? 1 : 0; }

static bool rmsnorm_match(const struct query *q) { return query_is_fast(q) && q->out[1]->dtype == DT_F32; }

void rmsnorm_row(const struct launch *l, const struct operand *x, const struct operand *w, int64_t r)
{
    const struct operand *y = &l->out[0];
    const int64_t C = operand_last(x);
    const double eps = l->attr->rmsnorm.eps;
    const float inv = (float)(1.0 / sqrt(row_dot(x, x, r * C, C) / (double)C + eps)), offset = weight_offset(l);
    float xs[TILE], ws[TILE];
    ((float *)l->out[1].data)[r] = inv;
    for (int64_t c = 0; c < C; c += TILE) {
        const int n = row_tile(C - c);
        const float *xv = row_view(x, r * C + c, n, xs), *wv = row_view(w, c, n, ws);
        float *yv = row_place(y, r * C + c, xs);
#pragma omp simd
        for (int i = 0; i < n; i++) yv[i] = xv[i] * inv * (wv[i] + offset);
        row_store(y, r * C + c, n, yv);
    }
}

/* Normalises x, which is first computed as the sum of `two` operands if given. */
static void rmsnorm_rows(const struct launch *l, const struct operand *x, const struct operand *two,
                         const struct operand *w)
{
    const int64_t rows = operand_rows(x), C = operand_last(x);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (rows * C > 8192)
    for (int64_t r = 0; r < rows; r++) {
        if (two) row_add(x, &two[0], &two[1], r * C, C);
        rmsnorm_row(l, x, w, r);
    }
}

static void rmsnorm_run(const struct launch *l) { rmsnorm_rows(l, &l->in[0], NULL, &l->in[1]); }
static bool add_rmsnorm_match(const struct query *q) { return rmsnorm_match(q); }
static void add_rmsnorm_run(const struct launch *l) { rmsnorm_rows(l, &l->out[2], l->in, &l->in[2]); }

/* The tiles of dy, x, w and of what is added to dx (input `add`, if given) that the gradient of a
 * norm reads at column c of the row that begins at `at`. */
struct norm_tiles {
    const float *d, *x, *w, *add;
    int n;
    float scratch[4][TILE];
};

static void norm_view(struct norm_tiles *t, const struct launch *l, int64_t at, int64_t c, int64_t C, int add)
{
    t->n = row_tile(C - c);
    t->d = row_view(&l->in[0], at + c, t->n, t->scratch[0]);
    t->x = row_view(&l->in[1], at + c, t->n, t->scratch[1]);
    t->w = row_view(&l->in[2], c, t->n, t->scratch[2]);
    t->add = add && launch_has(l, add) ? row_view(&l->in[add], at + c, t->n, t->scratch[3]) : NULL;
}

/* With r = rstd and y_i = x_i r w_i, w with its offset:  dr/dx_j = -r^3 x_j / C, so
 *     dx_j = r w_j dy_j - x_j r^3 / C * sum_i(w_i dy_i x_i)
 *     dw_i = sum over rows of dy_i x_i r
 * and the gradient of the residual branch is added to dx. */

static bool rmsnorm_bwd_match(const struct query *q)
{
    return query_is_fast(q) && q->in[3]->dtype == DT_F32 && q->out[1]->dtype == DT_F32;
}

static uint64_t rmsnorm_bwd_workspace(const struct query *q)
{
    return (uint64_t)(row_blocks(tensor_rows(q->in[1])).n * tensor_last(q->in[1])) * sizeof(float);
}

/* Makes the first pass over a row: adds to dw, returns sum(w dy x). */
static double rmsnorm_row_sums(const struct launch *l, int64_t at, int64_t C, float rstd, float *dw)
{
    struct norm_tiles t;
    const float offset = weight_offset(l);
    double total = 0;
    for (int64_t c = 0; c < C; c += TILE) {
        norm_view(&t, l, at, c, C, 0);
        const float *d = t.d, *x = t.x, *w = t.w;
        float *dwv = dw + c, sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int i = 0; i < t.n; i++) {
            float dx = d[i] * x[i];
            dwv[i] += dx * rstd;
            sum += dx * (w[i] + offset);
        }
        total += sum;
    }
    return total;
}

/* Makes the second pass: dx = rstd w dy - x k, + add; dx may overlap any of its inputs. */
static void rmsnorm_row_dx(const struct launch *l, int64_t at, int64_t C, float rstd, float k)
{
    struct norm_tiles t;
    const float offset = weight_offset(l);
    for (int64_t c = 0; c < C; c += TILE) {
        norm_view(&t, l, at, c, C, 4);
        const float *d = t.d, *x = t.x, *w = t.w, *add = t.add;
        float *dx = row_place(&l->out[0], at + c, t.scratch[0]);
        if (add) {
#pragma omp simd
            for (int i = 0; i < t.n; i++) dx[i] = rstd * (w[i] + offset) * d[i] - x[i] * k + add[i];
        } else {
#pragma omp simd
            for (int i = 0; i < t.n; i++) dx[i] = rstd * (w[i] + offset) * d[i] - x[i] * k;
        }
        row_store(&l->out[0], at + c, t.n, dx);
    }
}

void rmsnorm_bwd_rows(const struct launch *l, int64_t first, int64_t last, float *dw)
{
    const int64_t C = operand_last(&l->in[1]);
    const float *rstd = l->in[3].data;
    for (int64_t r = first; r < last; r++) {
        const double sum = rmsnorm_row_sums(l, r * C, C, rstd[r], dw), inv = rstd[r];
        rmsnorm_row_dx(l, r * C, C, rstd[r], (float)(inv * inv * inv * sum / (double)C));
    }
}

static void rmsnorm_bwd_run(const struct launch *l)
{
    const int64_t rows = operand_rows(&l->in[1]), C = operand_last(&l->in[1]);
    const struct row_blocks blocks = launch_row_blocks(l, rows);
    float *partial = l->work; // [blocks, C]
#pragma omp parallel for num_threads(l->threads) schedule(static) if (rows * C > 8192)
    for (int64_t b = 0; b < blocks.n; b++) {
        float *dw = partial + b * C;
        memset(dw, 0, (size_t)C * sizeof *dw);
        rmsnorm_bwd_rows(l, b * blocks.each, min_i64(rows, (b + 1) * blocks.each), dw);
    }
    row_combine(&l->out[1], partial, blocks.n, false, l->threads);
}

CPU_KERNEL(RMSNORM, rmsnorm);
CPU_KERNEL(ADD_RMSNORM, add_rmsnorm);
CPU_KERNEL_WORK(RMSNORM_BWD, rmsnorm_bwd);

/* --- LAYERNORM: the variance is computed around the mean in a separate pass, so a large mean costs
 * no precision --------------------------------------------------------------------------------- */

static bool layernorm_match(const struct query *q)
{
    return query_is_fast(q) && q->out[1]->dtype == DT_F32 && q->out[2]->dtype == DT_F32;
}

static double row_variance(const struct operand *x, int64_t at, int64_t C, float mean)
{
    double total = 0;
    float scratch[TILE];
    for (int64_t c = 0; c < C; c += TILE) {
        const int n = row_tile(C - c);
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
        if (two) row_add(x, &two[0], &two[1], r * C, C);
        const float mean = means[r] = (float)(row_sum(x, r * C, C) / (double)C);
        const float rstd = rstds[r] = (float)(1.0 / sqrt(row_variance(x, r * C, C, mean) + eps));
        for (int64_t c = 0; c < C; c += TILE) {
            const int n = row_tile(C - c);
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

/* With h = (x - mean) r and g = dy w (derivation beside vjp_layernorm):
 *     dx = r (g - mean(g) - h mean(g h)),  dw = sum over rows of dy h,  db = of dy,
 * and the gradient of the residual branch is added to dx. */

static bool layernorm_bwd_match(const struct query *q)
{
    return query_is_fast(q) && q->in[3]->dtype == DT_F32 && q->in[4]->dtype == DT_F32 && q->out[1]->dtype == DT_F32 &&
           q->out[2]->dtype == DT_F32;
}

/* Returns the bytes of the partial sums of dw, then those of db: [2, blocks, C]. */
static uint64_t layernorm_bwd_workspace(const struct query *q) { return 2 * rmsnorm_bwd_workspace(q); }

struct norm_row {
    int64_t at, C;     /* index of its first element, its length */
    float mean, rstd;
    double g, gh;      /* sum(g), sum(g h) */
};

/* Makes the first pass over a row: adds to dw and db, sums g and g h. */
static void layernorm_row_sums(const struct launch *l, struct norm_row *row, float *dw, float *db)
{
    struct norm_tiles t;
    const float mean = row->mean, rstd = row->rstd;
    for (int64_t c = 0; c < row->C; c += TILE) {
        norm_view(&t, l, row->at, c, row->C, 0);
        const float *d = t.d, *x = t.x, *w = t.w;
        float *dwv = dw + c, *dbv = db + c, sum = 0, sum_h = 0;
#pragma omp simd reduction(+ : sum, sum_h)
        for (int i = 0; i < t.n; i++) {
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

/* Makes the second pass: dx, which may overlap any of its inputs. */
static void layernorm_row_dx(const struct launch *l, const struct norm_row *row)
{
    struct norm_tiles t;
    const float mean = row->mean, rstd = row->rstd;
    const float g = (float)(row->g / (double)row->C), gh = (float)(row->gh / (double)row->C);
    for (int64_t c = 0; c < row->C; c += TILE) {
        norm_view(&t, l, row->at, c, row->C, 5);
        const float *d = t.d, *x = t.x, *w = t.w, *add = t.add;
        float *dx = row_place(&l->out[0], row->at + c, t.scratch[0]);
        if (add) {
#pragma omp simd
            for (int i = 0; i < t.n; i++) dx[i] = rstd * (d[i] * w[i] - g - (x[i] - mean) * rstd * gh) + add[i];
        } else {
#pragma omp simd
            for (int i = 0; i < t.n; i++) dx[i] = rstd * (d[i] * w[i] - g - (x[i] - mean) * rstd * gh);
        }
        row_store(&l->out[0], row->at + c, t.n, dx);
    }
}

static void layernorm_bwd_run(const struct launch *l)
{
    const int64_t rows = operand_rows(&l->in[1]), C = operand_last(&l->in[1]);
    const float *means = l->in[3].data, *rstds = l->in[4].data;
    const struct row_blocks blocks = launch_row_blocks(l, rows);
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
    row_combine(&l->out[1], dws, blocks.n, false, l->threads);
    row_combine(&l->out[2], dbs, blocks.n, false, l->threads);
}

CPU_KERNEL(LAYERNORM, layernorm);
CPU_KERNEL(ADD_LAYERNORM, add_layernorm);
CPU_KERNEL_WORK(LAYERNORM_BWD, layernorm_bwd);

/* --- SOFTMAX: the exponentials are computed twice, once for the sum and once for the result, so
 * that a lower-precision output is rounded once and nothing is stored between the passes ------ */

/* Returns the largest element of a row. NaN compares as not larger; the sum propagates it. */
static float row_largest(const struct operand *x, int64_t at, int64_t C)
{
    float scratch[TILE], most = -INFINITY;
    for (int64_t c = 0; c < C; c += TILE) {
        const int n = row_tile(C - c);
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
        const int n = row_tile(C - c);
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
            const int n = row_tile(C - c);
            const float *v = row_view(x, r * C + c, n, scratch);
            float *to = row_place(y, r * C + c, scratch);
#pragma omp simd
            for (int i = 0; i < n; i++) to[i] = exp_fast(v[i] - most) * inv;
            row_store(y, r * C + c, n, to);
        }
    }
}

/* Computes dx = y (dy - sum(dy y)). */
static void softmax_bwd_run(const struct launch *l)
{
    const struct operand *dy = &l->in[0], *y = &l->in[1], *dx = &l->out[0];
    const int64_t rows = operand_rows(y), C = operand_last(y);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (rows * C > 8192)
    for (int64_t r = 0; r < rows; r++) {
        float ds[TILE], ys[TILE];
        const float sum = (float)row_dot(dy, y, r * C, C);
        for (int64_t c = 0; c < C; c += TILE) {
            const int n = row_tile(C - c);
            const float *d = row_view(dy, r * C + c, n, ds), *v = row_view(y, r * C + c, n, ys);
            float *to = row_place(dx, r * C + c, ds);
#pragma omp simd
            for (int i = 0; i < n; i++) to[i] = v[i] * (d[i] - sum);
            row_store(dx, r * C + c, n, to);
        }
    }
}

CPU_KERNEL_DENSE(SOFTMAX, softmax);
CPU_KERNEL_DENSE(SOFTMAX_BWD, softmax_bwd);

/* --- L2NORM: y = x / n, n = max(|x|, eps), |x|^2 the sum of squares of a row -------------------
 *
 * Where |x| > eps, dn/dx = x / n, so dx = dy / n - x (dy . x) / n^3; otherwise n = eps is constant
 * and dx = dy / eps. */

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

static void l2norm_run(const struct launch *l)
{
    const struct operand *x = &l->in[0], *y = &l->out[0];
    const int64_t rows = operand_rows(x), C = operand_last(x);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (rows * C > 8192)
    for (int64_t r = 0; r < rows; r++) {
        float scratch[TILE];
        const float inverse = (float)(1 / fmax(sqrt(row_dot(x, x, r * C, C)), l->attr->rmsnorm.eps));
        for (int64_t c = 0; c < C; c += TILE) {
            const int n = row_tile(C - c);
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
            const int n = row_tile(C - c);
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
CPU_KERNEL_DENSE(L2NORM, l2norm);
CPU_KERNEL_DENSE(L2NORM_BWD, l2norm_bwd);

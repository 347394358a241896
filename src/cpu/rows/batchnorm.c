/*
 * batchnorm.c: BATCHNORM over groups of images, BATCHNORM_FROZEN with given statistics, and their
 * gradients.
 *
 * A map [B,H,W,C] is rows of C channels; a group is `n` consecutive rows, partitioned into the
 * fixed blocks of row_blocks(n). Sums are over rows, channel by channel: f32 within a block, double
 * across blocks, blocks in order, so the thread count changes no bit.
 *
 * Variance: a block first computes its own mean and sums squares around it while its rows are in
 * cache; two blocks a and b are then combined without cancellation:
 *
 *     M2 = M2_a + M2_b + n_a (mean_a - mean)^2 + n_b (mean_b - mean)^2
 *
 * Workspace, f32: vectors of C per group or per op, then partial sums [G, blocks, 2, C].
 */
#include <math.h>

#include "cpu/cpu.h"

enum { SERIAL = 8192 }; /* below this many elements one thread is faster */

/* The partition of a map's rows. */
struct groups {
    int64_t G, n, C;          /* groups, rows of each, channels */
    struct row_blocks blocks; /* of a group */
};

static struct groups groups_of(int64_t rows, int64_t C, int64_t G)
{
    return (struct groups){G, rows / G, C, row_blocks(rows / G)};
}

static uint64_t partial_elements(const struct groups *p) { return (uint64_t)(p->G * p->blocks.n * 2 * p->C); }

/* Returns the two partial sums of block b of group g; its first row; and one past its last. */
static float *partial_at(float *partial, const struct groups *p, int64_t g, int64_t b)
{
    return partial + (g * p->blocks.n + b) * 2 * p->C;
}
static int64_t block_from(const struct groups *p, int64_t g, int64_t b) { return g * p->n + b * p->blocks.each; }
static int64_t block_to(const struct groups *p, int64_t g, int64_t b)
{
    return g * p->n + min_i64(p->n, (b + 1) * p->blocks.each);
}

/* Converts a vector to f32. */
static void widen(float *to, const struct operand *x)
{
    dtype_convert(to, DT_F32, x->data, x->dtype, operand_elements(x));
}

/* --- statistics ---------------------------------------------------------------------- */

/* Computes mean [C] and M2 [C] of rows from .. to. */
static void block_moments(float *mean, float *m2, const struct operand *x, int64_t from, int64_t to, int64_t C)
{
    float scratch[TILE];
    memset(mean, 0, (size_t)C * sizeof *mean);
    memset(m2, 0, (size_t)C * sizeof *m2);
    for (int64_t r = from; r < to; r++)
        for (int64_t c = 0; c < C; c += TILE) {
            const int n = row_tile(C - c);
            const float *v = row_view(x, r * C + c, n, scratch);
            float *sum = mean + c;
#pragma omp simd
            for (int i = 0; i < n; i++) sum[i] += v[i];
        }
    for (int64_t c = 0; c < C; c++) mean[c] /= (float)(to - from);
    for (int64_t r = from; r < to; r++)
        for (int64_t c = 0; c < C; c += TILE) {
            const int n = row_tile(C - c);
            const float *v = row_view(x, r * C + c, n, scratch), *m = mean + c;
            float *sum = m2 + c;
#pragma omp simd
            for (int i = 0; i < n; i++) sum[i] += (v[i] - m[i]) * (v[i] - m[i]);
        }
}

/* Computes a group's mean and rstd from its blocks'. */
static void combine_moments(float *mean, float *rstd, float *partial, const struct groups *p, int64_t g, double eps)
{
    for (int64_t c = 0; c < p->C; c++) {
        double sum = 0, m2 = 0;
        for (int64_t b = 0; b < p->blocks.n; b++)
            sum += (double)partial_at(partial, p, g, b)[c] * (double)(block_to(p, g, b) - block_from(p, g, b));
        sum /= (double)p->n;
        for (int64_t b = 0; b < p->blocks.n; b++) {
            const float *block = partial_at(partial, p, g, b);
            const double off = (double)block[c] - sum;
            m2 += (double)block[p->C + c] + off * off * (double)(block_to(p, g, b) - block_from(p, g, b));
        }
        mean[c] = (float)sum;
        rstd[c] = (float)(1 / sqrt(m2 / (double)p->n + eps));
    }
}

/* --- forward ---------------------------------------------------------------------------- */

/* Computes y = (x - mean) scale + shift, with mean [G,C], scale [G,C], shift [C]. */
static void normalise(const struct operand *y, const struct operand *x, const struct groups *p, const float *mean,
                      const float *scale, const float *shift, int threads)
{
    const int64_t rows = p->G * p->n, C = p->C;
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * C > SERIAL)
    for (int64_t r = 0; r < rows; r++) {
        float scratch[TILE];
        for (int64_t c = 0; c < C; c += TILE) {
            const int n = row_tile(C - c);
            const float *v = row_view(x, r * C + c, n, scratch), *t = shift + c;
            const float *m = mean + r / p->n * C + c, *s = scale + r / p->n * C + c;
            float *to = row_place(y, r * C + c, scratch);
#pragma omp simd
            for (int i = 0; i < n; i++) to[i] = (v[i] - m[i]) * s[i] + t[i];
            row_store(y, r * C + c, n, to);
        }
    }
}

static bool batchnorm_match(const struct query *q)
{
    return query_is_fast(q) && q->out[1]->dtype == DT_F32 && q->out[2]->dtype == DT_F32;
}

/* Returns the bytes of scale [G,C], w [C], b [C] and the partial sums. */
static uint64_t batchnorm_workspace(const struct query *q)
{
    const struct groups p = groups_of(tensor_rows(q->in[0]), tensor_last(q->in[0]), q->out[1]->dim[0]);
    return ((uint64_t)((p.G + 2) * p.C) + partial_elements(&p)) * sizeof(float);
}

static void batchnorm_run(const struct launch *l)
{
    const struct operand *x = &l->in[0];
    const struct groups p = groups_of(operand_rows(x), operand_last(x), l->out[1].dim[0]);
    float *mean = l->out[1].data, *rstd = l->out[2].data;
    float *scale = l->work, *w = scale + p.G * p.C, *b = w + p.C, *partial = b + p.C;
    widen(w, &l->in[1]);
    widen(b, &l->in[2]);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (p.G * p.n * p.C > SERIAL)
    for (int64_t k = 0; k < p.G * p.blocks.n; k++) {
        const int64_t g = k / p.blocks.n, block = k % p.blocks.n;
        float *sums = partial_at(partial, &p, g, block);
        block_moments(sums, sums + p.C, x, block_from(&p, g, block), block_to(&p, g, block), p.C);
    }
#pragma omp parallel for num_threads(l->threads) schedule(static) if (p.G * p.blocks.n * p.C > SERIAL)
    for (int64_t g = 0; g < p.G; g++) {
        combine_moments(mean + g * p.C, rstd + g * p.C, partial, &p, g, l->attr->batchnorm.eps);
        for (int64_t c = 0; c < p.C; c++) scale[g * p.C + c] = rstd[g * p.C + c] * w[c];
    }
    normalise(&l->out[0], x, &p, mean, scale, b, l->threads);
}

/* Returns the bytes of mean [C], scale [C], w [C] and b [C]. */
static uint64_t batchnorm_frozen_workspace(const struct query *q)
{
    return (uint64_t)(4 * tensor_last(q->in[0])) * sizeof(float);
}

static void rstd_of(float *rstd, const struct operand *var, double eps)
{
    widen(rstd, var);
    for (int64_t c = 0; c < operand_elements(var); c++) rstd[c] = (float)(1 / sqrt((double)rstd[c] + eps));
}

static void batchnorm_frozen_run(const struct launch *l)
{
    const struct groups p = groups_of(operand_rows(&l->in[0]), operand_last(&l->in[0]), 1);
    float *mean = l->work, *scale = mean + p.C, *w = scale + p.C, *b = w + p.C;
    widen(w, &l->in[1]);
    widen(b, &l->in[2]);
    widen(mean, &l->in[3]);
    rstd_of(scale, &l->in[4], l->attr->batchnorm_frozen.eps);
    for (int64_t c = 0; c < p.C; c++) scale[c] *= w[c];
    normalise(&l->out[0], &l->in[0], &p, mean, scale, b, l->threads);
}

/* --- gradients ----------------------------------------------------------------------------
 *
 * With h = (x - mean) rstd, per group of n rows:  sum = sum dy,  dot = sum dy h,
 *     dx = w rstd (dy - sum/n - h dot/n)     (given statistics: dx = w rstd dy)
 * and dw, db are the sums of dot and sum over groups.
 */

/* Computes sum [C], of dy, and dot [C], of dy and the normalised x, over rows from .. to. */
static void block_dots(float *sum, float *dot, const struct launch *l, int64_t from, int64_t to, int64_t C,
                       const float *mean, const float *rstd)
{
    memset(sum, 0, (size_t)C * sizeof *sum);
    memset(dot, 0, (size_t)C * sizeof *dot);
    for (int64_t r = from; r < to; r++)
        for (int64_t c = 0; c < C; c += TILE) {
            float ds[TILE], xs[TILE];
            const int n = row_tile(C - c);
            const float *d = row_view(&l->in[0], r * C + c, n, ds), *x = row_view(&l->in[1], r * C + c, n, xs);
            const float *m = mean + c, *s = rstd + c;
            float *a = sum + c, *b = dot + c;
#pragma omp simd
            for (int i = 0; i < n; i++) {
                a[i] += d[i];
                b[i] += d[i] * ((x[i] - m[i]) * s[i]);
            }
        }
}

/* Computes the sums of all blocks of all groups, and dw, db. */
static void all_dots(const struct launch *l, const struct groups *p, float *partial, const float *mean,
                     const float *rstd)
{
#pragma omp parallel for num_threads(l->threads) schedule(static) if (p->G * p->n * p->C > SERIAL)
    for (int64_t k = 0; k < p->G * p->blocks.n; k++) {
        const int64_t g = k / p->blocks.n, b = k % p->blocks.n;
        float *sums = partial_at(partial, p, g, b);
        block_dots(sums, sums + p->C, l, block_from(p, g, b), block_to(p, g, b), p->C, mean + g * p->C,
                   rstd + g * p->C);
    }
    float *dw = l->out[1].data, *db = l->out[2].data;
#pragma omp parallel for num_threads(l->threads) schedule(static) if (p->G * p->blocks.n * p->C > SERIAL)
    for (int64_t c = 0; c < p->C; c++) {
        double sum = 0, dot = 0;
        for (int64_t k = 0; k < p->G * p->blocks.n; k++) {
            sum += partial[k * 2 * p->C + c];
            dot += partial[(k * 2 + 1) * p->C + c];
        }
        dw[c] = (float)dot;
        db[c] = (float)sum;
    }
}

/* Computes sum/n and dot/n of group g. */
static void group_means(float *sum, float *dot, float *partial, const struct groups *p, int64_t g)
{
    for (int64_t c = 0; c < p->C; c++) {
        double s = 0, d = 0;
        for (int64_t b = 0; b < p->blocks.n; b++) {
            const float *block = partial_at(partial, p, g, b);
            s += block[c];
            d += block[p->C + c];
        }
        sum[c] = (float)(s / (double)p->n);
        dot[c] = (float)(d / (double)p->n);
    }
}

static bool batchnorm_bwd_match(const struct query *q)
{
    return query_is_fast(q) && q->in[3]->dtype == DT_F32 && q->in[4]->dtype == DT_F32 && q->out[1]->dtype == DT_F32;
}

/* Returns the bytes of w [C], means [G,2,C] and the partial sums. */
static uint64_t batchnorm_bwd_workspace(const struct query *q)
{
    const struct groups p = groups_of(tensor_rows(q->in[1]), tensor_last(q->in[1]), q->in[3]->dim[0]);
    return ((uint64_t)((2 * p.G + 1) * p.C) + partial_elements(&p)) * sizeof(float);
}

static void batchnorm_bwd_run(const struct launch *l)
{
    const struct groups p = groups_of(operand_rows(&l->in[1]), operand_last(&l->in[1]), l->in[3].dim[0]);
    const int64_t C = p.C;
    const float *mean = l->in[3].data, *rstd = l->in[4].data;
    float *w = l->work, *means = w + C, *partial = means + 2 * p.G * C;
    widen(w, &l->in[2]);
    all_dots(l, &p, partial, mean, rstd);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (p.G * p.blocks.n * C > SERIAL)
    for (int64_t g = 0; g < p.G; g++) group_means(means + 2 * g * C, means + (2 * g + 1) * C, partial, &p, g);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (p.G * p.n * C > SERIAL)
    for (int64_t r = 0; r < p.G * p.n; r++) {
        float ds[TILE], xs[TILE];
        for (int64_t c = 0; c < C; c += TILE) {
            const int n = row_tile(C - c);
            const int64_t g = r / p.n, at = g * C + c;
            const float *d = row_view(&l->in[0], r * C + c, n, ds), *x = row_view(&l->in[1], r * C + c, n, xs);
            const float *m = mean + at, *s = rstd + at, *sum = means + 2 * g * C + c, *dot = sum + C, *v = w + c;
            float *dx = row_place(&l->out[0], r * C + c, ds);
#pragma omp simd
            for (int i = 0; i < n; i++) dx[i] = v[i] * s[i] * (d[i] - sum[i] - (x[i] - m[i]) * s[i] * dot[i]);
            row_store(&l->out[0], r * C + c, n, dx);
        }
    }
}

static bool batchnorm_frozen_bwd_match(const struct query *q) { return query_is_fast(q) && q->out[1]->dtype == DT_F32; }

/* Returns the bytes of mean [C], rstd [C], scale [C], zero [C] and the partial sums. */
static uint64_t batchnorm_frozen_bwd_workspace(const struct query *q)
{
    const struct groups p = groups_of(tensor_rows(q->in[1]), tensor_last(q->in[1]), 1);
    return ((uint64_t)(4 * p.C) + partial_elements(&p)) * sizeof(float);
}

static void batchnorm_frozen_bwd_run(const struct launch *l)
{
    const struct groups p = groups_of(operand_rows(&l->in[1]), operand_last(&l->in[1]), 1);
    float *mean = l->work, *rstd = mean + p.C, *scale = rstd + p.C, *zero = scale + p.C, *partial = zero + p.C;
    widen(mean, &l->in[3]);
    rstd_of(rstd, &l->in[4], l->attr->batchnorm_frozen.eps);
    widen(scale, &l->in[2]);
    for (int64_t c = 0; c < p.C; c++) scale[c] *= rstd[c];
    memset(zero, 0, (size_t)p.C * sizeof *zero);
    all_dots(l, &p, partial, mean, rstd);
    normalise(&l->out[0], &l->in[0], &p, zero, scale, zero, l->threads); /* dx = (dy - 0) scale + 0 */
}

/* --- running statistics ---------------------------------------------------------------------- */

static bool batchnorm_update_match(const struct query *q)
{
    for (int i = 0; i < 4; i++)
        if (!tensor_is(q->in[i], DT_F32)) return false;
    return true;
}

static void batchnorm_update_run(const struct launch *l)
{
    const int64_t G = l->in[0].dim[0], C = l->in[0].dim[1], count = l->attr->batchnorm_update.count;
    const double m = l->attr->batchnorm_update.momentum, unbiased = (double)count / (double)(count - 1);
    const float *mean = l->in[0].data, *rstd = l->in[1].data; // [G,C]
    float *to_mean = l->out[0].data, *to_var = l->out[1].data; // [C]
    CHECK(l->in[2].data == to_mean && l->in[3].data == to_var, "running statistics are updated in place");
    for (int64_t c = 0; c < C; c++) {
        /* f32 after each group: the bits do not depend on how many come at once */
        float running_mean = to_mean[c], running_var = to_var[c];
        for (int64_t k = c; k < G * C; k += C) {
            const double var = fmax(0, 1 / ((double)rstd[k] * rstd[k]) - l->attr->batchnorm_update.eps);
            running_mean = (float)(running_mean + m * (mean[k] - (double)running_mean));
            running_var = (float)(running_var + m * (var * unbiased - running_var));
        }
        to_mean[c] = running_mean;
        to_var[c] = running_var;
    }
}

CPU_KERNEL_WORK(BATCHNORM, batchnorm);
CPU_KERNEL_WORK(BATCHNORM_BWD, batchnorm_bwd);
CPU_KERNEL_DENSE_WORK(BATCHNORM_FROZEN, batchnorm_frozen);
CPU_KERNEL_WORK(BATCHNORM_FROZEN_BWD, batchnorm_frozen_bwd);
CPU_KERNEL(BATCHNORM_UPDATE, batchnorm_update);

/*
 * mask_loss.c: focal and dice loss of candidate masks against targets stored as bits, and its
 * gradient, each in one pass over the logits (formulas: graph/masks.c).
 *
 * A tile of a row's target bits is expanded to floats once and used for all candidates. Every term
 * of a logit x is computed from e = exp(-|x|), which neither overflows nor cancels: sigmoid(|x|) =
 * 1/(1+e), sigmoid(-|x|) = e/(1+e), log(1 + e^-z) = max(-z, 0) + log(1+e).
 *
 * Sums are f32 within a tile and double beyond. Masks are partitioned into blocks of rows,
 * independently of the threads, and blocks are added in order: bit-identical for any thread count.
 *
 *     work: double [N,blocks,K,SUMS]
 */
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/math.h"
#include "cpu/rows.h"
#include "graph/sizes.h"

enum { ROWS = 16 };
enum { FOCAL, SUM_P, SUM_PG, SUM_G, BOTH, PREDICTED, SUMS };

enum { IN_LOGITS, IN_IOU, IN_BITS, IN_VALID, IN_INV_COUNT, IN_STATS, IN_DLOSS };

static bool masks_fit(const struct query *q)
{
    return tensor_is_fast(q->in[IN_LOGITS]) && tensor_is_fast(q->in[IN_IOU]) && tensor_is(q->in[IN_BITS], DT_U8) &&
           tensor_is(q->in[IN_VALID], DT_I32);
}

static int64_t blocks_of(int64_t h) { return (h + ROWS - 1) / ROWS; }

/* --- a pixel ------------------------------------------------------------------------------ */

/* The values of a logit x with target g, 0 or 1, that forward and backward need. */
struct pixel {
    float p;       /* sigmoid(x) */
    float q, rest; /* sigmoid(-z), 1 - q, where z is x inside the mask and -x outside */
    float S;       /* log(1 + e^-z) */
    float weight;  /* q^gamma */
    float slope;   /* p (1 - p) */
};

static inline __attribute__((always_inline)) struct pixel pixel_of(float x, float g, float gamma, bool square)
{
    const float e = exp_fast(-float_of_bits(bits_of_float(x) & 0x7fffffffu));
    const float large = 1.0f / (1.0f + e), small = e * large, log1pe = log1p_unit(e), z = g > 0.5f ? x : -x;
    struct pixel y;
    y.p = x > 0.0f ? large : small;
    y.q = z > 0.0f ? small : large;
    y.rest = z > 0.0f ? large : small;
    y.S = (z > 0.0f ? 0.0f : -z) + log1pe;
    /* log q = -log(1 + e^z) */
    y.weight = square ? y.q * y.q : exp_fast(-gamma * ((z > 0.0f ? z : 0.0f) + log1pe));
    y.slope = large * small;
    return y;
}

/* Expands bits from `at`, a multiple of 8, to floats; writes up to a multiple of 8 of them. */
static void expand_bits(float g[TILE], const uint8_t *row, int64_t at, int n)
{
    for (int i = 0; i < (n + 7) / 8; i++)
        for (int j = 0; j < 8; j++) g[8 * i + j] = (float)(row[at / 8 + i] >> j & 1);
}

/* --- forward -------------------------------------------------------------------------------- */

static bool mask_loss_match(const struct query *q)
{
    return masks_fit(q) && tensor_is(q->out[0], DT_F32) && tensor_is(q->out[1], DT_F32);
}

static uint64_t mask_loss_workspace(const struct query *q)
{
    const int64_t *n = q->in[IN_LOGITS]->dim;
    return (uint64_t)(n[0] * blocks_of(n[2]) * n[1] * SUMS) * sizeof(double);
}

struct alphas {
    float off, on; /* weights of background and mask */
};

static struct alphas alphas_of(const union attr *a)
{
    return (struct alphas){a->mask_loss.alpha_both ? a->mask_loss.alpha : 1 - a->mask_loss.alpha, a->mask_loss.alpha};
}

/* Adds one tile of one candidate to its sums. `square` is a constant after inlining. */
static inline __attribute__((always_inline)) void add_tile(double *sums, const float *x, const float *g, int n,
                                                           struct alphas a, float gamma, bool square)
{
    float focal = 0, p = 0, pg = 0, all = 0, both = 0, predicted = 0;
#pragma omp simd reduction(+ : focal, p, pg, all, both, predicted)
    for (int i = 0; i < n; i++) {
        struct pixel y = pixel_of(x[i], g[i], gamma, square);
        float on = x[i] > 0.0f ? 1.0f : 0.0f;
        focal += (a.off + g[i] * (a.on - a.off)) * y.weight * y.S;
        p += y.p;
        pg += y.p * g[i];
        all += g[i];
        both += on * g[i];
        predicted += on;
    }
    sums[FOCAL] += (double)focal, sums[SUM_P] += (double)p, sums[SUM_PG] += (double)pg;
    sums[SUM_G] += (double)all, sums[BOTH] += (double)both, sums[PREDICTED] += (double)predicted;
}

static void add_square(double *sums, const float *x, const float *g, int n, struct alphas a)
{
    add_tile(sums, x, g, n, a, 2, true);
}

static void add_power(double *sums, const float *x, const float *g, int n, struct alphas a, float gamma)
{
    add_tile(sums, x, g, n, a, gamma, false);
}

/* The valid rows and columns of mask n, within the map. A mask that only pads a chunk has
 * negative values, which become 0. */
struct area {
    int64_t rows, columns;
};

static struct area area_of(const struct launch *l, int64_t n)
{
    const int32_t *valid = (const int32_t *)l->in[IN_VALID].data + 2 * n;
    return (struct area){max_i64(0, min_i64(valid[0], l->in[IN_LOGITS].dim[2])),
                         max_i64(0, min_i64(valid[1], l->in[IN_LOGITS].dim[3]))};
}

static const uint8_t *bits_row(const struct launch *l, int64_t n, int64_t y)
{
    const struct operand *bits = &l->in[IN_BITS];
    return (const uint8_t *)bits->data + (n * bits->dim[1] + y) * bits->dim[2];
}

/* Rows y0 .. of mask n, all candidates. */
static void block_sums(const struct launch *l, int64_t n, int64_t y0, double *sums)
{
    const struct operand *logits = &l->in[IN_LOGITS];
    const int64_t K = logits->dim[1], h = logits->dim[2], w = logits->dim[3];
    const struct area v = area_of(l, n);
    const struct alphas a = alphas_of(l->attr);
    const float gamma = l->attr->mask_loss.gamma;
    memset(sums, 0, (size_t)(K * SUMS) * sizeof *sums);
    for (int64_t y = y0; y < min_i64(y0 + ROWS, v.rows); y++)
        for (int64_t x = 0; x < v.columns; x += TILE) {
            float g[TILE], scratch[TILE];
            int count = row_tile(v.columns - x);
            expand_bits(g, bits_row(l, n, y), x, count);
            for (int64_t k = 0; k < K; k++) {
                const float *tile = row_view(logits, ((n * K + k) * h + y) * w + x, count, scratch);
                if (gamma == 2) add_square(sums + k * SUMS, tile, g, count, a);
                else add_power(sums + k * SUMS, tile, g, count, a, gamma);
            }
        }
}

/* Mask n from its blocks' sums: its loss, and the statistics for the backward. */
static double mask_finish(const struct launch *l, int64_t n, double *sums, float stats[MASK_STATS])
{
    const union attr *a = l->attr;
    const int64_t K = l->in[IN_LOGITS].dim[1], blocks = blocks_of(l->in[IN_LOGITS].dim[2]);
    const struct area v = area_of(l, n);
    const double smooth = (double)a->mask_loss.smooth;
    stats[0] = -1, stats[1] = stats[2] = stats[3] = 0;
    if (v.rows * v.columns <= 0) return 0;
    for (int64_t i = K * SUMS; i < blocks * K * SUMS; i++) sums[i % (K * SUMS)] += sums[i];
    double best = 0, iou = 0;
    for (int64_t k = 0; k < K; k++) {
        const double *s = sums + k * SUMS, A = 2 * s[SUM_PG] + smooth, B = s[SUM_P] + s[SUM_G] + smooth;
        double loss = (double)a->mask_loss.focal * s[FOCAL] / (double)(v.rows * v.columns) +
                      (double)a->mask_loss.dice * (1 - A / B);
        if (k && !(loss < best)) continue;
        double either = s[SUM_G] + s[PREDICTED] - s[BOTH];
        best = loss, iou = s[BOTH] / (either < 1 ? 1 : either);
        stats[0] = (float)k, stats[1] = (float)A, stats[2] = (float)B, stats[3] = (float)iou;
    }
    const struct operand *predicted = &l->in[IN_IOU];
    double off = dtype_load(predicted->data, predicted->dtype, n * K + (int64_t)stats[0]) - iou;
    return best + (double)a->mask_loss.iou * off * off;
}

static void mask_loss_run(const struct launch *l)
{
    const struct operand *logits = &l->in[IN_LOGITS];
    const float inv_count = *(const float *)l->in[IN_INV_COUNT].data;
    const int64_t N = logits->dim[0], K = logits->dim[1], blocks = blocks_of(logits->dim[2]);
    double *sums = l->work, total = 0;
#pragma omp parallel for num_threads(l->threads) schedule(static)
    for (int64_t i = 0; i < N * blocks; i++) block_sums(l, i / blocks, i % blocks * ROWS, sums + i * K * SUMS);
    for (int64_t n = 0; n < N; n++)
        total += mask_finish(l, n, sums + n * blocks * K * SUMS, (float *)l->out[1].data + n * MASK_STATS);
    *(float *)l->out[0].data = (float)(total * (double)inv_count);
}

/* --- backward ------------------------------------------------------------------------------- */

static bool mask_loss_bwd_match(const struct query *q)
{
    return masks_fit(q) && tensor_is(q->in[IN_STATS], DT_F32) && tensor_is(q->in[IN_DLOSS], DT_F32) &&
           tensor_is_fast(q->out[0]) && tensor_is_fast(q->out[1]);
}

/* The values that all pixels of a mask share: the factors of focal, and the derivative of dice by
 * p. */
struct slopes {
    struct alphas focal, dice;
    float gamma;
};

static struct slopes slopes_of(const struct launch *l, int64_t n, const float stats[MASK_STATS], double factor)
{
    const union attr *a = l->attr;
    const struct area v = area_of(l, n);
    const struct alphas alpha = alphas_of(a);
    double A = (double)stats[1], B = (double)stats[2];
    double focal = (double)a->mask_loss.focal * factor / (double)(v.rows * v.columns),
           dice = (double)a->mask_loss.dice * factor / (B * B);
    return (struct slopes){.focal = {(float)(focal * (double)alpha.off), (float)(focal * (double)alpha.on)},
                           .dice = {(float)(dice * A), (float)(dice * (A - 2 * B))}, .gamma = a->mask_loss.gamma};
}

static inline __attribute__((always_inline)) void slope_tile(float *d, const float *x, const float *g, int n,
                                                             struct slopes s, float gamma, bool square)
{
#pragma omp simd
    for (int i = 0; i < n; i++) {
        struct pixel y = pixel_of(x[i], g[i], gamma, square);
        float focal = y.weight * (gamma * y.rest * y.S + y.q);
        float toward = g[i] > 0.5f ? -s.focal.on : s.focal.off;
        d[i] = toward * focal + (s.dice.off + g[i] * (s.dice.on - s.dice.off)) * y.slope;
    }
}

static void slope_square(float *d, const float *x, const float *g, int n, struct slopes s)
{
    slope_tile(d, x, g, n, s, 2, true);
}
static void slope_power(float *d, const float *x, const float *g, int n, struct slopes s)
{
    slope_tile(d, x, g, n, s, s.gamma, false);
}

/* The first `valid` pixels of row y of mask n, from element `at` on; zeros after them. */
static void row_slopes(const struct launch *l, int64_t n, int64_t y, int64_t at, int64_t valid, struct slopes s)
{
    const struct operand *logits = &l->in[IN_LOGITS], *out = &l->out[0];
    const int64_t w = logits->dim[3];
    for (int64_t x = 0; x < w; x += TILE) {
        float g[TILE], in[TILE], result[TILE];
        int count = row_tile(w - x), live = (int)max_i64(0, min_i64(valid - x, count));
        float *d = row_place(out, at + x, result);
        if (live) {
            const float *from = row_view(logits, at + x, live, in);
            expand_bits(g, bits_row(l, n, y), x, live);
            if (s.gamma == 2) slope_square(d, from, g, live, s);
            else slope_power(d, from, g, live, s);
        }
        memset(d + live, 0, (size_t)(count - live) * sizeof *d);
        row_store(out, at + x, count, d);
    }
}

/* Candidate k of mask n: the gradient of its predicted IoU. */
static void iou_slope(const struct launch *l, int64_t n, int64_t k, const float stats[MASK_STATS], double factor)
{
    const struct operand *iou = &l->in[IN_IOU], *out = &l->out[1];
    int64_t at = n * l->in[IN_LOGITS].dim[1] + k;
    double off = (float)k == stats[0] ? dtype_load(iou->data, iou->dtype, at) - (double)stats[3] : 0;
    dtype_store(out->data, out->dtype, at, 2 * (double)l->attr->mask_loss.iou * off * factor);
}

static void mask_loss_bwd_run(const struct launch *l)
{
    const struct operand *logits = &l->in[IN_LOGITS];
    const float *stats = l->in[IN_STATS].data;
    const double factor =
        (double)*(const float *)l->in[IN_INV_COUNT].data * (double)*(const float *)l->in[IN_DLOSS].data;
    const int64_t N = logits->dim[0], K = logits->dim[1], h = logits->dim[2], w = logits->dim[3];
    for (int64_t i = 0; i < N * K; i++) iou_slope(l, i / K, i % K, stats + i / K * MASK_STATS, factor);
#pragma omp parallel for num_threads(l->threads) schedule(static)
    for (int64_t i = 0; i < N * K * h; i++) {
        int64_t y = i % h, k = i / h % K, n = i / h / K;
        const struct area v = area_of(l, n);
        bool live = stats[n * MASK_STATS] == (float)k && y < v.rows;
        struct slopes s = live ? slopes_of(l, n, stats + n * MASK_STATS, factor) : (struct slopes){.gamma = 2};
        row_slopes(l, n, y, i * w, live ? v.columns : 0, s);
    }
}

CPU_KERNEL_WORK(MASK_LOSS, mask_loss);
CPU_KERNEL(MASK_LOSS_BWD, mask_loss_bwd);

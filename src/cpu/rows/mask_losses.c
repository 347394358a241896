/*
 * mask_losses.c: MASK_LOSS, focal and dice loss of candidate masks against targets stored as bits,
 * STRUCTURE_LOSS, cross-entropy and IoU of masks whose pixels weigh more near the edges of the
 * target, and their gradients, each in one pass over the logits (formulas: graph/vjp.c;
 * arithmetic: base/mask_terms.h).
 *
 * Sums are f32 within a tile and double beyond. Masks are partitioned into blocks of rows,
 * independently of the threads, and blocks are added in order: bit-identical for any thread count.
 *
 *     work: double [N,blocks,K,MASK_SUMS], [N,blocks,STRUCTURE_SUMS]
 */
#include "base/mask_terms.h"
#include "cpu/cpu.h"
#include "cpu/math.h"
#include "graph/sizes.h"

/* --- pixels and targets ----------------------------------------------------------------------- */

static inline __attribute__((always_inline)) struct mask_pixel pixel_of(float x, float g)
{
    const float e = exp_fast(-float_of_bits(bits_of_float(x) & 0x7fffffffu));
    return mask_pixel_of(x, g > 0.5f, e, 1.0f / (1.0f + e), log1p_unit(e));
}

/* The target of mask n: its bits, and its valid rows and columns within the map. */
struct target {
    const uint8_t *bits;
    int64_t row_bytes, rows, columns;
};

static struct target target_of(const struct launch *l, int bits_input, int valid_input, int64_t n)
{
    const struct operand *bits = &l->in[bits_input], *logits = &l->in[0];
    const int32_t *valid = (const int32_t *)l->in[valid_input].data + 2 * n;
    return (struct target){(const uint8_t *)bits->data + n * bits->dim[1] * bits->dim[2], bits->dim[2],
                           mask_valid(valid[0], logits->dim[2]), mask_valid(valid[1], logits->dim[3])};
}

static bool targets_fit(const struct query *q, int bits, int valid)
{
    return tensor_is_fast(q->in[0]) && tensor_is(q->in[bits], DT_U8) && tensor_is(q->in[valid], DT_I32);
}

/* --- MASK_LOSS --------------------------------------------------------------------------------
 *
 * A tile of a row's target bits is expanded to floats once and used for all candidates. */

enum { MASK_ROWS = 16 };
enum { IN_LOGITS, IN_IOU, IN_BITS, IN_VALID, IN_INV_COUNT, IN_STATS, IN_DLOSS };

static struct target mask_target(const struct launch *l, int64_t n) { return target_of(l, IN_BITS, IN_VALID, n); }

/* Returns q^gamma. `square` is a constant after inlining. */
static inline __attribute__((always_inline)) float weight_of(struct mask_pixel y, float gamma, bool square)
{
    return square ? y.q * y.q : exp_fast(-gamma * mask_minus_log_q(&y));
}

/* Expands bits of row y from x, a multiple of 8, to floats; writes up to a multiple of 8 of
 * them. */
static void expand_bits(float g[TILE], const struct target *t, int64_t y, int64_t x, int n)
{
    const uint8_t *row = t->bits + y * t->row_bytes + x / 8;
    for (int i = 0; i < (n + 7) / 8; i++)
        for (int j = 0; j < 8; j++) g[8 * i + j] = (float)(row[i] >> j & 1);
}

static bool mask_loss_match(const struct query *q)
{
    return targets_fit(q, IN_BITS, IN_VALID) && tensor_is_fast(q->in[IN_IOU]) && tensor_is(q->out[0], DT_F32) &&
           tensor_is(q->out[1], DT_F32);
}

static uint64_t mask_loss_workspace(const struct query *q)
{
    const int64_t *n = q->in[IN_LOGITS]->dim;
    return (uint64_t)(n[0] * ceil_div(n[2], MASK_ROWS) * n[1] * MASK_SUMS) * sizeof(double);
}

struct alphas {
    float off, on; /* weights of background and mask */
};

static struct alphas alphas_of(const union attr *a)
{
    return (struct alphas){a->mask_loss.alpha_both ? a->mask_loss.alpha : 1 - a->mask_loss.alpha, a->mask_loss.alpha};
}

/* Adds one tile of one candidate to its sums. */
static inline __attribute__((always_inline)) void mask_add(double *sums, const float *x, const float *g, int n,
                                                           struct alphas a, float gamma, bool square)
{
    float focal = 0, p = 0, pg = 0, all = 0, both = 0, predicted = 0;
#pragma omp simd reduction(+ : focal, p, pg, all, both, predicted)
    for (int i = 0; i < n; i++) {
        struct mask_pixel y = pixel_of(x[i], g[i]);
        float on = x[i] > 0.0f ? 1.0f : 0.0f;
        focal += (a.off + g[i] * (a.on - a.off)) * weight_of(y, gamma, square) * y.S;
        p += y.p;
        pg += y.p * g[i];
        all += g[i];
        both += on * g[i];
        predicted += on;
    }
    const float part[MASK_SUMS] = {[MASK_FOCAL] = focal, [MASK_P] = p,       [MASK_PG] = pg,
                                   [MASK_G] = all,       [MASK_BOTH] = both, [MASK_ON] = predicted};
    for (int i = 0; i < MASK_SUMS; i++) sums[i] += (double)part[i];
}

/* Sums rows y0 .. of mask n, all candidates. */
static void mask_block(const struct launch *l, int64_t n, int64_t y0, double *sums)
{
    const struct operand *logits = &l->in[IN_LOGITS];
    const int64_t K = logits->dim[1], h = logits->dim[2], w = logits->dim[3];
    const struct target t = mask_target(l, n);
    const struct alphas a = alphas_of(l->attr);
    const float gamma = l->attr->mask_loss.gamma;
    memset(sums, 0, (size_t)(K * MASK_SUMS) * sizeof *sums);
    for (int64_t y = y0; y < min_i64(y0 + MASK_ROWS, t.rows); y++)
        for (int64_t x = 0; x < t.columns; x += TILE) {
            float g[TILE], scratch[TILE];
            int count = row_tile(t.columns - x);
            expand_bits(g, &t, y, x, count);
            for (int64_t k = 0; k < K; k++) {
                const float *tile = row_view(logits, ((n * K + k) * h + y) * w + x, count, scratch);
                if (gamma == 2) mask_add(sums + k * MASK_SUMS, tile, g, count, a, 2, true);
                else mask_add(sums + k * MASK_SUMS, tile, g, count, a, gamma, false);
            }
        }
}

/* Returns the loss of mask n from its blocks' sums, and the statistics for the backward. */
static double mask_finish(const struct launch *l, int64_t n, double *sums, float stats[MASK_STATS])
{
    const union attr *a = l->attr;
    const int64_t K = l->in[IN_LOGITS].dim[1], blocks = ceil_div(l->in[IN_LOGITS].dim[2], MASK_ROWS);
    const struct target t = mask_target(l, n);
    stats[0] = -1, stats[1] = stats[2] = stats[3] = 0;
    if (t.rows * t.columns <= 0) return 0;
    for (int64_t i = K * MASK_SUMS; i < blocks * K * MASK_SUMS; i++) sums[i % (K * MASK_SUMS)] += sums[i];
    double best = 0, iou = 0, A, B;
    for (int64_t k = 0; k < K; k++) {
        const double *s = sums + k * MASK_SUMS;
        const double loss = mask_candidate(s, a->mask_loss.focal, a->mask_loss.dice, a->mask_loss.smooth,
                                           (double)(t.rows * t.columns), &A, &B);
        if (k && !(loss < best)) continue;
        best = loss, iou = mask_iou(s[MASK_BOTH], s[MASK_ON], s[MASK_G]);
        stats[0] = (float)k, stats[1] = (float)A, stats[2] = (float)B, stats[3] = (float)iou;
    }
    const struct operand *predicted = &l->in[IN_IOU];
    const double off = dtype_load(predicted->data, predicted->dtype, n * K + (int64_t)stats[0]) - iou;
    return best + (double)a->mask_loss.iou * off * off;
}

static void mask_loss_run(const struct launch *l)
{
    const struct operand *logits = &l->in[IN_LOGITS];
    const float inv_count = *(const float *)l->in[IN_INV_COUNT].data;
    const int64_t N = logits->dim[0], blocks = ceil_div(logits->dim[2], MASK_ROWS), each = logits->dim[1] * MASK_SUMS;
    double *sums = l->work, total = 0;
#pragma omp parallel for num_threads(l->threads) schedule(static)
    for (int64_t i = 0; i < N * blocks; i++) mask_block(l, i / blocks, i % blocks * MASK_ROWS, sums + i * each);
    for (int64_t n = 0; n < N; n++)
        total += mask_finish(l, n, sums + n * blocks * each, (float *)l->out[1].data + n * MASK_STATS);
    *(float *)l->out[0].data = (float)(total * (double)inv_count);
}

static bool mask_loss_bwd_match(const struct query *q)
{
    return targets_fit(q, IN_BITS, IN_VALID) && tensor_is_fast(q->in[IN_IOU]) && tensor_is(q->in[IN_STATS], DT_F32) &&
           tensor_is(q->in[IN_DLOSS], DT_F32) && tensor_is_fast(q->out[0]) && tensor_is_fast(q->out[1]);
}

static inline __attribute__((always_inline)) void mask_slope(float *d, const float *x, const float *g, int n,
                                                             struct mask_slopes s, float gamma, bool square)
{
#pragma omp simd
    for (int i = 0; i < n; i++) {
        struct mask_pixel y = pixel_of(x[i], g[i]);
        float focal = weight_of(y, gamma, square) * (gamma * y.rest * y.S + y.q);
        float toward = g[i] > 0.5f ? -s.focal_on : s.focal_off;
        d[i] = toward * focal + (s.dice_off + g[i] * (s.dice_on - s.dice_off)) * y.slope;
    }
}

/* Writes row y of a mask, from element `at` on: the first `valid` pixels, and zeros after them. */
static void mask_row_slopes(const struct launch *l, const struct target *t, int64_t y, int64_t at, int64_t valid,
                            struct mask_slopes s)
{
    const struct operand *logits = &l->in[IN_LOGITS], *out = &l->out[0];
    const int64_t w = logits->dim[3];
    const float gamma = l->attr->mask_loss.gamma;
    for (int64_t x = 0; x < w; x += TILE) {
        float g[TILE], in[TILE], result[TILE];
        int count = row_tile(w - x), live = (int)max_i64(0, min_i64(valid - x, count));
        float *d = row_place(out, at + x, result);
        if (live) {
            const float *from = row_view(logits, at + x, live, in);
            expand_bits(g, t, y, x, live);
            if (gamma == 2) mask_slope(d, from, g, live, s, 2, true);
            else mask_slope(d, from, g, live, s, gamma, false);
        }
        memset(d + live, 0, (size_t)(count - live) * sizeof *d);
        row_store(out, at + x, count, d);
    }
}

/* Writes the gradient of the predicted IoU of candidate k of mask n. */
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
    const struct alphas a = alphas_of(l->attr);
    const float *stats = l->in[IN_STATS].data;
    const double factor =
        (double)*(const float *)l->in[IN_INV_COUNT].data * (double)*(const float *)l->in[IN_DLOSS].data;
    const int64_t N = logits->dim[0], K = logits->dim[1], h = logits->dim[2], w = logits->dim[3];
    for (int64_t i = 0; i < N * K; i++) iou_slope(l, i / K, i % K, stats + i / K * MASK_STATS, factor);
#pragma omp parallel for num_threads(l->threads) schedule(static)
    for (int64_t i = 0; i < N * K * h; i++) {
        const int64_t y = i % h, k = i / h % K, n = i / h / K;
        const struct target t = mask_target(l, n);
        const bool live = stats[n * MASK_STATS] == (float)k && y < t.rows;
        struct mask_slopes s = {0};
        if (live)
            s = mask_slopes_of(l->attr->mask_loss.focal, l->attr->mask_loss.dice, a.off, a.on, stats + n * MASK_STATS,
                               (double)(t.rows * t.columns), factor);
        mask_row_slopes(l, &t, y, i * w, live ? t.columns : 0, s);
    }
}

CPU_KERNEL_WORK(MASK_LOSS, mask_loss);
CPU_KERNEL(MASK_LOSS_BWD, mask_loss_bwd);

/* --- STRUCTURE_LOSS ---------------------------------------------------------------------------
 *
 * A column's window count goes from row to row: the row that enters the window is added, the one
 * that leaves it is subtracted. A block of rows begins with the rows of its first window. */

enum { STRUCTURE_ROWS = 64 };
enum { AT_LOGITS, AT_BITS, AT_VALID, AT_INV_COUNT, AT_STATS, AT_WEIGHTS, AT_DLOSS };

static struct target structure_target(const struct launch *l, int64_t n)
{
    struct target t = target_of(l, AT_BITS, AT_VALID, n);
    if (!t.columns) t.rows = 0;
    return t;
}

/* The window counts of `n` columns from x on. */
struct windows {
    const struct target *t;
    int64_t x;
    int size, n, count[TILE];
};

static void windows_add(struct windows *w, int64_t y, int sign)
{
    if (y < 0 || y >= w->t->rows) return;
    const uint8_t *row = w->t->bits + y * w->t->row_bytes;
    for (int i = 0; i < w->n; i++) w->count[i] += sign * edge_count(row, w->x + i, w->t->columns, w->size / 2);
}

/* Counts the windows around row y; windows_next then goes from row y to the next. */
static void windows_begin(struct windows *w, const struct target *t, int size, int64_t x, int n, int64_t y)
{
    *w = (struct windows){.t = t, .size = size, .x = x, .n = n};
    for (int64_t k = y - size / 2; k <= y + size / 2; k++) windows_add(w, k, 1);
}

static void windows_next(struct windows *w, int64_t y)
{
    windows_add(w, y + w->size / 2 + 1, 1);
    windows_add(w, y - w->size / 2, -1);
}

/* Writes the target g and the distance d of a row's pixels. */
static void put_edges(const struct windows *w, int64_t y, float g[TILE], float d[TILE])
{
    const uint8_t *row = w->t->bits + y * w->t->row_bytes;
    for (int i = 0; i < w->n; i++) {
        g[i] = (float)(row[(w->x + i) / 8] >> (w->x + i) % 8 & 1);
        d[i] = edge_distance(w->count[i], w->size, g[i]);
    }
}

static void structure_add(double *sums, const float *x, const float *g, const float *d, int n, const union attr *a)
{
    const float edge = a->structure_loss.edge, bce_edge = a->structure_loss.bce_edge;
    float bce = 0, weights = 0, intersection = 0, sum = 0, mask = 0, both = 0, predicted = 0;
#pragma omp simd reduction(+ : bce, weights, intersection, sum, mask, both, predicted)
    for (int i = 0; i < n; i++) {
        const struct mask_pixel y = pixel_of(x[i], g[i]);
        const float w = 1.0f + bce_edge * d[i], v = 1.0f + edge * d[i], on = x[i] > 0.0f ? 1.0f : 0.0f;
        bce += w * y.S;
        weights += w;
        intersection += v * y.p * g[i];
        sum += v * (y.p + g[i]);
        mask += g[i];
        both += on * g[i];
        predicted += on;
    }
    const float part[STRUCTURE_SUMS] = {[STRUCTURE_BCE] = bce, [STRUCTURE_WEIGHTS] = weights,
                                        [STRUCTURE_SHARED] = intersection, [STRUCTURE_SUM] = sum,
                                        [STRUCTURE_G] = mask, [STRUCTURE_BOTH] = both, [STRUCTURE_ON] = predicted};
    for (int i = 0; i < STRUCTURE_SUMS; i++) sums[i] += (double)part[i];
}

static void structure_block(const struct launch *l, int64_t n, int64_t y0, double *sums)
{
    const struct operand *logits = &l->in[AT_LOGITS];
    const struct target t = structure_target(l, n);
    const int64_t h = logits->dim[2], w = logits->dim[3], end = min_i64(y0 + STRUCTURE_ROWS, t.rows);
    memset(sums, 0, STRUCTURE_SUMS * sizeof *sums);
    for (int64_t x = 0; x < t.columns && y0 < end; x += TILE) {
        float g[TILE], d[TILE], scratch[TILE];
        struct windows at;
        windows_begin(&at, &t, l->attr->structure_loss.size, x, row_tile(t.columns - x), y0);
        for (int64_t y = y0; y < end; windows_next(&at, y), y++) {
            put_edges(&at, y, g, d);
            structure_add(sums, row_view(logits, (n * h + y) * w + x, at.n, scratch), g, d, at.n, l->attr);
        }
    }
}

/* Returns the loss of mask n from its blocks' sums, and writes what the backward needs. */
static double structure_mask(const struct launch *l, int64_t n, int64_t blocks, double *sums)
{
    float *stats = (float *)l->out[1].data + n * MASK_STATS, *weights = (float *)l->out[2].data + n;
    stats[0] = -1, stats[1] = stats[2] = stats[3] = *weights = 0;
    if (!structure_target(l, n).rows) return 0;
    for (int64_t i = STRUCTURE_SUMS; i < blocks * STRUCTURE_SUMS; i++) sums[i % STRUCTURE_SUMS] += sums[i];
    return structure_finish(sums, l->attr->structure_loss.smooth, stats, weights);
}

static bool structure_loss_match(const struct query *q)
{
    return targets_fit(q, AT_BITS, AT_VALID) && tensor_is(q->out[0], DT_F32) && tensor_is(q->out[1], DT_F32) &&
           tensor_is(q->out[2], DT_F32);
}

static uint64_t structure_loss_workspace(const struct query *q)
{
    const int64_t *n = q->in[AT_LOGITS]->dim;
    return (uint64_t)(n[0] * ceil_div(n[2], STRUCTURE_ROWS) * STRUCTURE_SUMS) * sizeof(double);
}

static void structure_loss_run(const struct launch *l)
{
    const int64_t N = l->in[AT_LOGITS].dim[0], blocks = ceil_div(l->in[AT_LOGITS].dim[2], STRUCTURE_ROWS);
    double *sums = l->work, total = 0;
#pragma omp parallel for num_threads(l->threads) schedule(static)
    for (int64_t i = 0; i < N * blocks; i++)
        structure_block(l, i / blocks, i % blocks * STRUCTURE_ROWS, sums + i * STRUCTURE_SUMS);
    for (int64_t n = 0; n < N; n++) total += structure_mask(l, n, blocks, sums + n * blocks * STRUCTURE_SUMS);
    *(float *)l->out[0].data = (float)(total * (double)*(const float *)l->in[AT_INV_COUNT].data);
}

static bool structure_loss_bwd_match(const struct query *q)
{
    return targets_fit(q, AT_BITS, AT_VALID) && tensor_is(q->in[AT_STATS], DT_F32) &&
           tensor_is(q->in[AT_WEIGHTS], DT_F32) && tensor_is(q->in[AT_DLOSS], DT_F32) && tensor_is_fast(q->out[0]);
}

static void structure_slope(float *to, const float *x, const float *g, const float *d, int n,
                            struct structure_slopes s, const union attr *a)
{
    const float edge = a->structure_loss.edge, bce_edge = a->structure_loss.bce_edge;
#pragma omp simd
    for (int i = 0; i < n; i++) {
        const struct mask_pixel y = pixel_of(x[i], g[i]);
        const float bce = (1.0f + bce_edge * d[i]) * (g[i] > 0.5f ? -y.q : y.q) * s.bce;
        to[i] = bce + (1.0f + edge * d[i]) * (g[i] > 0.5f ? s.inside : s.outside) * y.slope;
    }
}

/* Writes rows y0 .. of mask n, `columns` columns from x on; zeros outside of the valid area. */
static void structure_block_slopes(const struct launch *l, int64_t n, int64_t y0, int64_t x, int columns, double factor)
{
    const struct operand *logits = &l->in[AT_LOGITS], *out = &l->out[0];
    const struct target t = structure_target(l, n);
    const int64_t h = logits->dim[2], w = logits->dim[3];
    const int live = (int)max_i64(0, min_i64(t.columns - x, columns));
    struct structure_slopes s = {0};
    struct windows at;
    if (t.rows)
        s = structure_slopes_of((const float *)l->in[AT_STATS].data + n * MASK_STATS,
                                ((const float *)l->in[AT_WEIGHTS].data)[n], factor);
    if (live) windows_begin(&at, &t, l->attr->structure_loss.size, x, live, y0);
    for (int64_t y = y0; y < min_i64(y0 + STRUCTURE_ROWS, h); y++) {
        float g[TILE], d[TILE], in[TILE], result[TILE];
        const int64_t first = (n * h + y) * w + x;
        const int used = y < t.rows ? live : 0;
        float *to = row_place(out, first, result);
        if (used) {
            put_edges(&at, y, g, d);
            structure_slope(to, row_view(logits, first, used, in), g, d, used, s, l->attr);
            windows_next(&at, y);
        }
        memset(to + used, 0, (size_t)(columns - used) * sizeof *to);
        row_store(out, first, columns, to);
    }
}

static void structure_loss_bwd_run(const struct launch *l)
{
    const struct operand *logits = &l->in[AT_LOGITS];
    const double factor =
        (double)*(const float *)l->in[AT_INV_COUNT].data * (double)*(const float *)l->in[AT_DLOSS].data;
    const int64_t N = logits->dim[0], w = logits->dim[3], blocks = ceil_div(logits->dim[2], STRUCTURE_ROWS);
#pragma omp parallel for num_threads(l->threads) schedule(static)
    for (int64_t i = 0; i < N * blocks; i++)
        for (int64_t x = 0; x < w; x += TILE)
            structure_block_slopes(l, i / blocks, i % blocks * STRUCTURE_ROWS, x, row_tile(w - x), factor);
}

CPU_KERNEL_WORK(STRUCTURE_LOSS, structure_loss);
CPU_KERNEL(STRUCTURE_LOSS_BWD, structure_loss_bwd);

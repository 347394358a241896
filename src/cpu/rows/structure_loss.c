/*
 * structure_loss.c: cross-entropy and IoU of masks whose pixels weigh more near the edges of the
 * target, and the gradient (formulas: graph/masks.c), each in one pass over the logits.
 *
 * A column's window count goes from row to row: the row that enters the window is added, the one
 * that leaves it is subtracted. A block of rows begins with the rows of its first window.
 *
 * Sums are f32 within a tile and double beyond; blocks do not depend on the threads and are added
 * in order.
 *
 *     work: double [N,blocks,SUMS]
 */
#include <string.h>

#include "base/edges.h"
#include "cpu/cpu.h"
#include "cpu/math.h"
#include "cpu/rows.h"
#include "graph/sizes.h"

enum { ROWS = 64 };
enum { BCE, WEIGHTS, INTERSECTION, SUM, IN_MASK, BOTH, PREDICTED, SUMS };

enum { IN_LOGITS, IN_BITS, IN_VALID, IN_INV_COUNT, IN_STATS, IN_WEIGHTS, IN_DLOSS };

static int64_t blocks_of(int64_t h) { return (h + ROWS - 1) / ROWS; }

/* A mask of a launch: its valid rows and columns, 0 where it only pads a chunk. */
struct target {
    const uint8_t *bits;
    int64_t row_bytes, rows, columns;
    int size;
};

static struct target target_of(const struct launch *l, int64_t n)
{
    const struct operand *bits = &l->in[IN_BITS], *logits = &l->in[IN_LOGITS];
    const int32_t *valid = (const int32_t *)l->in[IN_VALID].data + 2 * n;
    struct target t = {(const uint8_t *)bits->data + n * bits->dim[1] * bits->dim[2], bits->dim[2],
                       max_i64(0, min_i64(valid[0], logits->dim[2])), max_i64(0, min_i64(valid[1], logits->dim[3])),
                       l->attr->structure_loss.size};
    if (!t.columns) t.rows = 0;
    return t;
}

/* --- edges ------------------------------------------------------------------------------------ */

/* The window counts of `n` columns from x on. */
struct windows {
    const struct target *t;
    int64_t x;
    int n, count[TILE];
};

static void add_row(struct windows *w, int64_t y, int sign)
{
    if (y < 0 || y >= w->t->rows) return;
    const uint8_t *row = w->t->bits + y * w->t->row_bytes;
    for (int i = 0; i < w->n; i++) w->count[i] += sign * edge_count(row, w->x + i, w->t->columns, w->t->size / 2);
}

/* The windows around row y; then those of the row after y. */
static void windows_begin(struct windows *w, const struct target *t, int64_t x, int n, int64_t y)
{
    *w = (struct windows){.t = t, .x = x, .n = n};
    for (int64_t k = y - t->size / 2; k <= y + t->size / 2; k++) add_row(w, k, 1);
}

static void windows_next(struct windows *w, int64_t y)
{
    add_row(w, y + w->t->size / 2 + 1, 1);
    add_row(w, y - w->t->size / 2, -1);
}

/* The target g and the distance d of a row's pixels. */
static void put_edges(const struct windows *w, int64_t y, float g[TILE], float d[TILE])
{
    const uint8_t *row = w->t->bits + y * w->t->row_bytes;
    for (int i = 0; i < w->n; i++) {
        g[i] = (float)(row[(w->x + i) / 8] >> (w->x + i) % 8 & 1);
        d[i] = edge_distance(w->count[i], w->t->size, g[i]);
    }
}

/* --- a pixel ---------------------------------------------------------------------------------- */

struct pixel {
    float p, q, S; /* sigmoid(x); 1 - the probability of the right class, and minus its logarithm */
    float slope;   /* p (1 - p) */
};

static inline __attribute__((always_inline)) struct pixel pixel_of(float x, float g)
{
    const float e = exp_fast(-float_of_bits(bits_of_float(x) & 0x7fffffffu));
    const float large = 1.0f / (1.0f + e), small = e * large, z = g > 0.5f ? x : -x;
    return (struct pixel){x > 0.0f ? large : small, z > 0.0f ? small : large, (z > 0.0f ? 0.0f : -z) + log1p_unit(e),
                          large * small};
}

/* --- forward ---------------------------------------------------------------------------------- */

static void add_tile(double *sums, const float *x, const float *g, const float *d, int n, const union attr *a)
{
    const float edge = a->structure_loss.edge, bce_edge = a->structure_loss.bce_edge;
    float bce = 0, weights = 0, intersection = 0, sum = 0, mask = 0, both = 0, predicted = 0;
#pragma omp simd reduction(+ : bce, weights, intersection, sum, mask, both, predicted)
    for (int i = 0; i < n; i++) {
        const struct pixel y = pixel_of(x[i], g[i]);
        const float w = 1.0f + bce_edge * d[i], v = 1.0f + edge * d[i], on = x[i] > 0.0f ? 1.0f : 0.0f;
        bce += w * y.S;
        weights += w;
        intersection += v * y.p * g[i];
        sum += v * (y.p + g[i]);
        mask += g[i];
        both += on * g[i];
        predicted += on;
    }
    const float part[SUMS] = {[BCE] = bce,      [WEIGHTS] = weights, [INTERSECTION] = intersection, [SUM] = sum,
                              [IN_MASK] = mask, [BOTH] = both,       [PREDICTED] = predicted};
    for (int i = 0; i < SUMS; i++) sums[i] += (double)part[i];
}

static void block_sums(const struct launch *l, int64_t n, int64_t y0, double *sums)
{
    const struct operand *logits = &l->in[IN_LOGITS];
    const struct target t = target_of(l, n);
    const int64_t h = logits->dim[2], w = logits->dim[3], end = min_i64(y0 + ROWS, t.rows);
    memset(sums, 0, SUMS * sizeof *sums);
    for (int64_t x = 0; x < t.columns && y0 < end; x += TILE) {
        float g[TILE], d[TILE], scratch[TILE];
        struct windows at;
        windows_begin(&at, &t, x, row_tile(t.columns - x), y0);
        for (int64_t y = y0; y < end; windows_next(&at, y), y++) {
            put_edges(&at, y, g, d);
            add_tile(sums, row_view(logits, (n * h + y) * w + x, at.n, scratch), g, d, at.n, l->attr);
        }
    }
}

/* Mask n from its blocks' sums: its loss, and what the backward needs. */
static double mask_finish(const struct launch *l, int64_t n, double *sums)
{
    const int64_t blocks = blocks_of(l->in[IN_LOGITS].dim[2]);
    const double smooth = (double)l->attr->structure_loss.smooth;
    float *stats = (float *)l->out[1].data + n * MASK_STATS, *weights = (float *)l->out[2].data + n;
    stats[0] = -1, stats[1] = stats[2] = stats[3] = *weights = 0;
    if (!target_of(l, n).rows) return 0;
    for (int64_t i = SUMS; i < blocks * SUMS; i++) sums[i % SUMS] += sums[i];
    const double A = sums[INTERSECTION] + smooth, B = sums[SUM] - sums[INTERSECTION] + smooth,
                 either = sums[IN_MASK] + sums[PREDICTED] - sums[BOTH];
    stats[0] = 0, stats[1] = (float)A, stats[2] = (float)B, stats[3] = (float)(sums[BOTH] / (either < 1 ? 1 : either));
    *weights = (float)sums[WEIGHTS];
    return sums[BCE] / sums[WEIGHTS] + 1 - A / B;
}

static bool targets_fit(const struct query *q)
{
    return tensor_is_fast(q->in[IN_LOGITS]) && tensor_is(q->in[IN_BITS], DT_U8) && tensor_is(q->in[IN_VALID], DT_I32);
}

static bool structure_loss_match(const struct query *q)
{
    return targets_fit(q) && tensor_is(q->out[0], DT_F32) && tensor_is(q->out[1], DT_F32) &&
           tensor_is(q->out[2], DT_F32);
}

static uint64_t structure_loss_workspace(const struct query *q)
{
    const int64_t *n = q->in[IN_LOGITS]->dim;
    return (uint64_t)(n[0] * blocks_of(n[2]) * SUMS) * sizeof(double);
}

static void structure_loss_run(const struct launch *l)
{
    const int64_t N = l->in[IN_LOGITS].dim[0], blocks = blocks_of(l->in[IN_LOGITS].dim[2]);
    double *sums = l->work, total = 0;
#pragma omp parallel for num_threads(l->threads) schedule(static)
    for (int64_t i = 0; i < N * blocks; i++) block_sums(l, i / blocks, i % blocks * ROWS, sums + i * SUMS);
    for (int64_t n = 0; n < N; n++) total += mask_finish(l, n, sums + n * blocks * SUMS);
    *(float *)l->out[0].data = (float)(total * (double)*(const float *)l->in[IN_INV_COUNT].data);
}

/* --- backward --------------------------------------------------------------------------------- */

static bool structure_loss_bwd_match(const struct query *q)
{
    return targets_fit(q) && tensor_is(q->in[IN_STATS], DT_F32) && tensor_is(q->in[IN_WEIGHTS], DT_F32) &&
           tensor_is(q->in[IN_DLOSS], DT_F32) && tensor_is_fast(q->out[0]);
}

/* What all pixels of a mask share: the factor of the cross-entropy, and of the IoU outside and
 * inside the mask. */
struct slopes {
    float bce, outside, inside, edge, bce_edge;
};

static struct slopes slopes_of(const struct launch *l, int64_t n)
{
    const float *stats = (const float *)l->in[IN_STATS].data + n * MASK_STATS;
    const double factor =
        (double)*(const float *)l->in[IN_INV_COUNT].data * (double)*(const float *)l->in[IN_DLOSS].data;
    const double A = (double)stats[1], B = (double)stats[2],
                 weights = (double)((const float *)l->in[IN_WEIGHTS].data)[n];
    return (struct slopes){(float)(factor / weights), (float)(factor * A / (B * B)), (float)(-factor / B),
                           l->attr->structure_loss.edge, l->attr->structure_loss.bce_edge};
}

static void slope_tile(float *to, const float *x, const float *g, const float *d, int n, struct slopes s)
{
#pragma omp simd
    for (int i = 0; i < n; i++) {
        const struct pixel y = pixel_of(x[i], g[i]);
        const float bce = (1.0f + s.bce_edge * d[i]) * (g[i] > 0.5f ? -y.q : y.q) * s.bce;
        to[i] = bce + (1.0f + s.edge * d[i]) * (g[i] > 0.5f ? s.inside : s.outside) * y.slope;
    }
}

/* Rows y0 .. of mask n, `columns` columns from x on; zeros outside of the valid area. */
static void block_slopes(const struct launch *l, int64_t n, int64_t y0, int64_t x, int columns)
{
    const struct operand *logits = &l->in[IN_LOGITS], *out = &l->out[0];
    const struct target t = target_of(l, n);
    const int64_t h = logits->dim[2], w = logits->dim[3];
    const int live = (int)max_i64(0, min_i64(t.columns - x, columns));
    const struct slopes s = t.rows ? slopes_of(l, n) : (struct slopes){0};
    struct windows at;
    if (live) windows_begin(&at, &t, x, live, y0);
    for (int64_t y = y0; y < min_i64(y0 + ROWS, h); y++) {
        float g[TILE], d[TILE], in[TILE], result[TILE];
        const int64_t first = (n * h + y) * w + x;
        const int used = y < t.rows ? live : 0;
        float *to = row_place(out, first, result);
        if (used) {
            put_edges(&at, y, g, d);
            slope_tile(to, row_view(logits, first, used, in), g, d, used, s);
            windows_next(&at, y);
        }
        memset(to + used, 0, (size_t)(columns - used) * sizeof *to);
        row_store(out, first, columns, to);
    }
}

static void structure_loss_bwd_run(const struct launch *l)
{
    const struct operand *logits = &l->in[IN_LOGITS];
    const int64_t N = logits->dim[0], w = logits->dim[3], blocks = blocks_of(logits->dim[2]);
#pragma omp parallel for num_threads(l->threads) schedule(static)
    for (int64_t i = 0; i < N * blocks; i++)
        for (int64_t x = 0; x < w; x += TILE) block_slopes(l, i / blocks, i % blocks * ROWS, x, row_tile(w - x));
}

CPU_KERNEL_WORK(STRUCTURE_LOSS, structure_loss);
CPU_KERNEL(STRUCTURE_LOSS_BWD, structure_loss_bwd);

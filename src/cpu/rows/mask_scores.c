/*
 * mask_scores.c: SCORE_LOSS, the losses of what a model predicts about its masks, and STABILITY, by
 * which one of several masks is chosen; and their reference.
 *
 * Both count pixels of masks: counts are whole numbers and have no order, so all kernels get the
 * same ones. Terms of a mask are double, and masks are added in order.
 *
 *     work: SCORE_LOSS int64 [N,K,COUNTS]
 */
#include <math.h>

#include "base/mask_terms.h"
#include "cpu/cpu.h"
#include "cpu/reference/ref.h"

enum { IN_LOGITS, IN_SCORES, IN_OBJECT, IN_BITS, IN_VALID, IN_INV_COUNT };
enum { COUNT_TARGET, COUNT_ON, COUNT_BOTH, COUNTS };

/* --- SCORE_LOSS ----------------------------------------------------------------------------- */

struct counted {
    int64_t rows, columns; /* valid ones */
};

static struct counted valid_of(const struct launch *l, int64_t n)
{
    const struct operand *x = &l->in[IN_LOGITS];
    const int32_t *valid = (const int32_t *)l->in[IN_VALID].data + 2 * n;
    return (struct counted){mask_valid(valid[0], x->dim[2]), mask_valid(valid[1], x->dim[3])};
}

/* Counts the valid pixels of mask n in the target, in candidate k, and in both. */
static void count_pixels(const struct launch *l, int64_t n, int64_t k, int64_t counts[COUNTS])
{
    const struct operand *x = &l->in[IN_LOGITS], *bits = &l->in[IN_BITS];
    const int64_t K = x->dim[1], h = x->dim[2], w = x->dim[3];
    const struct counted v = valid_of(l, n);
    memset(counts, 0, COUNTS * sizeof *counts);
    for (int64_t y = 0; y < v.rows; y++) {
        const uint8_t *row = (const uint8_t *)bits->data + (n * h + y) * bits->dim[2];
        for (int64_t at = 0; at < v.columns; at += TILE) {
            float scratch[TILE];
            const int count = row_tile(v.columns - at);
            const float *tile = row_view(x, ((n * K + k) * h + y) * w + at, count, scratch);
            for (int i = 0; i < count; i++) {
                const int inside = row[(at + i) / 8] >> (at + i) % 8 & 1, on = tile[i] > 0;
                counts[COUNT_TARGET] += inside;
                counts[COUNT_ON] += on;
                counts[COUNT_BOTH] += inside & on;
            }
        }
    }
}

/* Returns the loss of mask n from its candidates' counts; writes its slopes and its valid area. */
static double finish(const struct launch *l, int64_t n, const int64_t *counts)
{
    const struct operand *scores = &l->in[IN_SCORES], *object = &l->in[IN_OBJECT], *slopes = &l->out[1];
    const int64_t K = scores->dim[1];
    const struct counted v = valid_of(l, n);
    const int32_t *valid = (const int32_t *)l->in[IN_VALID].data + 2 * n;
    const bool any = v.rows * v.columns > 0, present = any && counts[COUNT_TARGET];
    const double each = (double)l->attr->score_loss.iou / (double)K, weight = (double)l->attr->score_loss.object;
    double total = 0;
    for (int64_t k = 0; k < K; k++) {
        const int64_t *c = counts + k * COUNTS;
        const double off = dtype_load(scores->data, scores->dtype, n * K + k) -
                           mask_iou((double)c[COUNT_BOTH], (double)c[COUNT_ON], (double)c[COUNT_TARGET]);
        if (present) total += each * fabs(off);
        dtype_store(slopes->data, slopes->dtype, n * (K + 1) + k, present && off != 0 ? copysign(each, off) : 0);
    }
    const double x = dtype_load(object->data, object->dtype, n), z = present ? x : -x;
    const double e = exp(-fabs(z)), wrong = (z > 0 ? e : 1) / (1 + e); /* sigmoid(-z) */
    if (any) total += weight * ((z > 0 ? 0 : -z) + log1p(e));
    dtype_store(slopes->data, slopes->dtype, n * (K + 1) + K, any ? weight * (present ? -wrong : wrong) : 0);
    for (int i = 0; i < 2; i++) ((int32_t *)l->out[2].data)[2 * n + i] = present ? valid[i] : 0;
    return total;
}

static bool score_loss_match(const struct query *q)
{
    return tensor_is_fast(q->in[IN_LOGITS]) && tensor_is_fast(q->in[IN_SCORES]) && tensor_is_fast(q->in[IN_OBJECT]) &&
           tensor_is(q->in[IN_BITS], DT_U8) && tensor_is(q->in[IN_VALID], DT_I32) && tensor_is(q->out[0], DT_F32) &&
           tensor_is(q->out[1], DT_F32);
}

static uint64_t score_loss_workspace(const struct query *q)
{
    const int64_t *n = q->in[IN_LOGITS]->dim;
    return (uint64_t)(n[0] * n[1] * COUNTS) * sizeof(int64_t);
}

static void score_loss_run(const struct launch *l)
{
    const int64_t N = l->in[IN_LOGITS].dim[0], K = l->in[IN_LOGITS].dim[1];
    int64_t *counts = l->work;
    double total = 0;
#pragma omp parallel for num_threads(l->threads) schedule(static)
    for (int64_t i = 0; i < N * K; i++) count_pixels(l, i / K, i % K, counts + i * COUNTS);
    for (int64_t n = 0; n < N; n++) total += finish(l, n, counts + n * K * COUNTS);
    *(float *)l->out[0].data = (float)(total * (double)*(const float *)l->in[IN_INV_COUNT].data);
}

static void ref_score_loss(const struct launch *l)
{
    const struct operand *x = &l->in[IN_LOGITS], *bits = &l->in[IN_BITS];
    const int64_t N = x->dim[0], K = x->dim[1], h = x->dim[2], w = x->dim[3];
    double total = 0;
    for (int64_t n = 0; n < N; n++) {
        const struct counted v = valid_of(l, n);
        const double each = (double)l->attr->score_loss.iou / (double)K, weight = (double)l->attr->score_loss.object;
        int64_t all = 0;
        for (int64_t i = 0; i < v.rows * v.columns; i++)
            all += (int)ref_get(bits, (n * h + i / v.columns) * bits->dim[2] + i % v.columns / 8) >>
                       i % v.columns % 8 & 1;
        for (int64_t k = 0; k < K; k++) {
            int64_t on = 0, both = 0;
            for (int64_t i = 0; i < v.rows * v.columns; i++) {
                const int64_t row = i / v.columns, column = i % v.columns;
                const bool above = ref_get(x, ((n * K + k) * h + row) * w + column) > 0;
                on += above;
                both += above && ((int)ref_get(bits, (n * h + row) * bits->dim[2] + column / 8) >> column % 8 & 1);
            }
            const double iou = (double)both / fmax((double)(all + on - both), 1),
                         off = ref_get(&l->in[IN_SCORES], n * K + k) - iou;
            if (all) total += each * fabs(off);
            ref_put(&l->out[1], n * (K + 1) + k, !all || off == 0 ? 0 : off > 0 ? each : -each);
        }
        const double o = ref_get(&l->in[IN_OBJECT], n), p = 1 / (1 + exp(-o)), target = all > 0;
        const bool any = v.rows * v.columns > 0;
        if (any) total += weight * (fmax(o, 0) - o * target + log1p(exp(-fabs(o))));
        ref_put(&l->out[1], n * (K + 1) + K, any ? weight * (p - target) : 0);
        for (int i = 0; i < 2; i++) ref_put(&l->out[2], 2 * n + i, all ? ref_get(&l->in[IN_VALID], 2 * n + i) : 0);
    }
    ref_put(&l->out[0], 0, total * ref_get(&l->in[IN_INV_COUNT], 0));
}

CPU_KERNEL_WORK(SCORE_LOSS, score_loss);
REF_KERNEL(SCORE_LOSS, score_loss);

/* --- STABILITY ------------------------------------------------------------------------------- */

/* Returns the score of the first candidate: of `above` pixels above -delta, `sure` are above
 * delta. */
static double first_score(const union attr *a, int64_t sure, int64_t above)
{
    return !above || (float)sure / (float)above >= a->stability.threshold ? 2 : -1;
}

static bool stability_match(const struct query *q)
{
    return tensor_is_fast(q->in[0]) && tensor_is_fast(q->in[1]) && tensor_is_fast(q->out[0]);
}

static void stability_run(const struct launch *l)
{
    const struct operand *x = &l->in[0], *scores = &l->in[1], *y = &l->out[0];
    const int64_t N = x->dim[0], K = x->dim[1], pixels = x->dim[2] * x->dim[3];
    const float delta = l->attr->stability.delta;
#pragma omp parallel for num_threads(l->threads) schedule(static)
    for (int64_t n = 0; n < N; n++) {
        int64_t sure = 0, above = 0;
        for (int64_t at = 0; at < pixels; at += TILE) {
            float scratch[TILE];
            const int count = row_tile(pixels - at);
            const float *tile = row_view(x, n * K * pixels + at, count, scratch);
            for (int i = 0; i < count; i++) sure += tile[i] > delta, above += tile[i] > -delta;
        }
        dtype_store(y->data, y->dtype, n * K, first_score(l->attr, sure, above));
        for (int64_t k = 1; k < K; k++)
            dtype_store(y->data, y->dtype, n * K + k, dtype_load(scores->data, scores->dtype, n * K + k));
    }
}

static void ref_stability(const struct launch *l)
{
    const struct operand *x = &l->in[0];
    const int64_t N = x->dim[0], K = x->dim[1], pixels = x->dim[2] * x->dim[3];
    const double delta = (double)l->attr->stability.delta;
    for (int64_t n = 0; n < N; n++) {
        int64_t sure = 0, above = 0;
        for (int64_t i = 0; i < pixels; i++) {
            sure += ref_get(x, n * K * pixels + i) > delta;
            above += ref_get(x, n * K * pixels + i) > -delta;
        }
        ref_put(&l->out[0], n * K, first_score(l->attr, sure, above));
        for (int64_t k = 1; k < K; k++) ref_put(&l->out[0], n * K + k, ref_get(&l->in[1], n * K + k));
    }
}

CPU_KERNEL(STABILITY, stability);
REF_KERNEL(STABILITY, stability);

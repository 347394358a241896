/*
 * scores.cu: SCORE_LOSS, the losses of what a model predicts about its masks, and STABILITY, by
 * which one of several masks is chosen (cpu/rows/mask_scores.c has the rules).
 *
 *     block (candidate of a mask) --> counts f64 [N,K,SCORE_COUNTS] --> mask, loss
 *
 * Counts are whole numbers below 2^53 and have no order; the terms of a mask are double, and masks
 * are added as in masks.cu.
 */
#include "cuda/device/kernel.cuh"
#include "cuda/maps/mask_blocks.h"

/* --- SCORE_LOSS ------------------------------------------------------------------------------- */

enum { COUNT_TARGET, COUNT_ON, COUNT_BOTH };

struct score_task {
    typed_ptr logits, scores, object; /* [N,K,h,w], [N,K], [N,1] */
    const uint8_t *bits;              /* [N,h,row_bytes] */
    const int32_t *valid;             /* [N,2] */
    const float *inv_count;
    int64_t N, K, h, w, row_bytes;
    float iou, weight;                /* of the scores, of the object */
    float *slopes;                    /* [N,K+1] */
    int32_t *within;                  /* [N,2] */
};

static __global__ void counts_kernel(double *work, score_task t)
{
    const int64_t at = blockIdx.x, n = at / t.K;
    const int64_t rows = mask_valid(t.valid[2 * n], t.h), columns = mask_valid(t.valid[2 * n + 1], t.w);
    double sum[SCORE_COUNTS] = {};
    for (int64_t i = threadIdx.x; i < rows * columns; i += BLOCK) {
        const int64_t y = i / columns, x = i - y * columns;
        const int inside = t.bits[(n * t.h + y) * t.row_bytes + x / 8] >> (x % 8) & 1,
                  on = element(t.logits, (at * t.h + y) * t.w + x) > 0.0f;
        sum[COUNT_TARGET] += inside;
        sum[COUNT_ON] += on;
        sum[COUNT_BOTH] += inside & on;
    }
    for (int s = 0; s < SCORE_COUNTS; s++) {
        const double total = block_sum_double(sum[s]);
        if (threadIdx.x == 0) work[at * SCORE_COUNTS + s] = total;
    }
}

/* Returns the loss of mask n; writes its slopes and its valid area. */
static __device__ double finish_mask(const double *counts, const score_task &t, int64_t n)
{
    const int64_t pixels = mask_valid(t.valid[2 * n], t.h) * mask_valid(t.valid[2 * n + 1], t.w);
    const double *c = counts + n * t.K * SCORE_COUNTS, each = (double)t.iou / (double)t.K, weight = (double)t.weight;
    const bool any = pixels > 0, present = any && c[COUNT_TARGET] > 0;
    double total = 0;
    for (int64_t k = 0; k < t.K; k++, c += SCORE_COUNTS) {
        const double off = (double)element(t.scores, n * t.K + k) -
                           mask_iou(c[COUNT_BOTH], c[COUNT_ON], c[COUNT_TARGET]);
        if (present) total += each * fabs(off);
        t.slopes[n * (t.K + 1) + k] = present && off != 0 ? (float)copysign(each, off) : 0.0f;
    }
    const double x = (double)element(t.object, n), z = present ? x : -x, e = exp(-fabs(z)),
                 wrong = (z > 0 ? e : 1) / (1 + e); /* sigmoid(-z) */
    if (any) total += weight * ((z > 0 ? 0 : -z) + log1p(e));
    t.slopes[n * (t.K + 1) + t.K] = any ? (float)(weight * (present ? -wrong : wrong)) : 0.0f;
    for (int i = 0; i < 2; i++) t.within[2 * n + i] = present ? t.valid[2 * n + i] : 0;
    return total;
}

static __global__ void finish_kernel(float *loss, const double *counts, score_task t)
{
    double total = 0;
    for (int64_t n = threadIdx.x; n < t.N; n += BLOCK) total += finish_mask(counts, t, n);
    total = block_sum_double(total);
    if (threadIdx.x == 0) *loss = (float)(total * (double)*t.inv_count);
}

static int launch_score_loss(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0];
    const score_task t = {typed_of(x), typed_of(&l->in[1]), typed_of(&l->in[2]), in_as<uint8_t>(l, 3),
                          in_as<int32_t>(l, 4), in_as<float>(l, 5), x->dim[0], x->dim[1], x->dim[2], x->dim[3],
                          l->in[3].dim[2], l->attr->score_loss.iou, l->attr->score_loss.object, out_as<float>(l, 1),
                          out_as<int32_t>(l, 2)};
    CHECK(l->work_bytes >= (uint64_t)(t.N * t.K * SCORE_COUNTS) * sizeof(double),
          "plan_masks.c and scores.cu disagree");
    counts_kernel<<<(unsigned)(t.N * t.K), BLOCK, 0, stream_of(l)>>>((double *)l->work, t);
    finish_kernel<<<1, BLOCK, 0, stream_of(l)>>>(out_as<float>(l, 0), (const double *)l->work, t);
    TRY_CUDA(cudaGetLastError());
    return PL_OK;
}

/* --- STABILITY -------------------------------------------------------------------------------- */

static __global__ void stability_kernel(typed_ptr y, typed_ptr logits, typed_ptr scores, int64_t K, int64_t pixels,
                                        float delta, float threshold)
{
    const int64_t n = blockIdx.x;
    double sure = 0, above = 0;
    for (int64_t i = threadIdx.x; i < pixels; i += BLOCK) {
        const float x = element(logits, n * K * pixels + i);
        sure += x > delta;
        above += x > -delta;
    }
    sure = block_sum_double(sure);
    above = block_sum_double(above);
    for (int64_t k = threadIdx.x; k < K; k += BLOCK) {
        const float first = above == 0 || (float)sure / (float)above >= threshold ? 2.0f : -1.0f;
        const float value[1] = {k ? element(scores, n * K + k) : first};
        store<1>(y, n * K + k, value);
    }
}

static int launch_stability(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0];
    const auto *a = &l->attr->stability;
    stability_kernel<<<(unsigned)x->dim[0], BLOCK, 0, stream_of(l)>>>(typed_of(&l->out[0]), typed_of(x),
                                                                     typed_of(&l->in[1]), x->dim[1],
                                                                     x->dim[2] * x->dim[3], a->delta, a->threshold);
    TRY_CUDA(cudaGetLastError());
    return PL_OK;
}

CUDA_KERNEL(cuda_score_loss, .launch = launch_score_loss);
CUDA_KERNEL(cuda_stability, .launch = launch_stability);

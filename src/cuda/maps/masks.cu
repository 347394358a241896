/*
 * masks.cu: focal and dice loss of candidate masks against a bit mask, and its gradient, each in a
 * single pass over the logits (formulas: graph/vjp.c; arithmetic: base/mask_terms.h).
 *
 *     block (rows of a mask, candidate of a mask) --> f64 [N,K,blocks,SUMS] --> mask, loss
 *
 * The bits of a pack of V pixels are in one byte: V divides 8, and the row's width.
 */
#include "cuda/device/kernel.cuh"
#include "cuda/maps/mask_blocks.h"

struct mask_task {
    const void *logits;          /* [N,K,h,w], of `type` */
    enum store type;
    typed_ptr iou;               /* [N,K] */
    const uint8_t *bits;         /* [N,h,row_bytes] */
    const int32_t *valid;        /* [N,2] */
    const float *inv_count;
    int64_t N, K, h, w, row_bytes;
    float focal, dice, weight, alpha_on, alpha_off, gamma, smooth; /* weight: of the IoU term */
};

static mask_task task_of(const struct launch *l)
{
    const struct operand *x = &l->in[0];
    const auto &a = l->attr->mask_loss;
    return {x->data, store_of(x->dtype), typed_of(&l->in[1]), in_as<uint8_t>(l, 2), in_as<int32_t>(l, 3),
            in_as<float>(l, 4), x->dim[0], x->dim[1], x->dim[2], x->dim[3], l->in[2].dim[2], a.focal, a.dice, a.iou,
            a.alpha, a.alpha_both ? a.alpha : 1 - a.alpha, a.gamma, a.smooth};
}

constexpr int STATS = 4;

/* --- a pixel --------------------------------------------------------------------------------- */

template <typename T> static __device__ inline float log1p_of(float e) { return __logf(1.0f + e); }
template <> __device__ inline float log1p_of<float>(float e) { return log1pf(e); }

template <typename T> static __device__ inline mask_pixel pixel_of(float x, bool g)
{
    const float e = exp_of<T>(-fabsf(x));
    return mask_pixel_of(x, g, e, __frcp_rn(1.0f + e), log1p_of<T>(e));
}

/* Returns q^gamma. */
template <typename T> static __device__ inline float weight_of(const mask_pixel &p, float gamma)
{
    return gamma == 2.0f ? p.q * p.q : exp_of<T>(-gamma * mask_minus_log_q(&p));
}

/* A block's part of a mask: rows from y0 on of candidate k. */
struct area {
    int64_t n, k, rows, columns; /* rows, columns: valid */
    int y0, y1;                  /* within the grid of h rows */
};

static __device__ area area_of(const mask_task &t)
{
    area a;
    a.n = blockIdx.y / t.K;
    a.k = blockIdx.y % t.K;
    a.rows = mask_valid(t.valid[2 * a.n], t.h);
    a.columns = mask_valid(t.valid[2 * a.n + 1], t.w);
    a.y0 = blockIdx.x * MASK_ROWS;
    a.y1 = a.y0 + MASK_ROWS < t.h ? a.y0 + MASK_ROWS : (int)t.h;
    return a;
}

/* Returns the bits of pixels x .. x + V - 1 of a row, x a multiple of V, the first pixel in the
 * lowest bit. */
static __device__ inline unsigned bits_at(const mask_task &t, int64_t n, int64_t y, int64_t x)
{
    return (unsigned)t.bits[(n * t.h + y) * t.row_bytes + x / 8] >> (x % 8);
}

/* --- forward ---------------------------------------------------------------------------------- */

template <typename T, int V> static __global__ void sums_kernel(double *work, mask_task t)
{
    __shared__ float meet[BLOCK / WARP][MASK_SUMS];
    const area a = area_of(t);
    const int packs = (int)(t.w / V);
    const int bottom = a.rows < a.y1 ? (int)a.rows : a.y1, items = bottom > a.y0 ? (bottom - a.y0) * packs : 0;
    const T *logits = static_cast<const T *>(t.logits) + (a.n * t.K + a.k) * t.h * t.w;
    float sum[MASK_SUMS] = {};
    for (int item = threadIdx.x; item < items; item += BLOCK) {
        const int64_t y = a.y0 + item / packs, x0 = (int64_t)(item % packs) * V;
        if (x0 >= a.columns) continue;
        float x[V];
        load<V>(x, logits + y * t.w + x0);
        const unsigned bits = bits_at(t, a.n, y, x0);
#pragma unroll
        for (int i = 0; i < V; i++) {
            if (x0 + i >= a.columns) continue;
            const bool g = bits >> i & 1, on = x[i] > 0.0f;
            const mask_pixel p = pixel_of<T>(x[i], g);
            sum[MASK_FOCAL] += (g ? t.alpha_on : t.alpha_off) * weight_of<T>(p, t.gamma) * p.S;
            sum[MASK_P] += p.p;
            sum[MASK_PG] += g ? p.p : 0.0f;
            sum[MASK_G] += g ? 1.0f : 0.0f;
            sum[MASK_BOTH] += on && g ? 1.0f : 0.0f;
            sum[MASK_ON] += on ? 1.0f : 0.0f;
        }
    }
#pragma unroll
    for (int s = 0; s < MASK_SUMS; s++) {
        for (int mask = WARP / 2; mask > 0; mask /= 2) sum[s] += __shfl_xor_sync(ALL_LANES, sum[s], mask);
        if (threadIdx.x % WARP == 0) meet[threadIdx.x / WARP][s] = sum[s];
    }
    __syncthreads();
    if (threadIdx.x >= MASK_SUMS) return;
    double total = 0;
    for (int w = 0; w < BLOCK / WARP; w++) total += (double)meet[w][threadIdx.x];
    work[((int64_t)blockIdx.y * gridDim.x + blockIdx.x) * MASK_SUMS + threadIdx.x] = total;
}

/* Computes mask n from the sums of its blocks: its loss, and the statistics for the backward. */
static __device__ double finish_mask(float *stats, const double *sums, const mask_task &t, int64_t n)
{
    const int64_t blocks = (t.h + MASK_ROWS - 1) / MASK_ROWS;
    const int64_t rows = mask_valid(t.valid[2 * n], t.h), columns = mask_valid(t.valid[2 * n + 1], t.w);
    double best = 0, A0 = 0, B0 = 0, iou = 0;
    int64_t chosen = -1;
    for (int64_t k = 0; k < t.K && rows * columns > 0; k++) {
        double s[MASK_SUMS] = {};
        for (int64_t b = 0; b < blocks; b++)
            for (int i = 0; i < MASK_SUMS; i++) s[i] += sums[((n * t.K + k) * blocks + b) * MASK_SUMS + i];
        double A, B;
        const double loss = mask_candidate(s, t.focal, t.dice, t.smooth, (double)(rows * columns), &A, &B);
        if (k && !(loss < best)) continue;
        chosen = k, best = loss, A0 = A, B0 = B, iou = mask_iou(s[MASK_BOTH], s[MASK_ON], s[MASK_G]);
    }
    stats[0] = (float)chosen, stats[1] = (float)A0, stats[2] = (float)B0, stats[3] = (float)iou;
    if (chosen < 0) return 0;
    const double off = (double)element(t.iou, n * t.K + chosen) - iou;
    return best + (double)t.weight * off * off;
}

/* Adds the losses in one block: a thread takes every 256th mask, then the threads' losses are added
 * in order. */
static __global__ void finish_kernel(float *loss, float *stats, const double *sums, mask_task t)
{
    double total = 0;
    for (int64_t n = threadIdx.x; n < t.N; n += BLOCK) total += finish_mask(stats + n * STATS, sums, t, n);
    total = block_sum_double(total);
    if (threadIdx.x == 0) *loss = (float)(total * (double)*t.inv_count);
}

static dim3 grid_of(const mask_task &t) { return dim3((unsigned)mask_blocks(t.h), (unsigned)(t.N * t.K)); }

/* Computes the mask loss; stats f32 [N,4]. */
static int launch_mask_loss(const struct launch *l, struct error *e)
{
    const mask_task t = task_of(l);
    double *work = (double *)l->work;
    TRY_CUDA(by_access(t.type, l->access, [&](auto zero, auto width) {
        sums_kernel<decltype(zero), decltype(width)::value><<<grid_of(t), BLOCK, 0, stream_of(l)>>>(work, t);
    }, t.logits));
    finish_kernel<<<1, BLOCK, 0, stream_of(l)>>>(out_as<float>(l, 0), out_as<float>(l, 1), work, t);
    TRY_CUDA(cudaGetLastError());
    return PL_OK;
}

/* --- backward --------------------------------------------------------------------------------- */

template <typename T, int V>
static __global__ void slopes_kernel(T *d, typed_ptr diou, const float *stats, const float *dloss, mask_task t)
{
    __shared__ mask_slopes s;
    const area a = area_of(t);
    const bool chosen = stats[a.n * STATS] == (float)a.k;
    if (threadIdx.x == 0) {
        const double factor = (double)*t.inv_count * (double)*dloss;
        if (chosen)
            s = mask_slopes_of(t.focal, t.dice, t.alpha_off, t.alpha_on, stats + a.n * STATS,
                               (double)(a.rows * a.columns), factor);
        if (blockIdx.x == 0) {
            const int64_t at = a.n * t.K + a.k;
            const double off = chosen ? (double)element(t.iou, at) - (double)stats[a.n * STATS + 3] : 0;
            const float value[1] = {(float)(2 * (double)t.weight * off * factor)};
            store<1>(diou, at, value);
        }
    }
    __syncthreads();
    const int packs = (int)(t.w / V), items = (a.y1 - a.y0) * packs;
    const int64_t base = (a.n * t.K + a.k) * t.h * t.w;
    const T *logits = static_cast<const T *>(t.logits) + base;
    for (int item = threadIdx.x; item < items; item += BLOCK) {
        const int64_t y = a.y0 + item / packs, x0 = (int64_t)(item % packs) * V;
        float x[V] = {};
        if (chosen && y < a.rows && x0 < a.columns) {
            load<V>(x, logits + y * t.w + x0);
            const unsigned bits = bits_at(t, a.n, y, x0);
#pragma unroll
            for (int i = 0; i < V; i++) {
                const bool g = bits >> i & 1;
                const mask_pixel p = pixel_of<T>(x[i], g);
                const float focal = weight_of<T>(p, t.gamma) * (t.gamma * p.rest * p.S + p.q);
                const float slope = (g ? -s.focal_on : s.focal_off) * focal + (g ? s.dice_on : s.dice_off) * p.slope;
                x[i] = x0 + i < a.columns ? slope : 0.0f;
            }
        }
        store<V>(d + base + y * t.w + x0, x);
    }
}

/* Computes the gradient, which may alias the logits. */
static int launch_mask_loss_bwd(const struct launch *l, struct error *e)
{
    const mask_task t = task_of(l);
    TRY_CUDA(by_access(t.type, l->access, [&](auto zero, auto width) {
        using T = decltype(zero);
        slopes_kernel<T, decltype(width)::value><<<grid_of(t), BLOCK, 0, stream_of(l)>>>(
            out_as<T>(l, 0), typed_of(&l->out[1]), in_as<float>(l, 5), in_as<float>(l, 6), t);
    }, l->out[0].data, t.logits));
    return PL_OK;
}

CUDA_KERNEL(cuda_mask_loss, .launch = launch_mask_loss);
CUDA_KERNEL(cuda_mask_loss_bwd, .launch = launch_mask_loss_bwd);

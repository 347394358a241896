/*
 * structure.cu: the structure loss and its gradient, each in one pass over the logits (formulas:
 * graph/vjp.c).
 *
 * A thread takes a column of a block's rows. It counts the target's bits in the window around its
 * first pixel, and then from row to row adds the row that enters the window and subtracts the one
 * that leaves it (base/mask_terms.h).
 *
 *     block (rows and columns of a mask) --> f64 [N,blocks,SUMS] --> mask, loss
 */
#include "cuda/device/kernel.cuh"
#include "cuda/maps/mask_blocks.h"

struct structure_task {
    const void *logits;          /* [N,1,h,w], of `type` */
    enum store type;
    const uint8_t *bits;         /* [N,h,row_bytes] */
    const int32_t *valid;        /* [N,2] */
    const float *inv_count;
    int64_t N, h, w, row_bytes;
    float edge, bce_edge, smooth;
    int size;
};

static structure_task task_of(const struct launch *l)
{
    const struct operand *x = &l->in[0];
    const auto &a = l->attr->structure_loss;
    return {x->data, store_of(x->dtype), in_as<uint8_t>(l, 1), in_as<int32_t>(l, 2), in_as<float>(l, 3), x->dim[0],
            x->dim[2], x->dim[3], l->in[1].dim[2], a.edge, a.bce_edge, a.smooth, a.size};
}

constexpr int STATS = 4;

/* --- edges ------------------------------------------------------------------------------------ */

/* A mask, and a thread's column of it. */
struct column {
    const uint8_t *bits;
    int64_t rows, columns; /* valid */
    int64_t n, x;
    int y0, y1;            /* within the grid of h rows */
    int count;             /* of the window around the current row */
};

static __device__ inline int row_count(const structure_task &t, const column &c, int64_t y)
{
    return y >= 0 && y < c.rows ? edge_count(c.bits + y * t.row_bytes, c.x, c.columns, t.size / 2) : 0;
}

static __device__ column column_of(const structure_task &t)
{
    column c;
    c.n = blockIdx.z;
    c.x = (int64_t)blockIdx.y * BLOCK + threadIdx.x;
    c.bits = t.bits + c.n * t.h * t.row_bytes;
    c.rows = mask_valid(t.valid[2 * c.n], t.h);
    c.columns = mask_valid(t.valid[2 * c.n + 1], t.w);
    c.y0 = blockIdx.x * STRUCTURE_ROWS;
    c.y1 = c.y0 + STRUCTURE_ROWS < t.h ? c.y0 + STRUCTURE_ROWS : (int)t.h;
    c.count = 0;
    if (c.x < c.columns && c.y0 < c.rows)
        for (int64_t y = c.y0 - t.size / 2; y <= c.y0 + t.size / 2; y++) c.count += row_count(t, c, y);
    return c;
}

static __device__ inline bool bit_at(const structure_task &t, const column &c, int64_t y)
{
    return c.bits[y * t.row_bytes + c.x / 8] >> (c.x % 8) & 1;
}

/* Goes from row y to the next. */
static __device__ inline void go_on(const structure_task &t, column &c, int64_t y)
{
    c.count += row_count(t, c, y + t.size / 2 + 1) - row_count(t, c, y - t.size / 2);
}

/* --- a pixel ---------------------------------------------------------------------------------- */

static __device__ inline mask_pixel pixel_of(float x, bool g)
{
    const float e = expf(-fabsf(x));
    return mask_pixel_of(x, g, e, __frcp_rn(1.0f + e), log1pf(e));
}

/* --- forward ---------------------------------------------------------------------------------- */

template <typename T> static __global__ void sums_kernel(double *work, structure_task t)
{
    __shared__ float meet[BLOCK / WARP][STRUCTURE_SUMS];
    column c = column_of(t);
    const T *logits = static_cast<const T *>(t.logits) + c.n * t.h * t.w + c.x;
    const int bottom = c.x >= c.columns ? c.y0 : c.rows < c.y1 ? (int)c.rows : c.y1;
    float sum[STRUCTURE_SUMS] = {};
    for (int64_t y = c.y0; y < bottom; go_on(t, c, y), y++) {
        float x[1];
        load<1>(x, logits + y * t.w);
        const bool g = bit_at(t, c, y), on = x[0] > 0.0f;
        const float d = edge_distance(c.count, t.size, g ? 1.0f : 0.0f), w = 1.0f + t.bce_edge * d,
                    v = 1.0f + t.edge * d;
        const mask_pixel p = pixel_of(x[0], g);
        sum[STRUCTURE_BCE] += w * p.S;
        sum[STRUCTURE_WEIGHTS] += w;
        sum[STRUCTURE_SHARED] += g ? v * p.p : 0.0f;
        sum[STRUCTURE_SUM] += v * (p.p + (g ? 1.0f : 0.0f));
        sum[STRUCTURE_G] += g ? 1.0f : 0.0f;
        sum[STRUCTURE_BOTH] += on && g ? 1.0f : 0.0f;
        sum[STRUCTURE_ON] += on ? 1.0f : 0.0f;
    }
#pragma unroll
    for (int s = 0; s < STRUCTURE_SUMS; s++) {
        for (int mask = WARP / 2; mask > 0; mask /= 2) sum[s] += __shfl_xor_sync(ALL_LANES, sum[s], mask);
        if (threadIdx.x % WARP == 0) meet[threadIdx.x / WARP][s] = sum[s];
    }
    __syncthreads();
    if (threadIdx.x >= STRUCTURE_SUMS) return;
    double total = 0;
    for (int w = 0; w < BLOCK / WARP; w++) total += (double)meet[w][threadIdx.x];
    work[(((int64_t)blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x) * STRUCTURE_SUMS + threadIdx.x] =
        total;
}

/* Finishes mask n from the sums of its blocks: its loss, and what the backward needs. */
static __device__ double finish_mask(float *stats, float *weights, const double *sums, const structure_task &t,
                                     int64_t n)
{
    const int64_t blocks = structure_blocks(t.h, t.w);
    const bool any = t.valid[2 * n] > 0 && t.valid[2 * n + 1] > 0;
    double s[STRUCTURE_SUMS] = {};
    stats[0] = -1, stats[1] = stats[2] = stats[3] = *weights = 0;
    if (!any) return 0;
    for (int64_t b = 0; b < blocks; b++)
        for (int i = 0; i < STRUCTURE_SUMS; i++) s[i] += sums[(n * blocks + b) * STRUCTURE_SUMS + i];
    return structure_finish(s, t.smooth, stats, weights);
}

/* Adds the losses in one block: a thread takes every 256th mask, then the threads' losses are added
 * in order. */
static __global__ void finish_kernel(float *loss, float *stats, float *weights, const double *sums, structure_task t)
{
    double total = 0;
    for (int64_t n = threadIdx.x; n < t.N; n += BLOCK) total += finish_mask(stats + n * STATS, weights + n, sums, t, n);
    total = block_sum_double(total);
    if (threadIdx.x == 0) *loss = (float)(total * (double)*t.inv_count);
}

static dim3 grid_of(const structure_task &t)
{
    return dim3((unsigned)((t.h + STRUCTURE_ROWS - 1) / STRUCTURE_ROWS), (unsigned)((t.w + BLOCK - 1) / BLOCK),
                (unsigned)t.N);
}

static_assert(BLOCK == STRUCTURE_COLUMNS, "a thread takes a column");

/* Computes the structure loss; stats f32 [N,4], weights f32 [N]. */
static int launch_structure_loss(const struct launch *l, struct error *e)
{
    const structure_task t = task_of(l);
    double *work = (double *)l->work;
    TRY_CUDA(by_type(t.type, [&](auto zero) {
        sums_kernel<decltype(zero)><<<grid_of(t), BLOCK, 0, stream_of(l)>>>(work, t);
    }));
    finish_kernel<<<1, BLOCK, 0, stream_of(l)>>>(out_as<float>(l, 0), out_as<float>(l, 1), out_as<float>(l, 2), work,
                                                 t);
    TRY_CUDA(cudaGetLastError());
    return PL_OK;
}

/* --- backward --------------------------------------------------------------------------------- */

template <typename T>
static __global__ void slopes_kernel(T *d, const float *stats, const float *weights, const float *dloss,
                                     structure_task t)
{
    column c = column_of(t);
    if (c.x >= t.w) return;
    const int64_t base = c.n * t.h * t.w + c.x;
    const T *logits = static_cast<const T *>(t.logits) + base;
    const structure_slopes s =
        structure_slopes_of(stats + c.n * STATS, weights[c.n], (double)*t.inv_count * (double)*dloss);
    for (int64_t y = c.y0; y < c.y1; y++) {
        float x[1] = {};
        if (y < c.rows && c.x < c.columns) {
            load<1>(x, logits + y * t.w);
            const bool g = bit_at(t, c, y);
            const float far = edge_distance(c.count, t.size, g ? 1.0f : 0.0f);
            const mask_pixel p = pixel_of(x[0], g);
            x[0] = (1.0f + t.bce_edge * far) * (g ? -p.q : p.q) * s.bce +
                   (1.0f + t.edge * far) * (g ? s.inside : s.outside) * p.slope;
            go_on(t, c, y);
        }
        store<1>(d + base + y * t.w, x);
    }
}

/* Computes the gradient, which may alias the logits. */
static int launch_structure_loss_bwd(const struct launch *l, struct error *e)
{
    const structure_task t = task_of(l);
    TRY_CUDA(by_type(t.type, [&](auto zero) {
        using T = decltype(zero);
        slopes_kernel<T><<<grid_of(t), BLOCK, 0, stream_of(l)>>>(out_as<T>(l, 0), in_as<float>(l, 4),
                                                                 in_as<float>(l, 5), in_as<float>(l, 6), t);
    }));
    return PL_OK;
}

CUDA_KERNEL(cuda_structure_loss, .launch = launch_structure_loss);
CUDA_KERNEL(cuda_structure_loss_bwd, .launch = launch_structure_loss_bwd);

/*
 * experts.cu: the rows of a mixture of experts in the order of their experts (EXPERT_ROWS,
 * DISPATCH), and back (COMBINE, COMBINE_BWD). The formulas: cpu/rows/experts.c.
 *
 * EXPERT_ROWS is a stable counting sort in two launches. count_kernel counts each block's choices
 * by expert. In place_kernel a block adds the counts of the blocks before it and those of the
 * experts before each, and its warps hand out the places in order:
 *
 *     place = choices of the experts before
 *           + choices of this expert in the blocks before, in the warps before, in the lanes before
 */
#include "cuda/device/kernel.cuh"

extern "C" {
#include "cuda/rows/expert_blocks.h"
}

/* --- EXPERT_ROWS ------------------------------------------------------------------------------ */

constexpr int EXPERT_WARPS = EXPERT_THREADS / WARP;

static __device__ inline int expert_of(int32_t index, int experts)
{
    return (unsigned)index < (unsigned)experts ? index : 0;
}

/* Writes counts [blocks, experts]. The order of the additions does not matter: they are
 * integers. */
static __global__ void count_kernel(int32_t *counts, const int32_t *index, int n, int each, int experts)
{
    __shared__ int count[EXPERTS_MOST];
    for (int e = threadIdx.x; e < experts; e += EXPERT_THREADS) count[e] = 0;
    __syncthreads();
    const int64_t begin = (int64_t)blockIdx.x * each, end = min(begin + each, (int64_t)n);
    for (int64_t i = begin + threadIdx.x; i < end; i += EXPERT_THREADS)
        atomicAdd(&count[expert_of(index[i], experts)], 1);
    __syncthreads();
    for (int e = threadIdx.x; e < experts; e += EXPERT_THREADS) counts[(int64_t)blockIdx.x * experts + e] = count[e];
}

/* Returns the sum of x over the threads up to this one; `total`: over all. All threads of the block
 * call it. */
static __device__ inline int running_sum(int x, int *partial, int &total)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    for (int far = 1; far < WARP; far *= 2) {
        const int before = __shfl_up_sync(ALL_LANES, x, far);
        if (lane >= far) x += before;
    }
    __syncthreads(); /* the results of an earlier call have been read */
    if (lane == WARP - 1) partial[warp] = x;
    __syncthreads();
    total = 0;
    for (int w = 0; w < EXPERT_WARPS; w++) {
        if (w < warp) x += partial[w];
        total += partial[w];
    }
    return x;
}

static __global__ void __launch_bounds__(EXPERT_THREADS)
    place_kernel(int32_t *position, int32_t *offsets, const int32_t *counts, const int32_t *index, int n, int each,
                 int experts)
{
    extern __shared__ int next[]; /* [warps, experts]: first the warp's choices, then its next place */
    __shared__ int partial[EXPERT_WARPS];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int64_t part = each / EXPERT_WARPS, begin = (int64_t)blockIdx.x * each + warp * part,
                  end = min(begin + part, (int64_t)n);
    int *mine = next + warp * experts;
    for (int e = threadIdx.x; e < EXPERT_WARPS * experts; e += EXPERT_THREADS) next[e] = 0;
    __syncthreads();
    for (int64_t i = begin + lane; i < end; i += WARP) atomicAdd(&mine[expert_of(index[i], experts)], 1);
    int placed = 0; /* of the experts before */
    for (int e0 = 0; e0 < experts; e0 += EXPERT_THREADS) {
        const int e = e0 + (int)threadIdx.x;
        int before = 0, all = 0, total;
#pragma unroll 8
        for (int b = 0; b < (int)gridDim.x; b++) {
            const int count = e < experts ? counts[(int64_t)b * experts + e] : 0;
            all += count;
            before += b < (int)blockIdx.x ? count : 0;
        }
        const int first = placed + running_sum(all, partial, total) - all; /* after it, all warps have counted */
        placed += total;
        if (e >= experts) continue;
        if (blockIdx.x == 0) offsets[e + 1] = first + all;
        int place = first + before;
        for (int w = 0; w < EXPERT_WARPS; w++) {
            const int count = next[w * experts + e];
            next[w * experts + e] = place;
            place += count;
        }
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) offsets[0] = 0;
    __syncthreads();
    for (int64_t i0 = begin; i0 < end; i0 += WARP) {
        const int64_t i = i0 + lane;
        const bool live = i < end;
        const int e = live ? expert_of(index[i], experts) : -1;
        const unsigned same = __match_any_sync(ALL_LANES, e);
        const int before = __popc(same & ((1u << lane) - 1)), place = live ? mine[e] : 0;
        __syncwarp();
        if (live && before == 0) mine[e] = place + __popc(same);
        __syncwarp();
        if (live) position[i] = place + before;
    }
}

static int launch_expert_rows(const struct launch *l, struct error *e)
{
    const int64_t n = operand_elements(&l->in[0]), each = expert_each(n), blocks = expert_blocks(n);
    const int experts = (int)l->attr->expert_rows.experts;
    const int32_t *index = (const int32_t *)l->in[0].data;
    int32_t *counts = (int32_t *)l->work;
    if (experts > EXPERTS_MOST || n > INT32_MAX || l->work_bytes < (uint64_t)(blocks * experts) * sizeof *counts)
        TRY_CUDA(cudaErrorInvalidValue);
    count_kernel<<<(unsigned)blocks, EXPERT_THREADS, 0, (cudaStream_t)l->stream>>>(counts, index, (int)n, (int)each,
                                                                                   experts);
    TRY_CUDA(cudaGetLastError());
    place_kernel<<<(unsigned)blocks, EXPERT_THREADS, EXPERT_WARPS * (size_t)experts * sizeof(int),
                   (cudaStream_t)l->stream>>>((int32_t *)l->out[0].data, (int32_t *)l->out[1].data, counts, index,
                                              (int)n, (int)each, experts);
    TRY_CUDA(cudaGetLastError());
    return PL_OK;
}

/* --- DISPATCH --------------------------------------------------------------------------------- */

/* A group of `size` threads reads a row once and writes it to the places of its k choices. */
template <typename P>
static __global__ void dispatch_kernel(P *y, const P *x, const int32_t *position, int64_t rows, int k, int64_t packs,
                                       int size)
{
    const int lane = threadIdx.x & (size - 1), each = BLOCK / size;
    for (int64_t row = (int64_t)blockIdx.x * each + (int)threadIdx.x / size; row < rows;
         row += (int64_t)gridDim.x * each)
        for (int64_t p = lane; p < packs; p += size) {
            const P value = x[row * packs + p];
            for (int j = 0; j < k; j++) y[position[row * k + j] * packs + p] = value;
        }
}

template <typename P> static void start_dispatch(const struct launch *l, cudaStream_t stream)
{
    const struct operand *x = &l->in[0];
    const int64_t packs = operand_last(x) * (int64_t)dtype_size(x->dtype) / (int64_t)sizeof(P);
    const int size = group_size(packs, BLOCK);
    dispatch_kernel<P><<<grid_of_rows(x->dim[0], BLOCK / size, GRID_MAX), BLOCK, 0, stream>>>(
        (P *)l->out[0].data, (const P *)x->data, (const int32_t *)l->in[1].data, x->dim[0], (int)l->in[1].dim[1], packs,
        size);
}

static int launch_dispatch(const struct launch *l, struct error *e)
{
    if (misaligned(l->access, l->out[0].data, l->in[0].data)) TRY_CUDA(cudaErrorMisalignedAddress);
    if (l->access == 16) start_dispatch<uint4>(l, (cudaStream_t)l->stream);
    else start_dispatch<uint16_t>(l, (cudaStream_t)l->stream); /* no element is smaller */
    TRY_CUDA(cudaGetLastError());
    return PL_OK;
}

/* --- COMBINE ---------------------------------------------------------------------------------- */

/* A group of `size` threads sums a row. weight NULL: all are 1. */
template <typename T, int V>
static __global__ void combine_kernel(T *x, const T *y, const int32_t *position, const T *weight, int64_t rows, int k,
                                      int64_t C, int size)
{
    const int lane = threadIdx.x & (size - 1), each = BLOCK / size;
    for (int64_t row = (int64_t)blockIdx.x * each + (int)threadIdx.x / size; row < rows;
         row += (int64_t)gridDim.x * each)
        for (int64_t c = lane * V; c < C; c += size * V) {
            float sum[V] = {}, part[V];
#pragma unroll 4
            for (int j = 0; j < k; j++) {
                const float w = weight ? to_float(weight[row * k + j]) : 1.0f;
                load<V>(part, y + position[row * k + j] * C + c);
#pragma unroll
                for (int i = 0; i < V; i++) sum[i] = fmaf(w, part[i], sum[i]);
            }
            store<V>(x + row * C + c, sum);
        }
}

static int launch_combine(const struct launch *l, struct error *e)
{
    const int64_t C = operand_last(&l->in[0]), R = l->in[1].dim[0], k = l->in[1].dim[1];
    if (misaligned(l->access, l->out[0].data, l->in[0].data)) TRY_CUDA(cudaErrorMisalignedAddress);
    TRY_CUDA(by_type(store_of(l->out[0].dtype), [&](auto zero) {
        using T = decltype(zero);
        const auto run = [&](auto kernel, int V) {
            const int size = group_size(C / V, BLOCK);
            kernel<<<grid_of_rows(R, BLOCK / size, GRID_MAX), BLOCK, 0, (cudaStream_t)l->stream>>>(
                (T *)l->out[0].data, (const T *)l->in[0].data, (const int32_t *)l->in[1].data,
                (const T *)data_in(l, 2), R, (int)k, C, size);
        };
        constexpr int V = 16 / sizeof(T);
        if (l->access == 16) run(combine_kernel<T, V>, V);
        else run(combine_kernel<T, 1>, 1);
    }));
    return PL_OK;
}

/* --- COMBINE_BWD ------------------------------------------------------------------------------ */

/* Lanes of a warp, `size` of them, have a choice. dy may be y: a thread reads a pack before it
 * writes it. */
template <typename T, int V>
static __global__ void combine_bwd_kernel(T *dy, T *dweight, const T *dx, const T *y, const int32_t *position,
                                          const T *weight, int64_t choices, int k, int64_t C, int size)
{
    const int lane = threadIdx.x & (size - 1), each = BLOCK / size;
    for (int64_t first = (int64_t)blockIdx.x * each; first < choices; first += (int64_t)gridDim.x * each) {
        const int64_t choice = first + (int)threadIdx.x / size;
        const bool live = choice < choices;
        float sum = 0;
        if (live) {
            const int64_t from = choice / k * C, to = position[choice] * C;
            const float w = to_float(weight[choice]);
            for (int64_t c = lane * V; c < C; c += size * V) {
                float d[V], part[V];
                load<V>(d, dx + from + c);
                load<V>(part, y + to + c);
#pragma unroll
                for (int i = 0; i < V; i++) {
                    sum = fmaf(d[i], part[i], sum);
                    d[i] *= w;
                }
                store<V>(dy + to + c, d);
            }
        }
        sum = group_sum(sum, size, NULL);
        if (live && lane == 0) dweight[choice] = from_float<T>(sum);
    }
}

static int launch_combine_bwd(const struct launch *l, struct error *e)
{
    const int64_t C = operand_last(&l->in[0]), k = l->in[2].dim[1], choices = operand_elements(&l->in[2]);
    if (misaligned(l->access, l->out[0].data, l->in[0].data, l->in[1].data)) TRY_CUDA(cudaErrorMisalignedAddress);
    TRY_CUDA(by_type(store_of(l->out[0].dtype), [&](auto zero) {
        using T = decltype(zero);
        const auto run = [&](auto kernel, int V) {
            const int size = group_size(C / V, WARP);
            kernel<<<grid_of_rows(choices, BLOCK / size, GRID_MAX), BLOCK, 0, (cudaStream_t)l->stream>>>(
                (T *)l->out[0].data, (T *)l->out[1].data, (const T *)l->in[0].data, (const T *)l->in[1].data,
                (const int32_t *)l->in[2].data, (const T *)l->in[3].data, choices, (int)k, C, size);
        };
        constexpr int V = 16 / sizeof(T);
        if (l->access == 16) run(combine_bwd_kernel<T, V>, V);
        else run(combine_bwd_kernel<T, 1>, 1);
    }));
    return PL_OK;
}

CUDA_KERNEL(cuda_expert_rows, .launch = launch_expert_rows);
CUDA_KERNEL(cuda_dispatch, .launch = launch_dispatch);
CUDA_KERNEL(cuda_combine, .launch = launch_combine);
CUDA_KERNEL(cuda_combine_bwd, .launch = launch_combine_bwd);

/*
 * act_sums.cu: ACT_BWD_SUM: dx as ACT_BWD makes it, and the sums of its columns, which are taken of what was
 * stored while it is still in registers. Two stages, as in sums.cu; how rows are dealt out is in act_sums.h.
 *
 * The thread that writes a pack is the one that read it: dx may lie on an input.
 */
#include "cuda/columns.cuh"
#include "cuda/elements.cuh"

static_assert(BLOCK == ACT_THREADS, "act_sums.h counts in blocks of this size");

template <int KIND, typename T>
static __global__ void __launch_bounds__(BLOCK, 4) act_sums_kernel(T *dx, float *partial, const T *dy, const T *x, act_sums s)
{
    constexpr int V = 16 / sizeof(T);
    __shared__ float meet[ACT_LINES][ACT_ACROSS * V];
    columns_may_come();
    const int64_t block = blockIdx.x / (unsigned)s.tiles, tile = blockIdx.x - block * s.tiles;
    const int lane = threadIdx.x % ACT_ACROSS, line = (int)threadIdx.x / ACT_ACROSS;
    const int64_t c = (tile * ACT_ACROSS + lane) * V, begin = block * s.each, end = begin + s.each < s.rows ? begin + s.each : s.rows;
    float sum[V];
#pragma unroll
    for (int i = 0; i < V; i++) sum[i] = 0;
    for (int64_t r = begin + line; c < s.C && r < end; r += ACT_TURN * ACT_LINES) {
        uint4 d[ACT_TURN], a[ACT_TURN];
#pragma unroll
        for (int k = 0; k < ACT_TURN; k++) {
            if (r + k * ACT_LINES >= end) continue;
            d[k] = *reinterpret_cast<const uint4 *>(dy + (r + k * ACT_LINES) * s.C + c);
            a[k] = *reinterpret_cast<const uint4 *>(x + (r + k * ACT_LINES) * s.C + c);
        }
#pragma unroll
        for (int k = 0; k < ACT_TURN; k++) {
            if (r + k * ACT_LINES >= end) continue;
            const pack<T, V> p = *reinterpret_cast<const pack<T, V> *>(&d[k]), q = *reinterpret_cast<const pack<T, V> *>(&a[k]);
            pack<T, V> out;
#pragma unroll
            for (int i = 0; i < V; i++) {
                out.at[i] = from_float<T>(f_slope<KIND>::template of<T>(to_float(p.at[i]), to_float(q.at[i])));
                sum[i] += to_float(out.at[i]);
            }
            *reinterpret_cast<pack<T, V> *>(dx + (r + k * ACT_LINES) * s.C + c) = out;
        }
    }
    /* Column i of a thread's V lies at i * ACT_ACROSS + lane of its line. */
#pragma unroll
    for (int i = 0; i < V; i++) meet[line][i * ACT_ACROSS + lane] = sum[i];
    __syncthreads();
    for (int j = threadIdx.x; j < ACT_ACROSS * V; j += BLOCK) {
        const int64_t column = (tile * ACT_ACROSS + j % ACT_ACROSS) * V + j / ACT_ACROSS;
        float total = 0;
        for (int l = 0; l < ACT_LINES; l++) total += meet[l][j];
        if (column < s.C) partial[block * s.C + column] = total;
    }
}

template <int KIND> static cudaError_t launch_kind(void *dx, float *partial, const void *dy, const void *x, enum store type, const act_sums &s, cudaStream_t stream)
{
    const int64_t grid = s.tiles * s.blocks;
    if (grid > INT32_MAX) return cudaErrorInvalidValue;
    return by_type(type, [&](auto zero) {
        using T = decltype(zero);
        act_sums_kernel<KIND, T><<<(unsigned)grid, BLOCK, 0, stream>>>(static_cast<T *>(dx), partial, static_cast<const T *>(dy), static_cast<const T *>(x), s);
    });
}

extern "C" cudaError_t cuda_act_sums(int kind, void *dx, float *sums, float *partial, const void *dy, const void *x, enum store type,
                                     struct act_sums s, cudaStream_t stream)
{
    cudaError_t rc = cudaErrorInvalidValue;
    switch (kind) {
    case 0: rc = launch_kind<0>(dx, partial, dy, x, type, s, stream); break;
    case 1: rc = launch_kind<1>(dx, partial, dy, x, type, s, stream); break;
    case 2: rc = launch_kind<2>(dx, partial, dy, x, type, s, stream); break;
    case 3: rc = launch_kind<3>(dx, partial, dy, x, type, s, stream); break;
    case 4: rc = launch_kind<4>(dx, partial, dy, x, type, s, stream); break;
    case 5: rc = launch_kind<5>(dx, partial, dy, x, type, s, stream); break;
    case 6: rc = launch_kind<6>(dx, partial, dy, x, type, s, stream); break;
    }
    if (rc != cudaSuccess) return rc;
    typed to;
    to.data = sums, to.type = STORE_F32;
    launch_columns_end({to, to, s.C, 0}, partial, s.blocks, s.C, stream);
    return cudaGetLastError();
}

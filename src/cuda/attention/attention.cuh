/*
 * attention.cuh: functions shared by the attention kernels: which keys a query sees, the addresses
 * of rows, the table rows of a pair of grid positions, and how a kernel is launched.
 */
#pragma once

#include <math_constants.h>
#include <type_traits>

#include "cuda/device/device.cuh"
#include "cuda/attention/launch_attention.h"

constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;

/* Loads an element of any type as f32. */
__device__ inline float stored(const void *data, enum store type, int64_t at)
{
    switch (type) {
    case STORE_BF16: return to_float(static_cast<const __nv_bfloat16 *>(data)[at]);
    case STORE_F16: return to_float(static_cast<const __half *>(data)[at]);
    default: return static_cast<const float *>(data)[at];
    }
}
__device__ inline float table_at(const head_table &x, int row, int column)
{
    return stored(x.data, x.type, row * x.row + column * x.column);
}

/* Unrolled loops over one, two or three indices, so that what they index stays in registers. */
template <int N, typename F> __device__ inline void each(F f)
{
#pragma unroll
    for (int n = 0; n < N; n++) f(n);
}
template <int M, int N, typename F> __device__ inline void each(F f)
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++) f(m, n);
}
template <int M, int N, int K, typename F> __device__ inline void each(F f)
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int k = 0; k < K; k++) f(m, n, k);
}

/* Reduced over groups of LANES adjacent lanes; over four of them, which have a row of a
 * fragment. */
template <int LANES> __device__ inline float lanes_sum(float x)
{
    for (int m = LANES / 2; m > 0; m /= 2) x += __shfl_xor_sync(0xffffffffu, x, m);
    return x;
}
template <int LANES> __device__ inline float lanes_max(float x)
{
    for (int m = LANES / 2; m > 0; m /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, m));
    return x;
}
__device__ inline float quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
__device__ inline float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

/* Loads two adjacent numbers, the first at a multiple of 8 bytes. */
__device__ inline float2 pair_at(const float *p) { return *reinterpret_cast<const float2 *>(p); }

template <typename T> __device__ inline T *row_at(const head_rows &x, int64_t b, int64_t t, int64_t h)
{
    return static_cast<T *>(x.data) + b * x.sample + t * x.token + h * x.head;
}

/* Columns of a tile of D that are the head's. */
template <int D> __device__ inline int stored_columns(const head_rows &x) { return D == 64 || D == 80 ? x.columns : D; }

__device__ inline float *lse_at(const attention &a, int64_t b, int64_t h, int64_t t)
{
    return a.lse + b * a.lse_sample + h * a.lse_head + t * a.lse_token;
}

/* Returns what the mask adds to the scores of key s, in base 2; -inf beyond the last key. */
__device__ inline float key_term(const attention &a, int64_t b, int s)
{
    if (s >= a.S) return -CUDART_INF_F;
    return a.mask ? a.mask[b * a.mask_sample + s * a.mask_key] * LOG2E : 0.0f;
}

/* Reports whether query t sees key s by position: queries and keys end together, so query t is
 * aligned with key t + (S-T). */
__device__ inline bool key_seen(const attention &a, int t, int s)
{
    const int before = t + (a.S - a.T) - s;
    return t < a.T && s < a.S && (!a.causal || before >= 0) && before < a.window;
}

/* The range of keys that any of the queries t0 .. t0+tn sees; the range of queries that see any of
 * the keys s0 .. s0+sn. */
struct span {
    int begin, end;
};
__device__ inline span keys_of(const attention &a, int t0, int tn)
{
    const int place = a.S - a.T, last = min(t0 + tn, a.T) - 1;
    span x = {0, a.S};
    if (a.window < INT32_MAX) x.begin = (int)max((int64_t)0, (int64_t)t0 + place - a.window + 1);
    if (a.causal) x.end = min(a.S, last + place + 1);
    return x;
}
__device__ inline span queries_of(const attention &a, int s0, int sn)
{
    const int place = a.S - a.T, last = min(s0 + sn, a.S) - 1;
    span x = {0, a.T};
    if (a.causal) x.begin = max(0, s0 - place);
    if (a.window < INT32_MAX) x.end = (int)min((int64_t)a.T, max((int64_t)0, (int64_t)last - place + a.window));
    return x;
}

/* --- a grid ----------------------------------------------------------------------------- */

/* Returns the number of position terms of a query: one for each row of the grid, one for each
 * column. */
__device__ inline int positions(const attention &a) { return a.height + a.width; }
/* Returns the number of rows of both tables together. */
__host__ __device__ inline int table_rows(const attention &a) { return 2 * (a.height + a.width) - 2; }

/* Returns the table row that position term c of query t is computed with: the rows of table_w
 * follow those of table_h. */
__device__ inline int table_row(const attention &a, int t, int c)
{
    if (c < a.height) return t / a.width - c + a.height - 1;
    return 2 * a.height - 1 + t % a.width - (c - a.height) + a.width - 1;
}

/* Returns the index of a (query, key) pair in a head's row of biases. */
__device__ inline int bias_index(const attention &a, int t, int s)
{
    return abs(t / a.width - s / a.width) * a.width + abs(t % a.width - s % a.width);
}

/* --- launching ------------------------------------------------------------------------------ */

/* Calls f(T), as a type. */
template <typename F> static cudaError_t by_store(enum store type, F f)
{
    switch (type) {
    case STORE_F32: return f(float());
    case STORE_BF16: return f(__nv_bfloat16());
    case STORE_F16: return f(__half());
    }
    return cudaErrorInvalidValue;
}

/* Calls f(T, D), as types, for a head dimension that is one of D, or becomes one with columns of
 * zeros (ATTENTION_PADDED); for the 16-bit type of an attention. */
template <typename T, int... D, typename F> static cudaError_t by_length(const attention *a, F f)
{
    cudaError_t rc = cudaErrorInvalidValue;
    ((ATTENTION_PADDED(a->D) == D ? (void)(rc = f(T(), std::integral_constant<int, D>())) : (void)0), ...);
    return rc;
}
template <int... D, typename F> static cudaError_t by_type_and_length(const attention *a, F f)
{
    return a->type == STORE_BF16 ? by_length<__nv_bfloat16, D...>(a, f) : by_length<__half, D...>(a, f);
}

/* Allows a kernel so much dynamic shared memory; beyond 48 KiB with the static one this must be
 * requested. An earlier, larger request, for a launch that is captured and runs later, stays in
 * force. */
template <typename F> static cudaError_t allow_shared(F *kernel, size_t bytes)
{
    cudaFuncAttributes now;
    if (bytes <= 40 * 1024) return cudaSuccess; /* no kernel has 8 KiB of static memory */
    const cudaError_t rc = cudaFuncGetAttributes(&now, kernel);
    if (rc != cudaSuccess || (size_t)now.maxDynamicSharedSizeBytes >= bytes) return rc;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

/* Launches a kernel with so much dynamic shared memory. */
template <typename... P, typename... A>
static cudaError_t start_kernel(void (*kernel)(P...), int64_t blocks, int threads, size_t bytes, cudaStream_t stream,
                                const A &...arguments)
{
    if (blocks < 1 || blocks > INT32_MAX) return cudaErrorInvalidValue; /* the limit of a CUDA grid */
    const cudaError_t rc = allow_shared(kernel, bytes);
    if (rc != cudaSuccess) return rc;
    kernel<<<(unsigned)blocks, (unsigned)threads, bytes, stream>>>(arguments...);
    return cudaGetLastError();
}

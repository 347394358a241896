/*
 * rows.cuh: loads and stores of V adjacent elements as floats, and reductions along rows.
 *
 * A group of `size` threads, a power of two, handles a row: a block has several groups if rows are
 * short, and is one group if they are long. A group's sum has a fixed order: a thread adds its
 * own elements in order, the lanes of a warp are added in a butterfly, and every thread adds the
 * sums of the warps in order; so all threads of a group have the same bits.
 */
#pragma once

#include "cuda/device/device.cuh"
#include "cuda/device/launch.h"
#include "cuda/rows/norm_blocks.h"

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

/* Like `pack`, but of any size: moved by accesses of up to 16 bytes. */
template <typename T, int V> struct alignas(sizeof(T) * V > 16 ? 16 : sizeof(T) * V) wide_pack {
    T at[V];
};

template <int V, typename T> static __device__ inline void load(float (&to)[V], const T *from)
{
    const wide_pack<T, V> p = *reinterpret_cast<const wide_pack<T, V> *>(from);
#pragma unroll
    for (int i = 0; i < V; i++) to[i] = to_float(p.at[i]);
}

template <int V, typename T> static __device__ inline void store(T *to, const float (&from)[V])
{
    wide_pack<T, V> p;
#pragma unroll
    for (int i = 0; i < V; i++) p.at[i] = from_float<T>(from[i]);
    *reinterpret_cast<wide_pack<T, V> *>(to) = p;
}

template <int V> static __device__ inline void load(float (&to)[V], typed_ptr from, int64_t at)
{
    switch (from.type) {
    case STORE_F32: return load<V>(to, static_cast<const float *>(from.data) + at);
    case STORE_BF16: return load<V>(to, static_cast<const __nv_bfloat16 *>(from.data) + at);
    case STORE_F16: return load<V>(to, static_cast<const __half *>(from.data) + at);
    }
}

template <int V> static __device__ inline void store(typed_ptr to, int64_t at, const float (&from)[V])
{
    switch (to.type) {
    case STORE_F32: return store<V>(static_cast<float *>(to.data) + at, from);
    case STORE_BF16: return store<V>(static_cast<__nv_bfloat16 *>(to.data) + at, from);
    case STORE_F16: return store<V>(static_cast<__half *>(to.data) + at, from);
    }
}

static __device__ inline float element(typed_ptr x, int64_t at)
{
    float one[1];
    load<1>(one, x, at);
    return one[0];
}

/* The exponential: exact where elements have 24 bits of mantissa, __expf where they have 8 or
 * 11. */
template <typename T> static __device__ inline float exp_of(float x) { return __expf(x); }
template <> __device__ inline float exp_of<float>(float x) { return expf(x); }

/* --- groups ------------------------------------------------------------------------ */

/* Sums over a group of `size` threads. All threads of a block call it; `partial` is in shared
 * memory and has one float per warp. */
static __device__ inline float group_sum(float x, int size, float *partial)
{
    for (int mask = (size < WARP ? size : WARP) / 2; mask > 0; mask /= 2) x += __shfl_xor_sync(ALL_LANES, x, mask);
    if (size <= WARP) return x;
    __syncthreads(); /* the results of an earlier call have been read */
    if (threadIdx.x % WARP == 0) partial[threadIdx.x / WARP] = x;
    __syncthreads();
    const int warps = size / WARP, first = (int)threadIdx.x / size * warps;
    float sum = 0;
    for (int w = 0; w < warps; w++) sum += partial[first + w];
    return sum;
}

/* Returns the maximum over a group; NaN is never larger than another number. */
static __device__ inline float group_max(float x, int size, float *partial)
{
    for (int mask = (size < WARP ? size : WARP) / 2; mask > 0; mask /= 2)
        x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, mask));
    if (size <= WARP) return x;
    __syncthreads();
    if (threadIdx.x % WARP == 0) partial[threadIdx.x / WARP] = x;
    __syncthreads();
    const int warps = size / WARP, first = (int)threadIdx.x / size * warps;
    float most = partial[first];
    for (int w = 1; w < warps; w++) most = fmaxf(most, partial[first + w]);
    return most;
}

/* Computes the block's sum in double; the result is in thread 0. */
static __device__ inline double block_sum_double(double x)
{
    __shared__ double partial[WARP];
    for (int mask = WARP / 2; mask > 0; mask /= 2) x += __shfl_xor_sync(ALL_LANES, x, mask);
    __syncthreads();
    if (threadIdx.x % WARP == 0) partial[threadIdx.x / WARP] = x;
    __syncthreads();
    double sum = 0;
    for (unsigned w = 0; w < blockDim.x / WARP; w++) sum += partial[w];
    return sum;
}

/* --- the host's side ------------------------------------------------------------------ */

/* Returns the number of blocks for `rows` rows, `each` per block. */
static inline unsigned grid_of_rows(int64_t rows, int64_t each, int64_t most)
{
    const int64_t blocks = (rows + each - 1) / each;
    return (unsigned)(blocks < 1 ? 1 : blocks > most ? most : blocks);
}

/* Calls f(T()) with T the storage type of the elements. */
template <typename F> static inline cudaError_t by_type(enum store type, F f)
{
    switch (type) {
    case STORE_F32: f(float()); break;
    case STORE_BF16: f(__nv_bfloat16()); break;
    case STORE_F16: f(__half()); break;
    default: return cudaErrorInvalidValue;
    }
    return cudaGetLastError();
}

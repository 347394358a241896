/*
 * device.cuh: definitions shared by the .cu files: storage types, 16-byte packs, grids.
 *
 * An access is 16 bytes wide where rows and addresses allow it, otherwise one element. The plan
 * says which (launch.access), a launcher never chooses. The width changes which thread handles an
 * element, never its value; the order of a sum may depend on it (rmsnorm).
 */
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "cuda/device/launch.h"

constexpr int BLOCK = 256, GRID_MAX = 8192;

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float to_float(__half x) { return __half2float(x); }

/* Rounds to nearest even, as dtype.h does. */
template <typename T> __device__ T from_float(float x);
template <> __device__ inline float from_float<float>(float x) { return x; }
template <> __device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }
template <> __device__ inline __half from_float<__half>(float x) { return __float2half_rn(x); }

/* V adjacent elements, moved by one access. */
template <typename T, int V> struct alignas(sizeof(T) * V) pack {
    T at[V];
};

/* Reports whether accesses of `width` bytes may start at p. */
inline bool is_aligned(const void *p, size_t width) { return (uintptr_t)p % width == 0; }

/* Whether addresses are not what the plan says: an error of the launch. */
template <typename... P> inline bool misaligned(int access, P... p)
{
    return access == 16 && !(is_aligned(p, 16) && ...);
}

/* Returns the number of blocks for `items` work items; a grid-stride loop covers the items beyond
 * the cap. */
inline unsigned grid_for(int64_t items)
{
    int64_t blocks = (items + BLOCK - 1) / BLOCK;
    return (unsigned)(blocks < 1 ? 1 : blocks > GRID_MAX ? GRID_MAX : blocks);
}

/* --- streaming kernels ------------------------------------------------------------------------ */

/* Grids for streaming kernels, which read and write each element once.
 *
 * A load takes most of a microsecond, and in that time the memory of a large GPU moves 4 MB. So 32
 * KB per SM have to be in flight at any time: a thread reads several packs before it uses the
 * first, and the number of threads follows from that. */
/* The packs that a thread of a streaming kernel reads before it writes any: thread t of block b has
 * pack b * BLOCK * TURN + t and every BLOCK-th one after it. */
constexpr int TURN = 4;

/* Returns the number of blocks for `packs` packs, TURN per thread, without a cap; a grid has at
 * most 2^31 - 1 blocks. */
inline unsigned grid_of_packs(int64_t packs)
{
    const int64_t blocks = (packs + BLOCK * TURN - 1) / (BLOCK * TURN);
    return (unsigned)(blocks < 1 ? 1 : blocks);
}
inline bool is_one_grid(int64_t packs) { return packs / (BLOCK * TURN) < INT32_MAX; }

/* --- division by a number known to the host: a multiplication and a shift --------------------- */

/* n / by for n < 2^31: by <= 2^shift < 2 by, and n + n (2^shift - by) / by = n 2^shift / by. `more`
 * is the fraction (2^shift - by) / by in 32 bits, rounded up. */
struct divisor {
    uint32_t by, more, shift;
};

static inline divisor divisor_of(int64_t by)
{
    uint32_t shift = 0;
    while (((int64_t)1 << shift) < by) shift++;
    return {(uint32_t)by, (uint32_t)((((uint64_t)1 << shift) - (uint64_t)by) * ((uint64_t)1 << 32) / (uint64_t)by + 1),
            shift};
}

__device__ static inline uint32_t operator/(uint32_t n, const divisor &d)
{
    return (__umulhi(n, d.more) + n) >> d.shift;
}

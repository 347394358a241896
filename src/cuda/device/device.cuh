/*
 * device.cuh: definitions shared by the .cu files: storage types, 16-byte packs, grids.
 *
 * An access is 16 bytes wide where rows and addresses allow it, otherwise one element. The plan
 * says which (launch.access), a launcher never chooses. The width changes which thread handles an
 * element, never its value; the order of a sum may depend on it (rmsnorm).
 */
#ifndef DEVICE_CUH
#define DEVICE_CUH

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

/* Whether accesses of `width` bytes may start at p. */
inline bool is_aligned(const void *p, size_t width) { return (uintptr_t)p % width == 0; }

/* Whether addresses are not what the plan says: an error of the launch. */
template <typename... P> inline bool misaligned(int access, P... p)
{
    return access == 16 && !(is_aligned(p, 16) && ...);
}

/* Blocks for `items` work items; a grid-stride loop covers the items beyond the cap. */
inline unsigned grid_for(int64_t items)
{
    int64_t blocks = (items + BLOCK - 1) / BLOCK;
    return (unsigned)(blocks < 1 ? 1 : blocks > GRID_MAX ? GRID_MAX : blocks);
}

#endif

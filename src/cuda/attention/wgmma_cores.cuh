/*
 * wgmma_cores.cuh: products of a warpgroup (wgmma_hopper.cuh) from tiles whose rows have any
 * multiple of 8 columns.
 *
 * A tile of R rows is split into core matrices of 8 rows of 8 16-bit numbers, 128 contiguous bytes;
 * a column of cores is R rows of 16 bytes, and the columns follow each other. There is no swizzle
 * and no padding: 80 columns are 160 bytes, where panels of 64 take 256. A core is an operand along
 * its rows and across them, and the part of an accumulator that covers a core is, by warp, its 128
 * bytes in order. TMA has no mode for this layout: rows are loaded by copy16, a core by eight
 * threads.
 *
 *     along     16 columns further: two columns of cores    8 rows further: 128 bytes
 *     across    16 rows further: 256 bytes                  8 columns further: next column of cores
 */
#ifndef WGMMA_CORES_CUH
#define WGMMA_CORES_CUH

#include "cuda/attention/wgmma_hopper.cuh"

/* The offset in bytes of row r and column c in a tile of R rows. */
template <int R> __host__ __device__ constexpr int core_at(int r, int c)
{
    return c / 8 * (R * 16) + r * 16 + c % 8 * 2;
}

/* After this and the next barrier, products may read what ordinary stores have written. */
__device__ inline void fence_shared_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* The descriptor of an operand in a tile of R rows, from p on. */
__device__ inline uint64_t core_operand(const void *p, int leading, int stride)
{
    return (uint64_t)((shared_address(p) & 0x3ffff) >> 4) | (uint64_t)(leading >> 4) << 16 |
           (uint64_t)(stride >> 4) << 32;
}
template <int R> __device__ inline uint64_t cores_along(const void *p) { return core_operand(p, R * 16, 128); }
template <int R> __device__ inline uint64_t cores_across(const void *p) { return core_operand(p, 128, R * 16); }
/* The step to the next 16 of either. */
template <int R> constexpr int along_step = R * 32 >> 4;
constexpr int across_step = 256 >> 4;

/* d (+)= x y^T over D columns: 64 rows of a tile of XR rows, and as many rows of a tile of YR rows
 * as d has columns. */
template <typename T, int D, int XR, int YR, int N>
__device__ inline void cores_product(float (&d)[N], uint64_t x, uint64_t y, int add)
{
    each<D / 16>([&](int k) { multiply<0, 0>(d, x + k * along_step<XR>, y + k * along_step<YR>, add || k, T()); });
}
/* d (+)= p y: p in registers, 64 x 16 K; y has 16 K rows, and as many columns as d. Until the wait
 * p must not be overwritten, not even through a copy: ptxas (13.0) merges the copy with p and
 * writes registers that a product still reads. */
template <typename T, int K, int N>
__device__ inline void cores_add(float (&d)[N], const unsigned (&p)[4 * K], uint64_t y, int add)
{
    each<K>([&](int k) { multiply<1>(d, p + 4 * k, y + k * across_step, add || k, T()); });
}

#endif

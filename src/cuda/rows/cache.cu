/*
 * cache.cu: CACHE_WRITE: rows into a cache, each at the position of its token. The bytes are moved
 * as they are, in units of up to 16.
 */
#include "cuda/rows/launch_tokens.h"
#include "cuda/rows/rows.cuh"

/* packs that a group of threads copies: few rows may be long, as the features of an image are */
constexpr int64_t PART = 1024;

template <typename P>
static __global__ void cache_write_kernel(P *cache, const P *x, const int32_t *positions, int64_t rows, int64_t S,
                                          int64_t T, int64_t packs, int64_t stride, int64_t parts, int size)
{
    const int lane = threadIdx.x & (size - 1), each = BLOCK / size;
    for (int64_t unit = (int64_t)blockIdx.x * each + (int)threadIdx.x / size; unit < rows * parts;
         unit += (int64_t)gridDim.x * each) {
        const int64_t row = unit / parts, first = unit % parts * PART, s = positions[row];
        if (s < 0 || s >= S) continue;
        P *to = cache + (row / T * S + s) * stride;
        for (int64_t k = first + lane; k < packs && k < first + PART; k += size) to[k] = x[row * packs + k];
    }
}

template <typename P>
static void launch_cache_write(void *cache, const void *x, const int32_t *positions, int64_t rows, int64_t S, int64_t T,
                               int64_t bytes, int64_t stride, cudaStream_t stream)
{
    const int64_t packs = bytes / (int64_t)sizeof(P), parts = (packs + PART - 1) / PART;
    const int size = group_size(packs < PART ? packs : PART, BLOCK);
    cache_write_kernel<P>
        <<<grid_of_rows(rows * parts, BLOCK / size, GRID_MAX), BLOCK, 0, stream>>>(static_cast<P *>(cache),
                                                                                   static_cast<const P *>(x), positions,
                                                                                   rows, S, T, packs,
                                                                                   stride / (int64_t)sizeof(P), parts,
                                                                                   size);
}

extern "C" cudaError_t cuda_cache_write(void *cache, const void *x, const int32_t *positions, int64_t B, int64_t S,
                                        int64_t T, int64_t bytes, int64_t stride, int access, cudaStream_t stream)
{
    if (misaligned(access, cache, x)) return cudaErrorMisalignedAddress;
    if (access == 16) launch_cache_write<uint4>(cache, x, positions, B * T, S, T, bytes, stride, stream);
    else /* no element is smaller */
        launch_cache_write<uint16_t>(cache, x, positions, B * T, S, T, bytes, stride, stream);
    return cudaGetLastError();
}

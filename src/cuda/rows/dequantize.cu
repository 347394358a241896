/*
 * dequantize.cu: DEQUANTIZE: weights in NF4 (base/nf4.h) to a dense tensor, with the bits of the
 * CPU.
 *
 * The kernel is bound by memory: per weight it reads half a byte and writes two or four. A thread
 * has eight weights, four bytes of codes, which it writes with 16-byte stores; neighbouring threads
 * access neighbouring bytes, and each thread has several such groups in flight. The 16 levels and
 * the map of the scales are in shared memory; the levels lie in 16 banks, so lookups do not
 * conflict.
 */
#include "cuda/device/kernel.cuh"

#include "base/nf4.h"

static constexpr int EACH = 8, GROUPS = 4; /* weights per group, and groups per thread */

struct stored {
    const uint8_t *codes, *scales; /* scales NULL: absmax has them */
    const float *absmax, *offset;
};

__device__ static const float device_levels[16] = NF4_LEVELS;

template <typename T> static __device__ void put(T *to, const float *levels, uint32_t codes, float scale)
{
    wide_pack<T, EACH> out;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int code = codes >> (i % 2 ? 8 * (i / 2) : 8 * (i / 2) + 4) & 15; /* byte i / 2, high bits first */
        out.at[i] = from_float<T>(nf4_weight(levels[code], scale));
    }
    *reinterpret_cast<wide_pack<T, EACH> *>(to) = out;
}

/* Dequantizes n weights from `first` on, which is the begin of a block. */
template <typename T> static __global__ void dequantize_kernel(T *to, stored x, int64_t first, int64_t n)
{
    __shared__ float levels[16], map[256];
    if (threadIdx.x < 16) levels[threadIdx.x] = device_levels[threadIdx.x];
    for (int k = (int)threadIdx.x; x.scales && k < 256; k += BLOCK) map[k] = nf4_map(k);
    __syncthreads();
    const float offset = x.scales ? *x.offset : 0;
    const int64_t stride = (int64_t)gridDim.x * BLOCK * GROUPS * EACH;
    for (int64_t begin = (int64_t)blockIdx.x * BLOCK * GROUPS * EACH; begin < n; begin += stride) {
        uint32_t codes[GROUPS];
        float scale[GROUPS];
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            const int64_t at = begin + ((int64_t)g * BLOCK + threadIdx.x) * EACH;
            if (at >= n) continue;
            const int64_t block = (first + at) / NF4_BLOCK;
            if (at + EACH <= n) codes[g] = *reinterpret_cast<const uint32_t *>(x.codes + (first + at) / 2);
            scale[g] =
                x.scales ? nf4_scale(map[x.scales[block]], x.absmax[block / NF4_SCALES], offset) : x.absmax[block];
        }
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            const int64_t at = begin + ((int64_t)g * BLOCK + threadIdx.x) * EACH;
            if (at + EACH <= n) {
                put<T>(to + at, levels, codes[g], scale[g]);
                continue;
            }
            for (int64_t i = at; i < n; i++)
                to[i] = from_float<T>(nf4_weight(levels[x.codes[(first + i) / 2] >> (i % 2 ? 0 : 4) & 15], scale[g]));
        }
    }
}

static int launch_dequantize(const struct launch *l, struct error *e)
{
    const int64_t n = operand_elements(&l->out[0]), tile = (int64_t)BLOCK * GROUPS * EACH;
    const int nested = l->attr->dequantize.nested;
    const struct nf4_layout at = nf4_layout(l->attr->dequantize.all, nested);
    const uint8_t *bytes = (const uint8_t *)l->in[0].data;
    const stored x = {bytes, nested ? bytes + at.scales : nullptr, (const float *)(bytes + at.absmax),
                      nested ? (const float *)(bytes + at.offset) : nullptr};
    /* Some tiles per block: each block makes the map first. */
    const unsigned blocks = (unsigned)((n + tile - 1) / tile < 2048 ? (n + tile - 1) / tile : 2048);
    TRY_CUDA(by_type(store_of(l->out[0].dtype), [&](auto zero) {
        using T = decltype(zero);
        dequantize_kernel<T><<<blocks, BLOCK, 0, (cudaStream_t)l->stream>>>((T *)l->out[0].data, x,
                                                                            l->attr->dequantize.first, n);
    }));
    return PL_OK;
}

CUDA_KERNEL(cuda_dequantize, .launch = launch_dequantize);

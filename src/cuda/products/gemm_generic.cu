/*
 * gemm_generic.cu: the matrix product for operands that cuBLASLt does not support.
 *
 * A block computes TILE x TILE results, one per thread; both operands pass through shared memory in
 * tiles of TILE x TILE, as f32. A result is summed over ascending k in one thread, so the bits are
 * always the same.
 */
#include "cuda/device/device.cuh"
#include "cuda/products/launch_products.h"

constexpr int TILE = 16;

__device__ static float load_any(const void *x, enum store type, int64_t at)
{
    if (type == STORE_F32) return static_cast<const float *>(x)[at];
    if (type == STORE_BF16) return to_float(static_cast<const __nv_bfloat16 *>(x)[at]);
    return to_float(static_cast<const __half *>(x)[at]);
}

__device__ static void store_any(void *y, enum store type, int64_t at, float x)
{
    if (type == STORE_F32) static_cast<float *>(y)[at] = x;
    else if (type == STORE_BF16) static_cast<__nv_bfloat16 *>(y)[at] = from_float<__nv_bfloat16>(x);
    else static_cast<__half *>(y)[at] = from_float<__half>(x);
}

__device__ static float load_matrix(const void *x, const strided &s, int64_t n, int64_t i, int64_t j)
{
    return load_any(x, s.type, n * s.batch + i * s.row + j * s.column);
}

/* Computes the sum of one result; every thread of the block participates, also one outside c. */
__device__ static float tile_sum(const void *a, const void *b, const generic_gemm &p, int64_t n, int64_t i0, int64_t j0)
{
    __shared__ float left[TILE][TILE + 1], right[TILE][TILE + 1];
    const int x = threadIdx.x, y = threadIdx.y;
    float sum = 0;
    for (int64_t k = 0; k < p.K; k += TILE) {
        left[y][x] = i0 + y < p.M && k + x < p.K ? load_matrix(a, p.a, n, i0 + y, k + x) : 0.0f;
        right[y][x] = k + y < p.K && j0 + x < p.N ? load_matrix(b, p.b, n, k + y, j0 + x) : 0.0f;
        __syncthreads();
#pragma unroll
        for (int t = 0; t < TILE; t++) sum = fmaf(left[y][t], right[t][x], sum);
        __syncthreads();
    }
    return sum;
}

__global__ void product_kernel(void *c, const void *a, const void *b, const void *bias, const void *from,
                               generic_gemm p)
{
    for (int64_t n = blockIdx.z; n < p.batches; n += gridDim.z)
        for (int64_t i0 = (int64_t)blockIdx.y * TILE; i0 < p.M; i0 += (int64_t)gridDim.y * TILE) {
            const int64_t j0 = (int64_t)blockIdx.x * TILE, i = i0 + threadIdx.y, j = j0 + threadIdx.x;
            float sum = tile_sum(a, b, p, n, i0, j0);
            if (i >= p.M || j >= p.N) continue;
            if (bias) sum += load_any(bias, p.bias, j);
            if (from) sum += load_matrix(from, p.c, n, i, j);
            store_any(c, p.c.type, n * p.c.batch + i * p.c.row + j * p.c.column, sum);
        }
}

extern "C" cudaError_t cuda_gemm_generic(void *c, const void *a, const void *b, const void *bias, const void *from,
                                         const struct generic_gemm *p, cudaStream_t stream)
{
    constexpr int64_t most = 65535;
    const int64_t across = (p->N + TILE - 1) / TILE, down = (p->M + TILE - 1) / TILE;
    const dim3 grid((unsigned)across, (unsigned)(down < most ? down : most),
                    (unsigned)(p->batches < most ? p->batches : most));
    product_kernel<<<grid, dim3(TILE, TILE), 0, stream>>>(c, a, b, bias, from, *p);
    return cudaGetLastError();
}

__device__ const float __align__(16) one_on_the_gpu = 1; /* also where 16 bytes are read at once */

extern "C" cudaError_t cuda_gemm_one(const float **one)
{
    void *at = nullptr;
    const cudaError_t rc = cudaGetSymbolAddress(&at, one_on_the_gpu);
    *one = static_cast<const float *>(at);
    return rc;
}

/*
 * scaled.cu: what cuBLASLt does not do of products of e4m3 with scales: shapes that it does not
 * support, and the scales of rows on GPUs where it has one for a whole matrix only.
 */
#include "cuda/device/device.cuh"
#include "cuda/products/launch_products.h"
#include "cuda/rows/rows.cuh"

#include "base/e4m3.h"

constexpr int TILE = 16;

/* Returns element (i,k) of [rows,K]. */
static __device__ inline float decoded(const uint8_t *x, const float *scale, int64_t i, int64_t k, int64_t rows,
                                       const scaled_gemm &p)
{
    return e4m3_to_f32(x[i * p.K + k]) * scale[k / (p.K / p.blocks) * rows + i];
}

static __device__ inline void store_sum(typed_ptr c, int64_t at, float sum, typed_ptr bias, int64_t j, typed_ptr from)
{
    if (bias.data) sum += element(bias, j);
    if (from.data) sum += element(from, at);
    const float one[1] = {sum};
    store<1>(c, at, one);
}

/* Computes TILE x TILE results a block, one per thread, over ascending k. */
static __global__ void product_kernel(typed_ptr c, scaled_gemm p, typed_ptr bias, typed_ptr from)
{
    __shared__ float left[TILE][TILE + 1], right[TILE][TILE + 1];
    const int x = threadIdx.x, y = threadIdx.y;
    for (int64_t i0 = (int64_t)blockIdx.y * TILE; i0 < p.M; i0 += (int64_t)gridDim.y * TILE) {
        const int64_t j0 = (int64_t)blockIdx.x * TILE, i = i0 + y, j = j0 + x;
        float sum = 0;
        for (int64_t k = 0; k < p.K; k += TILE) {
            left[y][x] = i < p.M && k + x < p.K ? decoded(p.a, p.as, i, k + x, p.M, p) : 0.0f;
            right[y][x] = j0 + y < p.N && k + x < p.K ? decoded(p.b, p.bs, j0 + y, k + x, p.N, p) : 0.0f;
            __syncthreads();
#pragma unroll
            for (int t = 0; t < TILE; t++) sum = fmaf(left[y][t], right[x][t], sum);
            __syncthreads();
        }
        if (i < p.M && j < p.N) store_sum(c, i * p.N + j, sum, bias, j, from);
    }
}

extern "C" cudaError_t cuda_gemm_scaled(struct typed_ptr c, const struct scaled_gemm *p, struct typed_ptr bias,
                                        struct typed_ptr from, cudaStream_t stream)
{
    const unsigned across = grid_of_rows(p->N, TILE, INT32_MAX), down = grid_of_rows(p->M, TILE, 65535);
    product_kernel<<<dim3(across, down), dim3(TILE, TILE), 0, stream>>>(c, *p, bias, from);
    return cudaGetLastError();
}

static __global__ void scale_kernel(typed_ptr c, const float *product, const float *rows, const float *columns,
                                    typed_ptr bias, typed_ptr from, int64_t n, int64_t N)
{
    for (int64_t at = (int64_t)blockIdx.x * BLOCK + threadIdx.x; at < n; at += (int64_t)gridDim.x * BLOCK) {
        const int64_t i = at / N, j = at - i * N;
        store_sum(c, at, product[at] * rows[i] * columns[j], bias, j, from);
    }
}

extern "C" cudaError_t cuda_scale_product(struct typed_ptr c, const float *product, const float *rows,
                                          const float *columns, struct typed_ptr bias, struct typed_ptr from,
                                          int64_t M, int64_t N, cudaStream_t stream)
{
    scale_kernel<<<grid_for(M * N), BLOCK, 0, stream>>>(c, product, rows, columns, bias, from, M * N, N);
    return cudaGetLastError();
}

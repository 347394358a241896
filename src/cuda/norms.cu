/*
 * rmsnorm.cu: RMSNORM forward.
 *
 *     one block per row:   x[r] --read--> sum of squares --> rstd[r]
 *                          x[r] --read again, from cache--> y[r]
 *
 * The sum's order is fixed: a thread adds its own elements in order, a warp's
 * sums meet in a butterfly, and every thread adds the warps' sums in order. The
 * number of threads depends on C alone.
 */
#include "cuda/device.cuh"

constexpr int WARP = 32;

/* The sum of x over the block, the same bits in every thread. */
static __device__ float block_sum(float x)
{
    __shared__ float partial[BLOCK / WARP];
    for (int mask = WARP / 2; mask > 0; mask /= 2) x += __shfl_xor_sync(0xffffffffu, x, mask);
    if (threadIdx.x % WARP == 0) partial[threadIdx.x / WARP] = x;
    __syncthreads();
    float sum = 0;
    for (unsigned w = 0; w < blockDim.x / WARP; w++) sum += partial[w];
    return sum;
}

/* A row is C / V packs; V divides C. */
template <typename T, int V>
__global__ void rmsnorm_kernel(T *y, float *rstd, const T *x, const T *w, int64_t C, float eps)
{
    const int64_t row = blockIdx.x, packs = C / V;
    const pack<T, V> *from = reinterpret_cast<const pack<T, V> *>(x + row * C);
    const pack<T, V> *scale = reinterpret_cast<const pack<T, V> *>(w);
    pack<T, V> *to = reinterpret_cast<pack<T, V> *>(y + row * C);

    float squares = 0;
    for (int64_t k = threadIdx.x; k < packs; k += blockDim.x) {
        const pack<T, V> a = from[k];
#pragma unroll
        for (int i = 0; i < V; i++) squares += to_float(a.at[i]) * to_float(a.at[i]);
    }
    const float inv = 1.0f / sqrtf(block_sum(squares) / (float)C + eps);
    if (threadIdx.x == 0) rstd[row] = inv;

    for (int64_t k = threadIdx.x; k < packs; k += blockDim.x) {
        const pack<T, V> a = from[k], s = scale[k];
        pack<T, V> out;
#pragma unroll
        for (int i = 0; i < V; i++) out.at[i] = from_float<T>(to_float(a.at[i]) * inv * to_float(s.at[i]));
        to[k] = out;
    }
}

/* As many threads as a row has packs, in whole warps, up to a block. */
static unsigned threads_for(int64_t packs)
{
    const int64_t threads = (packs + WARP - 1) / WARP * WARP;
    return (unsigned)(threads > BLOCK ? BLOCK : threads);
}

template <typename T>
static cudaError_t launch_rmsnorm(void *y, float *rstd, const void *x, const void *w, int64_t rows, int64_t C, float eps,
                                  cudaStream_t stream)
{
    constexpr int V = 16 / sizeof(T);
    T *to = static_cast<T *>(y);
    const T *from = static_cast<const T *>(x), *scale = static_cast<const T *>(w);
    if (C % V == 0 && is_aligned(y, 16) && is_aligned(x, 16) && is_aligned(w, 16))
        rmsnorm_kernel<T, V><<<(unsigned)rows, threads_for(C / V), 0, stream>>>(to, rstd, from, scale, C, eps);
    else
        rmsnorm_kernel<T, 1><<<(unsigned)rows, threads_for(C), 0, stream>>>(to, rstd, from, scale, C, eps);
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_rmsnorm(void *y, float *rstd, const void *x, const void *w, enum store type, int64_t rows,
                                    int64_t C, float eps, cudaStream_t stream)
{
    if (rows < 1 || rows > INT32_MAX) return cudaErrorInvalidValue; /* blocks of one grid */
    switch (type) {
    case STORE_F32: return launch_rmsnorm<float>(y, rstd, x, w, rows, C, eps, stream);
    case STORE_BF16: return launch_rmsnorm<__nv_bfloat16>(y, rstd, x, w, rows, C, eps, stream);
    case STORE_F16: return launch_rmsnorm<__half>(y, rstd, x, w, rows, C, eps, stream);
    }
    return cudaErrorInvalidValue;
}

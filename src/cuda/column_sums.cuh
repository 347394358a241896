/*
 * column_sums.cuh: the second stage of sums over rows: partial [blocks, N], left by blocks of a first
 * stage, becomes N results, each block's part added in order.
 *
 * A column is one of 32 neighbours of a block and has up to 32 threads, each of which adds every
 * so many parts; several of its loads are on their way at once. Many threads to few columns: the
 * parts are few bytes, and waiting for them one by one would take longer than all the rows did.
 *
 * From 9.0 on the second stage's blocks come while the first stage works, and wait for its end
 * there: the first says when (pdl_launch_dependents), which is as soon as it has begun.
 */
#ifndef COLUMN_SUMS_CUH
#define COLUMN_SUMS_CUH

#include "cuda/rows.cuh"

/* Column i goes to first[i], from `split` on to second[i - split]; onto what is there with `accumulate`. */
struct column_targets {
    typed_ptr first, second;
    int64_t split;
    int accumulate;
};

static __device__ inline void pdl_launch_dependents()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

static __device__ inline void pdl_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

static __global__ void columns_end_kernel(column_targets to, const float *partial, int64_t blocks, int64_t N)
{
    __shared__ double sums[WARP][WARP];
    const int64_t i = (int64_t)blockIdx.x * WARP + threadIdx.x;
    double sum = 0;
    pdl_wait();
    if (i < N) {
#pragma unroll 8
        for (int64_t b = threadIdx.y; b < blocks; b += blockDim.y) sum += (double)partial[b * N + i];
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || i >= N) return;
    for (unsigned s = 1; s < blockDim.y; s++) sum += sums[s][threadIdx.x];
    const typed_ptr y = i < to.split ? to.first : to.second;
    const int64_t at = i < to.split ? i : i - to.split;
    if (to.accumulate) sum += (double)element(y, at);
    const float value[1] = {(float)sum};
    store<1>(y, at, value);
}

/* Whether the kernel's code waits by itself: it does where it was made for 9.0, not for less and run there. */
static inline bool has_pdl_code()
{
    cudaFuncAttributes code;
    return cudaFuncGetAttributes(&code, columns_end_kernel) == cudaSuccess && code.ptxVersion >= 90 && code.binaryVersion >= 90;
}

/* Behind the first stage, on its stream. */
static inline void launch_column_sums(const column_targets &to, const float *partial, int64_t blocks, int64_t N, cudaStream_t stream)
{
    unsigned slices = 1;
    while (slices < WARP && slices < blocks) slices *= 2;
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3((unsigned)((N + WARP - 1) / WARP));
    config.blockDim = dim3(WARP, slices);
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = has_pdl_code() ? 1 : 0;
    cudaLaunchKernelEx(&config, columns_end_kernel, to, partial, blocks, N); /* the caller asks for the last error */
}

#endif

/*
 * column_sums.cuh: the second stage of sums over rows: partial [blocks, N], written by the blocks
 * of a first stage, is reduced to N results; the partial sums of a column are added in a fixed
 * order.
 *
 * A block handles 32 adjacent columns. Each column has up to 32 threads, and each thread adds every
 * (number of threads)-th partial sum, with several loads in flight. Few columns get many threads:
 * the partial sums are few bytes, and loading them one by one would take longer than the first
 * stage.
 *
 * From sm_90 on the second stage uses programmatic dependent launch (PDL): its blocks are launched
 * while the first stage runs, and wait for its end. The first stage allows this
 * (pdl_launch_dependents) as soon as it has begun.
 */
#pragma once

#include "cuda/rows/rows.cuh"

/* Column i goes to first[i], from `split` on to second[i - split]; with `accumulate` it is added
 * there. */
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

/* Reports whether the kernel's code contains the wait: it does if it was compiled for sm_90 or
 * later, not if older code runs there. */
static inline bool has_pdl_code()
{
    cudaFuncAttributes code;
    return cudaFuncGetAttributes(&code, columns_end_kernel) == cudaSuccess && code.ptxVersion >= 90 &&
           code.binaryVersion >= 90;
}

/* Runs after the first stage, on the same stream. */
static inline void launch_column_sums(const column_targets &to, const float *partial, int64_t blocks, int64_t N,
                                      cudaStream_t stream)
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
    cudaLaunchKernelEx(&config, columns_end_kernel, to, partial, blocks, N); /* the caller checks cudaGetLastError */
}

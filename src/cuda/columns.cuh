/*
 * columns.cuh: the second stage of sums over rows: partial [blocks, N], left by blocks of a first
 * stage, becomes N results, each block's part added in order.
 *
 * A column is one of 32 neighbours of a block and has up to 32 threads, each of which adds every
 * so many parts; several of its loads are on their way at once. Many threads to few columns: the
 * parts are few bytes, and waiting for them one by one would take longer than all the rows did.
 */
#ifndef COLUMNS_CUH
#define COLUMNS_CUH

#include "cuda/rows.cuh"

/* Column i goes to first[i], from `split` on to second[i - split]; onto what is there with `accumulate`. */
struct column_ends {
    typed first, second;
    int64_t split;
    int accumulate;
};

static __global__ void columns_end_kernel(column_ends to, const float *partial, int64_t blocks, int64_t N)
{
    __shared__ double sums[WARP][WARP];
    const int64_t i = (int64_t)blockIdx.x * WARP + threadIdx.x;
    double sum = 0;
    if (i < N) {
#pragma unroll 8
        for (int64_t b = threadIdx.y; b < blocks; b += blockDim.y) sum += (double)partial[b * N + i];
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || i >= N) return;
    for (unsigned s = 1; s < blockDim.y; s++) sum += sums[s][threadIdx.x];
    const typed y = i < to.split ? to.first : to.second;
    const int64_t at = i < to.split ? i : i - to.split;
    if (to.accumulate) sum += (double)element(y, at);
    const float value[1] = {(float)sum};
    store<1>(y, at, value);
}

static inline void launch_columns_end(const column_ends &to, const float *partial, int64_t blocks, int64_t N, cudaStream_t stream)
{
    unsigned slices = 1;
    while (slices < WARP && slices < blocks) slices *= 2;
    columns_end_kernel<<<(unsigned)((N + WARP - 1) / WARP), dim3(WARP, slices), 0, stream>>>(to, partial, blocks, N);
}

#endif

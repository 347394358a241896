/*
 * filters.cu: BMM_ACT of any shape and activation (thin.cu has the fast kernels for SAM's shapes).
 *
 *     y, dz    one thread per element, which sums along the short side
 *     da       one block per element: each thread sums its positions in ascending order, then
 *              group_sum adds the threads
 */
#include "cuda/rows/elements.cuh"
#include "cuda/maps/launch_masks.h"
#include "cuda/rows/rows.cuh"

static __global__ void forward_kernel(typed_ptr y, typed_ptr a, typed_ptr z, filters n)
{
    const int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= n.batches * n.M * n.N) return;
    const int64_t place = i % n.N, row = i / n.N, batch = row / n.M;
    float sum[1] = {0};
    for (int64_t k = 0; k < n.K; k++)
        sum[0] = fmaf(element(a, row * n.K + k), act_value<float>(n.kind, element(z, (batch * n.N + place) * n.K + k)),
                      sum[0]);
    store<1>(y, i, sum);
}

static __global__ void da_kernel(typed_ptr da, typed_ptr dy, typed_ptr z, filters n)
{
    __shared__ float partial[BLOCK / WARP];
    const int64_t i = blockIdx.x, k = i % n.K, row = i / n.K, batch = row / n.M;
    float own = 0;
    for (int64_t place = threadIdx.x; place < n.N; place += BLOCK)
        own = fmaf(element(dy, row * n.N + place),
                   act_value<float>(n.kind, element(z, (batch * n.N + place) * n.K + k)), own);
    const float sum[1] = {group_sum(own, BLOCK, partial)};
    if (threadIdx.x == 0) store<1>(da, i, sum);
}

static __global__ void dz_kernel(typed_ptr dz, typed_ptr dy, typed_ptr a, typed_ptr z, filters n)
{
    const int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= n.batches * n.N * n.K) return;
    const int64_t k = i % n.K, place = i / n.K % n.N, batch = i / n.K / n.N;
    float sum[1] = {0};
    for (int64_t m = 0; m < n.M; m++)
        sum[0] = fmaf(element(dy, (batch * n.M + m) * n.N + place), element(a, (batch * n.M + m) * n.K + k), sum[0]);
    sum[0] *= act_slope<float>(n.kind, element(z, i));
    store<1>(dz, i, sum);
}

static unsigned blocks_of(int64_t n) { return (unsigned)((n + BLOCK - 1) / BLOCK); }

extern "C" cudaError_t cuda_filters(struct typed_ptr y, struct typed_ptr a, struct typed_ptr z, struct filters n,
                                    cudaStream_t stream)
{
    forward_kernel<<<blocks_of(n.batches * n.M * n.N), BLOCK, 0, stream>>>(y, a, z, n);
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_filters_bwd(struct typed_ptr da, struct typed_ptr dz, struct typed_ptr dy,
                                        struct typed_ptr a, struct typed_ptr z, struct filters n, cudaStream_t stream)
{
    da_kernel<<<(unsigned)(n.batches * n.M * n.K), BLOCK, 0, stream>>>(da, dy, z, n);
    dz_kernel<<<blocks_of(n.batches * n.N * n.K), BLOCK, 0, stream>>>(dz, dy, a, z, n);
    return cudaGetLastError();
}

/*
 * row_stats.cu: the row statistics of the backward kernels: delta = rowsum(do * o), and
 * lse in base 2, both [B,H,T rounded up to 64]. Beyond T lse is infinite, so that those queries
 * contribute nothing.
 */
#include "cuda/attention/mma.cuh"

/* PARTS threads per query, 8 elements each. */
template <typename T, int PARTS> __global__ void __launch_bounds__(BLOCK) notes_kernel(const attention a)
{
    constexpr int WARP_ROWS = 32 / PARTS;
    const int part = threadIdx.x % PARTS;
    const int64_t padded = (a.T + 63) / 64 * 64, rows = (int64_t)a.B * a.H * padded, stride = (int64_t)gridDim.x * (BLOCK / PARTS);
    const int64_t end = (rows + WARP_ROWS - 1) / WARP_ROWS * WARP_ROWS; /* a multiple of a warp's rows, so that warps do not diverge */
    for (int64_t row = (int64_t)blockIdx.x * (BLOCK / PARTS) + threadIdx.x / PARTS; row < end; row += stride) {
        const int64_t h = row % a.H, t = row / a.H % padded, b = row / a.H / padded; /* in memory order */
        const bool there = row < rows && t < a.T;
        float sum = 0;
        if (there && 8 * part < a.D) {
            const uint4 x = *reinterpret_cast<const uint4 *>(row_at<T>(a.dout, b, t, h) + 8 * part);
            const uint4 y = *reinterpret_cast<const uint4 *>(row_at<T>(a.o, b, t, h) + 8 * part);
            const T *left = reinterpret_cast<const T *>(&x), *right = reinterpret_cast<const T *>(&y);
#pragma unroll
            for (int i = 0; i < 8; i++) sum += to_float(left[i]) * to_float(right[i]);
        }
        for (int m = PARTS / 2; m > 0; m /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, m);
        if (part != 0 || row >= rows) continue;
        const float lse = there ? *lse_at(a, b, h, t) : CUDART_INF_F;
        a.delta[(b * a.H + h) * padded + t] = there ? sum : 0.0f;
        a.lse2[(b * a.H + h) * padded + t] = lse == -CUDART_INF_F ? CUDART_INF_F : lse * LOG2E; /* 2^(s - inf) = 0 */
    }
}

template <typename T> static void start(const attention *a, cudaStream_t stream)
{
    const int64_t rows = (int64_t)a->B * a->H * ((a->T + 63) / 64 * 64);
    if (a->D <= 64) notes_kernel<T, 8><<<grid_for(rows * 8), BLOCK, 0, stream>>>(*a);
    else notes_kernel<T, 16><<<grid_for(rows * 16), BLOCK, 0, stream>>>(*a);
}

extern "C" cudaError_t cuda_attention_row_stats(const struct attention *a, cudaStream_t stream)
{
    if (a->type == STORE_BF16) start<__nv_bfloat16>(a, stream);
    else start<__half>(a, stream);
    return cudaGetLastError();
}

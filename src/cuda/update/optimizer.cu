/*
 * optimizer.cu: SUMSQ, CLIP, SCALER, GUARD and SGD. ADAMW is in adamw.cu.
 *
 * Values that vary by step are read from the step block in GPU memory, so that one captured graph
 * serves every step.
 *
 * A model has hundreds of weights, most of them vectors that do not even fill one block. So SUMSQ
 * takes many tensors in one launch: the launch parameters hold a table of them, in which a block
 * looks up its tensor. The order of a sum depends on the tensor, not on the other tensors of
 * the launch.
 *
 *     blocks   0 1 2 3 4 5 6 7 8       first   0 5 6 9
 *     tensor   0 0 0 0 0 1 2 2 2
 */
#include "cuda/update/update.cuh"

/* --- the norm -------------------------------------------------------------------------------- */

constexpr int SUM_BLOCK = 512, SUM_AHEAD = 4; /* packs in flight before the first is added */

/* Adds in double, starting with the square: the square of an f32 may overflow f32. */
template <typename T, int V> static __device__ inline double add_squares(double sum, const wide_pack<T, V> &x)
{
#pragma unroll
    for (int i = 0; i < V; i++) sum += (double)to_float(x.at[i]) * (double)to_float(x.at[i]);
    return sum;
}

/* The blocks of a tensor take its packs in rotation. The only block writes the sum
 * itself. */
template <typename T, int V>
static __global__ void __launch_bounds__(SUM_BLOCK, 2) sumsq_kernel(const __grid_constant__ sum_batch b, bool alone)
{
    const int at = tensor_of(b.first, b.count, blockIdx.x);
    const T *x = static_cast<const T *>(b.x[at]);
    const auto *from = reinterpret_cast<const wide_pack<T, V> *>(x);
    const int64_t n = b.n[at], packs = n / V, stride = (int64_t)(b.first[at + 1] - b.first[at]) * SUM_BLOCK;
    const int64_t first = (int64_t)(blockIdx.x - b.first[at]) * SUM_BLOCK + threadIdx.x;
    int64_t k = first;
    double sum = 0;
    for (; k + (SUM_AHEAD - 1) * stride < packs; k += SUM_AHEAD * stride) {
        wide_pack<T, V> ahead[SUM_AHEAD];
#pragma unroll
        for (int i = 0; i < SUM_AHEAD; i++) ahead[i] = from[k + i * stride];
#pragma unroll
        for (int i = 0; i < SUM_AHEAD; i++) sum = add_squares(sum, ahead[i]);
    }
    for (; k < packs; k += stride) sum = add_squares(sum, from[k]);
    for (int64_t i = packs * V + first; i < n; i += stride) sum += (double)to_float(x[i]) * (double)to_float(x[i]);
    sum = block_sum_double(sum);
    if (threadIdx.x != 0) return;
    if (alone) *b.acc += sum;
    else b.work[blockIdx.x] = sum;
}

/* Adds the sums of the tensors one after the other, in the order of separate launches; a warp
 * reduces a tensor's partial sums. */
static __global__ void __launch_bounds__(SUM_BLOCK) sumsq_finish_kernel(const __grid_constant__ sum_batch b)
{
    __shared__ double sums[SUM_MOST];
    const int lane = threadIdx.x % WARP;
    for (int at = threadIdx.x / WARP; at < b.count; at += SUM_BLOCK / WARP) {
        double sum = 0;
        for (uint32_t k = b.first[at] + lane; k < b.first[at + 1]; k += WARP) sum += b.work[k];
        for (int mask = WARP / 2; mask > 0; mask /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, mask);
        if (lane == 0) sums[at] = sum;
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    double acc = *b.acc;
    for (int at = 0; at < b.count; at++) acc += sums[at];
    *b.acc = acc;
}

extern "C" cudaError_t cuda_sumsq(sum_batch b, int access, cudaStream_t stream)
{
    const bool wide = access == 16;
    b.first[0] = 0;
    for (int i = 0; i < b.count; i++) {
        if (misaligned(access, b.x[i])) return cudaErrorMisalignedAddress;
        b.first[i + 1] = b.first[i] + (uint32_t)square_blocks(b.n[i]);
    }
    const uint32_t grid = b.first[b.count];
    const cudaError_t rc = by_type(b.type, [&](auto zero) {
        using T = decltype(zero);
        if (wide) sumsq_kernel<T, 16 / sizeof(T)><<<grid, SUM_BLOCK, 0, stream>>>(b, grid == 1);
        else sumsq_kernel<T, 1><<<grid, SUM_BLOCK, 0, stream>>>(b, grid == 1);
    });
    if (rc != cudaSuccess || grid == 1) return rc;
    sumsq_finish_kernel<<<1, SUM_BLOCK, 0, stream>>>(b);
    return cudaGetLastError();
}

/* Clips as clip_grad_norm_: 1e-6 is added to the norm before the division. A NaN norm gives a NaN
 * factor, so that the failure is visible. */
static __global__ void clip_kernel(float *out, const double *sum, const step_block *step)
{
    step_clip(out, *sum, step);
}

extern "C" cudaError_t cuda_clip(float *out, const double *sum, const step_block *step, cudaStream_t stream)
{
    clip_kernel<<<1, 1, 0, stream>>>(out, sum, step);
    return cudaGetLastError();
}

/* Updates the loss scale (cpu/update/optimizers.c). */
static __global__ void scaler_kernel(step_block *step, const double *sum, typed_ptr loss)
{
    const bool finite = isfinite(*sum) && (!loss.data || isfinite(element(loss, 0)));
    step_scale(step, finite);
}

extern "C" cudaError_t cuda_scaler(step_block *step, const double *sum, typed_ptr loss, cudaStream_t stream)
{
    scaler_kernel<<<1, 1, 0, stream>>>(step, sum, loss);
    return cudaGetLastError();
}

static __global__ void guard_kernel(step_block *step, const double *sum, typed_ptr loss)
{
    if (!isfinite(*sum) || (loss.data && !isfinite(element(loss, 0)))) step->found_inf = 1;
}

extern "C" cudaError_t cuda_guard(step_block *step, const double *sum, typed_ptr loss, cudaStream_t stream)
{
    guard_kernel<<<1, 1, 0, stream>>>(step, sum, loss);
    return cudaGetLastError();
}

/* --- SGD -------------------------------------------------------------------------------------- */

struct sgd_keyed : sgd_scalars {
    uint64_t key;
};

template <typename P, int V> static __device__ void sgd_at(const update &u, float *m, int64_t at, const sgd_keyed &s)
{
    float p[V], g[V], mean[V] = {};
    load<V>(p, static_cast<const P *>(u.p.data) + at);
    if (m) load<V>(mean, m + at);
    load<V>(g, u.g, at);
#pragma unroll
    for (int i = 0; i < V; i++) {
        float d = sgd_direction(p[i], g[i], &s);
        if (m) d = mean[i] = sgd_moment(mean[i], d, &s);
        p[i] = sgd_weight(p[i], d, &s);
    }
    if (m) store<V>(m + at, mean);
    store_weight<P, V>(u, at, p, s.key);
}

template <typename P, int V> static __global__ void sgd_kernel(update u, float *m)
{
    __shared__ sgd_keyed s;
    if (is_skipped(u)) return;
    if (threadIdx.x == 0)
        s = {{clip_of(u), (float)u.weight_decay, (float)u.beta1, (float)rate_of(u)}, keyed_round(u.step, u.key)};
    __syncthreads();
    const int64_t first = (int64_t)blockIdx.x * BLOCK + threadIdx.x, stride = (int64_t)gridDim.x * BLOCK,
                  packs = u.n / V;
    for (int64_t k = first; k < packs; k += stride) sgd_at<P, V>(u, m, k * V, s);
    for (int64_t i = packs * V + first; i < u.n; i += stride) sgd_at<P, 1>(u, m, i, s);
}

extern "C" cudaError_t cuda_sgd(update u, float *m, int access, cudaStream_t stream)
{
    const bool wide = access == 16;
    if (misaligned(access, u.p.data, u.g.data, u.w.data, m)) return cudaErrorMisalignedAddress;
    const unsigned grid = update_grid(wide ? u.n / 4 : u.n);
    return by_weight(u.p.type, [&](auto p) {
        using P = decltype(p);
        if (wide) sgd_kernel<P, 4><<<grid, BLOCK, 0, stream>>>(u, m);
        else sgd_kernel<P, 1><<<grid, BLOCK, 0, stream>>>(u, m);
    });
}

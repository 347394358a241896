/*
 * optimizer.cu: SUMSQ, CLIP, SCALER, GUARD, ADAMW and SGD.
 *
 *     ADAMW, as torch.optim.AdamW             SGD, as torch.optim.SGD
 *     p -= lr wd p                            d = g + wd p
 *     m += (1-b1) (g - m)                     m = momentum m + d
 *     v = b2 v + (1-b2) g^2                   p -= lr m  (without momentum: lr d)
 *     p -= lr / (1-b1^t) * m / (sqrt(v) / sqrt(1-b2^t) + eps)
 *
 * What varies by step is read from the step block on the card, so that one captured graph
 * serves every step.
 *
 * A model has hundreds of weights, most of them vectors that one block is too many for. So SUMSQ and
 * ADAMW take many tensors by one launch: a table of them stands in the parameters, and a block finds
 * its tensor there. An element's arithmetic and a sum's order are the tensor's own: what a tensor
 * gets does not depend on who goes along.
 *
 *     blocks   0 1 2 3 4 5 6 7 8       first   0 5 6 9
 *     tensor   0 0 0 0 0 1 2 2 2
 */
#include "cuda/update.cuh"

/* --- batches --------------------------------------------------------------------------------- */

/* Which of a batch's tensors a block works on: the last whose first block is not behind it. Where the
 * table stands in the parameters, all threads read the same word of it at a time. */
static __device__ inline int tensor_of(const uint32_t *first, int count, uint32_t block)
{
    int low = 0, high = count - 1;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (first[middle] <= block) low = middle;
        else high = middle - 1;
    }
    return low;
}

/* --- the norm -------------------------------------------------------------------------------- */

constexpr int SUM_BLOCK = 512, SUM_AHEAD = 4; /* packs that are on their way before the first is added */

/* In double from the square on: a square of f32 may be beyond f32. */
template <typename T, int V> static __device__ inline double add_squares(double sum, const piece<T, V> &x)
{
#pragma unroll
    for (int i = 0; i < V; i++) sum += (double)to_float(x.at[i]) * (double)to_float(x.at[i]);
    return sum;
}

/* A tensor's blocks take turns at its packs. A block that is alone has the sum. */
template <typename T, int V>
static __global__ void __launch_bounds__(SUM_BLOCK, 2) sumsq_kernel(const __grid_constant__ sum_batch b, bool alone)
{
    const int at = tensor_of(b.first, b.count, blockIdx.x);
    const T *x = static_cast<const T *>(b.x[at]);
    const auto *from = reinterpret_cast<const piece<T, V> *>(x);
    const int64_t n = b.n[at], packs = n / V, stride = (int64_t)(b.first[at + 1] - b.first[at]) * SUM_BLOCK;
    const int64_t first = (int64_t)(blockIdx.x - b.first[at]) * SUM_BLOCK + threadIdx.x;
    int64_t k = first;
    double sum = 0;
    for (; k + (SUM_AHEAD - 1) * stride < packs; k += SUM_AHEAD * stride) {
        piece<T, V> ahead[SUM_AHEAD];
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

/* A warp has a tensor's partial sums; the tensors' sums are added one after the other, in the order
 * that single launches would have. */
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

extern "C" cudaError_t cuda_sumsq(sum_batch b, cudaStream_t stream)
{
    bool wide = true;
    b.first[0] = 0;
    for (int i = 0; i < b.count; i++) {
        wide = wide && is_aligned(b.x[i], 16);
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

/* As clip_grad_norm_: the norm is increased by 1e-6 before it divides. A norm that is NaN gives
 * a factor of NaN, so that the failure is seen. */
static __global__ void clip_kernel(float *out, const double *sum, const step_block *step)
{
    const double norm = sqrt(*sum) / (double)step->loss_scale;
    double factor = 1;
    if (step->clip_norm > 0) factor = (double)step->clip_norm / (norm + 1e-6);
    out[0] = (float)norm;
    out[1] = (float)((factor > 1 ? 1 : factor) / (double)step->loss_scale);
}

extern "C" cudaError_t cuda_clip(float *out, const double *sum, const step_block *step, cudaStream_t stream)
{
    clip_kernel<<<1, 1, 0, stream>>>(out, sum, step);
    return cudaGetLastError();
}

/* What becomes of the loss scale (cpu/scaler.c). */
static __global__ void scaler_kernel(step_block *step, const double *sum, typed loss)
{
    const bool finite = isfinite(*sum) && (!loss.data || isfinite(element(loss, 0)));
    step->found_inf = !finite;
    step->next_scale = step->loss_scale;
    if (!finite) {
        step->next_scale = step->loss_scale * 0.5f;
        step->good_steps = 0;
        return;
    }
    step->adam_t++;
    if (++step->good_steps == step->scale_window) {
        if (isfinite(step->loss_scale * 2)) step->next_scale = step->loss_scale * 2;
        step->good_steps = 0;
    }
}

extern "C" cudaError_t cuda_scaler(step_block *step, const double *sum, typed loss, cudaStream_t stream)
{
    scaler_kernel<<<1, 1, 0, stream>>>(step, sum, loss);
    return cudaGetLastError();
}

static __global__ void guard_kernel(step_block *step, const double *sum, typed loss)
{
    if (!isfinite(*sum) || (loss.data && !isfinite(element(loss, 0)))) step->found_inf = 1;
}

extern "C" cudaError_t cuda_guard(step_block *step, const double *sum, typed loss, cudaStream_t stream)
{
    guard_kernel<<<1, 1, 0, stream>>>(step, sum, loss);
    return cudaGetLastError();
}

/* --- ADAMW --------------------------------------------------------------------------------------- */

/* V elements of everything. */
template <int V> struct adam_pack {
    float p[V], g[V], mean[V], square[V];
};

template <typename P, typename M, typename G, int V>
static __device__ void adamw_read(adam_pack<V> &a, const update &u, const M *m, const M *v, int64_t at)
{
    load<V>(a.p, static_cast<const P *>(u.p.data) + at);
    load<V>(a.g, static_cast<const G *>(u.g.data) + at);
    load<V>(a.mean, m + at);
    load<V>(a.square, v + at);
}

template <typename P, typename M, int V>
static __device__ void adamw_write(adam_pack<V> &a, const update &u, M *m, M *v, int64_t at, const adam_scalars &s)
{
#pragma unroll
    for (int i = 0; i < V; i++) adam(a.p[i], a.mean[i], a.square[i], a.g[i], s);
    store<V>(m + at, a.mean);
    store<V>(v + at, a.square);
    store_weight<P, V>(u, at, a.p, s.key);
}

static __device__ inline update update_at(const adam_batch &b, int at)
{
    const adam_weight &x = b.at[at];
    return {{x.p, b.p}, {x.g, b.g}, {x.w, b.w}, b.step, b.clip, x.n, b.beta1, b.beta2, b.eps, x.weight_decay, x.lr_scale, x.key};
}

/* A tensor's blocks take turns at its packs. A pack is on its way while the one before it is worked
 * on, the first while the scalars are made. */
template <typename P, typename M, typename G, int V>
static __global__ void __launch_bounds__(BLOCK, 4) adamw_kernel(const __grid_constant__ adam_batch b)
{
    __shared__ adam_scalars s;
    const int at = tensor_of(b.first, b.count, blockIdx.x);
    const update u = update_at(b, at);
    M *m = static_cast<M *>(b.at[at].m), *v = static_cast<M *>(b.at[at].v);
    const int64_t first = (int64_t)(blockIdx.x - b.first[at]) * BLOCK + threadIdx.x, packs = u.n / V;
    const int64_t stride = (int64_t)(b.first[at + 1] - b.first[at]) * BLOCK;
    adam_pack<V> now, next;
    if (first < packs) adamw_read<P, M, G, V>(now, u, m, v, first * V);
    if (is_off(u)) return;
    fill_scalars(s, u);
    __syncthreads();
    for (int64_t k = first; k < packs; k += stride) {
        if (k + stride < packs) adamw_read<P, M, G, V>(next, u, m, v, (k + stride) * V);
        adamw_write<P, M, V>(now, u, m, v, k * V, s);
        now = next;
    }
    for (int64_t i = packs * V + first; i < u.n; i += stride) {
        adam_pack<1> one;
        adamw_read<P, M, G, 1>(one, u, m, v, i);
        adamw_write<P, M, 1>(one, u, m, v, i, s);
    }
}

/* Gives each tensor a block for so many turns of a block's threads at its packs; returns how many. */
static uint32_t deal_blocks(adam_batch &b, int64_t turns, int V)
{
    b.first[0] = 0;
    for (int i = 0; i < b.count; i++) b.first[i + 1] = b.first[i] + grid_of_rows(b.at[i].n / V, BLOCK * turns, INT32_MAX);
    return b.first[b.count];
}

/* As many blocks as run at once, so that all end together: as few turns as that allows. */
extern "C" cudaError_t cuda_adamw(adam_batch b, cudaStream_t stream)
{
    static_assert(sizeof b <= 4096, "the parameters of a launch");
    const bool wide = adam_is_wide(&b.at[0]);
    int64_t turns = 0;
    for (int i = 0; i < b.count; i++) turns += b.at[i].n / (wide ? 4 : 1);
    turns = turns / (BLOCK * UPDATE_BLOCKS / 2) + 1;
    while (deal_blocks(b, turns, wide ? 4 : 1) > UPDATE_BLOCKS / 2) turns++;
    const uint32_t grid = b.first[b.count];
    return by_weight(b.p, [&](auto p) {
        by_weight(b.m, [&](auto state) {
            by_type(b.g, [&](auto gradient) {
                using P = decltype(p);
                using M = decltype(state);
                using G = decltype(gradient);
                if (wide) adamw_kernel<P, M, G, 4><<<grid, BLOCK, 0, stream>>>(b);
                else adamw_kernel<P, M, G, 1><<<grid, BLOCK, 0, stream>>>(b);
            });
        });
    });
}

/* --- SGD --------------------------------------------------------------------------------------------- */

struct sgd_scalars {
    float clip, decay, momentum, rate;
    uint64_t key;
};

template <typename P, int V> static __device__ void sgd_at(const update &u, float *m, int64_t at, const sgd_scalars &s)
{
    float p[V], g[V], mean[V] = {};
    load<V>(p, static_cast<const P *>(u.p.data) + at);
    if (m) load<V>(mean, m + at);
    load<V>(g, u.g, at);
#pragma unroll
    for (int i = 0; i < V; i++) {
        float d = __fadd_rn(__fmul_rn(g[i], s.clip), __fmul_rn(s.decay, p[i]));
        if (m) d = mean[i] = __fadd_rn(__fmul_rn(s.momentum, mean[i]), d);
        p[i] = __fsub_rn(p[i], __fmul_rn(s.rate, d));
    }
    if (m) store<V>(m + at, mean);
    store_weight<P, V>(u, at, p, s.key);
}

template <typename P, int V> static __global__ void sgd_kernel(update u, float *m)
{
    __shared__ sgd_scalars s;
    if (is_off(u)) return;
    if (threadIdx.x == 0)
        s = {clip_of(u), (float)u.weight_decay, (float)u.beta1, (float)rate_of(u), keyed_round(u.step, u.key)};
    __syncthreads();
    const int64_t first = (int64_t)blockIdx.x * BLOCK + threadIdx.x, stride = (int64_t)gridDim.x * BLOCK, packs = u.n / V;
    for (int64_t k = first; k < packs; k += stride) sgd_at<P, V>(u, m, k * V, s);
    for (int64_t i = packs * V + first; i < u.n; i += stride) sgd_at<P, 1>(u, m, i, s);
}

extern "C" cudaError_t cuda_sgd(update u, float *m, cudaStream_t stream)
{
    const bool wide = are_aligned(u.p.data, u.g.data, u.w.data, m);
    const unsigned grid = update_grid(wide ? u.n / 4 : u.n);
    return by_weight(u.p.type, [&](auto p) {
        using P = decltype(p);
        if (wide) sgd_kernel<P, 4><<<grid, BLOCK, 0, stream>>>(u, m);
        else sgd_kernel<P, 1><<<grid, BLOCK, 0, stream>>>(u, m);
    });
}

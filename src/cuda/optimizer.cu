/*
 * optimizer.cu: SUMSQ, CLIP, SCALER, ADAMW and SGD.
 *
 *     ADAMW, as torch.optim.AdamW             SGD, as torch.optim.SGD
 *     p -= lr wd p                            d = g + wd p
 *     m += (1-b1) (g - m)                     m = momentum m + d
 *     v = b2 v + (1-b2) g^2                   p -= lr m  (without momentum: lr d)
 *     p -= lr / (1-b1^t) * m / (sqrt(v) / sqrt(1-b2^t) + eps)
 *
 * What varies by step is read from the step block on the card, so that one captured graph
 * serves every step.
 */
#include "cuda/update.cuh"

/* --- the norm -------------------------------------------------------------------------------- */

/* In double from the square on: a square of f32 may be beyond f32. */
template <typename T, int V> static __global__ void sumsq_kernel(double *work, const T *x, int64_t n)
{
    const int64_t first = (int64_t)blockIdx.x * BLOCK + threadIdx.x, stride = (int64_t)gridDim.x * BLOCK, packs = n / V;
    double sum = 0;
#pragma unroll 4
    for (int64_t k = first; k < packs; k += stride) {
        float a[V];
        load<V>(a, x + k * V);
#pragma unroll
        for (int i = 0; i < V; i++) sum += (double)a[i] * (double)a[i];
    }
    for (int64_t i = packs * V + first; i < n; i += stride) sum += (double)to_float(x[i]) * (double)to_float(x[i]);
    sum = block_sum_double(sum);
    if (threadIdx.x == 0) work[blockIdx.x] = sum;
}

/* Few elements: one block has them all, and its sum is the sum. */
template <typename T, int V> static __global__ void __launch_bounds__(1024) sumsq_alone_kernel(double *acc, const T *x, int64_t n)
{
    const int64_t packs = n / V;
    double sum = 0;
#pragma unroll 4
    for (int64_t k = threadIdx.x; k < packs; k += blockDim.x) {
        float a[V];
        load<V>(a, x + k * V);
#pragma unroll
        for (int i = 0; i < V; i++) sum += (double)a[i] * (double)a[i];
    }
    for (int64_t i = packs * V + threadIdx.x; i < n; i += blockDim.x) sum += (double)to_float(x[i]) * (double)to_float(x[i]);
    sum = block_sum_double(sum);
    if (threadIdx.x == 0) *acc += sum;
}

static __global__ void sumsq_finish_kernel(double *acc, const double *work, int blocks)
{
    double sum = 0;
    for (int b = threadIdx.x; b < blocks; b += BLOCK) sum += work[b];
    sum = block_sum_double(sum);
    if (threadIdx.x == 0) *acc += sum;
}

extern "C" cudaError_t cuda_sumsq(double *acc, double *work, const void *x, enum store type, int64_t n, cudaStream_t stream)
{
    constexpr int64_t FEW = 32768;
    unsigned grid = 1;
    const cudaError_t rc = by_type(type, [&](auto zero) {
        using T = decltype(zero);
        constexpr int V = 16 / sizeof(T);
        const T *from = static_cast<const T *>(x);
        if (n <= FEW && is_aligned(x, 16)) sumsq_alone_kernel<T, V><<<1, 1024, 0, stream>>>(acc, from, n);
        if (n <= FEW && is_aligned(x, 16)) return;
        grid = grid_of_rows(n, 4 * V * BLOCK, UPDATE_BLOCKS);
        if (is_aligned(x, 16)) sumsq_kernel<T, V><<<grid, BLOCK, 0, stream>>>(work, from, n);
        else sumsq_kernel<T, 1><<<grid, BLOCK, 0, stream>>>(work, from, n);
    });
    if (rc != cudaSuccess || (n <= FEW && is_aligned(x, 16))) return rc;
    sumsq_finish_kernel<<<1, BLOCK, 0, stream>>>(acc, work, (int)grid);
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
        step->adam_t--;
        step->next_scale = step->loss_scale * 0.5f;
        step->good_steps = 0;
    } else if (++step->good_steps == step->scale_window) {
        if (isfinite(step->loss_scale * 2)) step->next_scale = step->loss_scale * 2;
        step->good_steps = 0;
    }
}

extern "C" cudaError_t cuda_scaler(step_block *step, const double *sum, typed loss, cudaStream_t stream)
{
    scaler_kernel<<<1, 1, 0, stream>>>(step, sum, loss);
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

/* A pack is on its way while the one before it is worked on, the first while the scalars are made. */
template <typename P, typename M, typename G, int V>
static __global__ void __launch_bounds__(BLOCK, 4) adamw_kernel(update u, M *m, M *v)
{
    __shared__ adam_scalars s;
    const int64_t first = (int64_t)blockIdx.x * BLOCK + threadIdx.x, stride = (int64_t)gridDim.x * BLOCK, packs = u.n / V;
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

extern "C" cudaError_t cuda_adamw(update u, typed m, typed v, cudaStream_t stream)
{
    const bool wide = are_aligned(u.p.data, u.g.data, u.w.data, m.data, v.data);
    const unsigned grid = grid_of_rows(wide ? u.n / 4 : u.n, BLOCK, UPDATE_BLOCKS / 2); /* as many as run at once */
    return by_weight(u.p.type, [&](auto p) {
        by_weight(m.type, [&](auto state) {
            by_type(u.g.type, [&](auto gradient) {
                using P = decltype(p);
                using M = decltype(state);
                using G = decltype(gradient);
                M *mean = static_cast<M *>(m.data), *square = static_cast<M *>(v.data);
                if (wide) adamw_kernel<P, M, G, 4><<<grid, BLOCK, 0, stream>>>(u, mean, square);
                else adamw_kernel<P, M, G, 1><<<grid, BLOCK, 0, stream>>>(u, mean, square);
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

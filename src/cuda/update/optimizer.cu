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

/* Tensors of one type whose squares are added to one sum: square_blocks of all together are at most
 * UPDATE_BLOCKS. */
constexpr int SUM_MOST = 128;
struct sum_batch {
    double *acc, *work;            /* work: UPDATE_BLOCKS doubles */
    const void *x[SUM_MOST];
    int64_t n[SUM_MOST];
    uint32_t first[SUM_MOST + 1];  /* first block of each tensor, then the number of blocks */
    int count;
    enum store type;
};

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

/* Reports whether a tensor joins the batch. The order of a sum depends on the access: the tensors
 * of one batch have the same. */
static bool sum_joins(const sum_batch &b, uint32_t blocks, const struct launch *first, const struct launch *l)
{
    return b.count < SUM_MOST && l->out[0].data == b.acc && store_of(l->in[0].dtype) == b.type &&
           l->access == first->access && blocks <= UPDATE_BLOCKS;
}

/* Launches a batch; the partial sums of all tensors are in the first launch's workspace. */
static int batch_sumsq(const struct launch *l, uint32_t n, uint32_t *taken, struct error *e)
{
    sum_batch b = {};
    b.acc = out_as<double>(l, 0);
    b.work = (double *)l->work;
    b.type = store_of(l->in[0].dtype);
    for (uint32_t i = 0; i < n; i++) {
        const int64_t elements = operand_elements(&l[i].in[0]);
        const uint32_t blocks = b.first[b.count] + (uint32_t)square_blocks(elements);
        CHECK(l[i].in[1].data == l[i].out[0].data, "the accumulator is updated in place");
        if (!sum_joins(b, blocks, l, &l[i])) break;
        if (misaligned(l->access, l[i].in[0].data)) TRY_CUDA(cudaErrorMisalignedAddress);
        b.x[b.count] = l[i].in[0].data;
        b.n[b.count++] = elements;
        b.first[b.count] = blocks;
    }
    *taken = (uint32_t)b.count;
    const uint32_t grid = b.first[b.count];
    TRY_CUDA(by_access(b.type, l->access, [&](auto zero, auto width) {
        sumsq_kernel<decltype(zero), decltype(width)::value><<<grid, SUM_BLOCK, 0, stream_of(l)>>>(b, grid == 1);
    }));
    if (grid > 1) sumsq_finish_kernel<<<1, SUM_BLOCK, 0, stream_of(l)>>>(b);
    TRY_CUDA(cudaGetLastError());
    return PL_OK;
}

/* Clips as clip_grad_norm_: 1e-6 is added to the norm before the division. A NaN norm gives a NaN
 * factor, so that the failure is visible. */
static __global__ void clip_kernel(float *out, const double *sum, const step_block *step)
{
    step_clip(out, *sum, step);
}

static int launch_clip(const struct launch *l, struct error *e)
{
    clip_kernel<<<1, 1, 0, stream_of(l)>>>(out_as<float>(l, 0), in_as<double>(l, 0), in_as<step_block>(l, 1));
    TRY_CUDA(cudaGetLastError());
    return PL_OK;
}

/* Updates the loss scale (cpu/update/optimizers.c). */
static __global__ void scaler_kernel(step_block *step, const double *sum, typed_ptr loss)
{
    const bool finite = isfinite(*sum) && (!loss.data || isfinite(element(loss, 0)));
    step_scale(step, finite);
}

static __global__ void guard_kernel(step_block *step, const double *sum, typed_ptr loss)
{
    if (!isfinite(*sum) || (loss.data && !isfinite(element(loss, 0)))) step->found_inf = 1;
}

/* Launches a kernel that changes the step. */
template <void (*KERNEL)(step_block *, const double *, typed_ptr)>
static int launch_on_step(const struct launch *l, struct error *e)
{
    CHECK(l->in[1].data == l->out[0].data, "the step is updated in place");
    KERNEL<<<1, 1, 0, stream_of(l)>>>(out_as<step_block>(l, 0), in_as<double>(l, 0), typed_in(l, 2));
    TRY_CUDA(cudaGetLastError());
    return PL_OK;
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

static int launch_sgd(const struct launch *l, struct error *e)
{
    const update u = update_of(l, 2, 3, 4);
    const bool wide = l->access == 16;
    float *m = (float *)data_in(l, 5);
    const unsigned grid = update_grid(wide ? u.n / 4 : u.n);
    if (misaligned(l->access, u.p.data, u.g.data, u.w.data, m)) TRY_CUDA(cudaErrorMisalignedAddress);
    TRY_CUDA(by_weight(u.p.type, [&](auto p) {
        const auto kernel = wide ? sgd_kernel<decltype(p), 4> : sgd_kernel<decltype(p), 1>;
        kernel<<<grid, BLOCK, 0, stream_of(l)>>>(u, m);
    }));
    return PL_OK;
}

CUDA_KERNEL(cuda_sumsq, .batch = batch_sumsq, .chains = true);
CUDA_KERNEL(cuda_clip, .launch = launch_clip);
CUDA_KERNEL(cuda_scaler, .launch = launch_on_step<scaler_kernel>);
CUDA_KERNEL(cuda_guard, .launch = launch_on_step<guard_kernel>);
CUDA_KERNEL(cuda_sgd, .launch = launch_sgd);

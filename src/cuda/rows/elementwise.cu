/*
 * elementwise.cu: elementwise kernels for dense operands, 16 bytes at a time where the wider of the
 * types allows it, with several loads in flight; fills; dropout.
 *
 * Invariant: the thread that writes element i is the one that read it, so the result may alias an
 * input.
 */
#include "cuda/rows/elementwise.cuh"
#include "cuda/rows/keyed.cuh"

static_assert(ACT_GELU == 0 && ACT_GELU_TANH == 1 && ACT_QUICK_GELU == 2 && ACT_RELU == 3 && ACT_SIGMOID == 4 &&
                  ACT_SILU == 5 && ACT_TANH == 6 && ACT_EXP == 7,
              "the functions of elements.cuh are in this order");

/* --- two inputs of one type ---------------------------------------------------- */

/* The tail after the last whole pack, fewer than V elements, is handled by the first block. */
template <typename F, typename T> __global__ void pair_kernel(T *y, const T *a, const T *b, int64_t n)
{
    constexpr int V = 16 / sizeof(T);
    const int64_t first = (int64_t)blockIdx.x * BLOCK * TURN + threadIdx.x, packs = n / V;
    pack<T, V> x[TURN], z[TURN];
#pragma unroll
    for (int u = 0; u < TURN; u++) {
        if (first + u * BLOCK >= packs) continue;
        x[u] = reinterpret_cast<const pack<T, V> *>(a)[first + u * BLOCK];
        z[u] = reinterpret_cast<const pack<T, V> *>(b)[first + u * BLOCK];
    }
#pragma unroll
    for (int u = 0; u < TURN; u++) {
        if (first + u * BLOCK >= packs) continue;
        pack<T, V> out;
#pragma unroll
        for (int i = 0; i < V; i++)
            out.at[i] = from_float<T>(F::template of<T>(to_float(x[u].at[i]), to_float(z[u].at[i])));
        reinterpret_cast<pack<T, V> *>(y)[first + u * BLOCK] = out;
    }
    const int64_t rest = packs * V + first;
    if (blockIdx.x == 0 && rest < n) y[rest] = from_float<T>(F::template of<T>(to_float(a[rest]), to_float(b[rest])));
}

template <typename F> static int launch_pair(const struct launch *l, struct error *e)
{
    const int64_t n = operand_elements(&l->out[0]);
    if (!is_one_grid(n)) TRY_CUDA(cudaErrorInvalidValue);
    TRY_CUDA(by_type(store_of(l->out[0].dtype), [&](auto zero) {
        using T = decltype(zero);
        pair_kernel<F, T><<<grid_of_packs(n / (int64_t)(16 / sizeof(T))), BLOCK, 0, stream_of(l)>>>(
            out_as<T>(l, 0), in_as<T>(l, 0), in_as<T>(l, 1), n);
    }));
    return PL_OK;
}

int launch_act_bwd(const struct launch *l, struct error *e)
{
    return by_kind(l->attr->act.kind, [&](auto k) { return launch_pair<f_slope<decltype(k)::value>>(l, e); });
}

/* --- one input ------------------------------------------------------------------- */

/* The narrower of the two types determines the precision of the result. */
template <typename X, typename Y> using narrower = std::conditional_t<sizeof(X) < sizeof(Y), X, Y>;
template <typename X, typename Y> constexpr int PACK = 16 / (sizeof(X) > sizeof(Y) ? sizeof(X) : sizeof(Y));

template <typename F, typename X, typename Y> __global__ void map_kernel(Y *y, const X *a, int64_t n, F f)
{
    constexpr int V = PACK<X, Y>;
    using T = narrower<X, Y>;
    const int64_t first = (int64_t)blockIdx.x * BLOCK * TURN + threadIdx.x, packs = n / V;
    pack<X, V> x[TURN];
#pragma unroll
    for (int u = 0; u < TURN; u++)
        if (first + u * BLOCK < packs) x[u] = reinterpret_cast<const pack<X, V> *>(a)[first + u * BLOCK];
#pragma unroll
    for (int u = 0; u < TURN; u++) {
        if (first + u * BLOCK >= packs) continue;
        pack<Y, V> out;
#pragma unroll
        for (int i = 0; i < V; i++) out.at[i] = from_float<Y>(f.template of<T>(to_float(x[u].at[i])));
        reinterpret_cast<pack<Y, V> *>(y)[first + u * BLOCK] = out;
    }
    const int64_t rest = packs * V + first;
    if (blockIdx.x == 0 && rest < n) y[rest] = from_float<Y>(f.template of<T>(to_float(a[rest])));
}

template <typename F>
static int launch_map(const struct launch *l, const struct operand *y, const struct operand *x, F f, struct error *e)
{
    const int64_t n = operand_elements(y);
    if (!is_one_grid(n)) TRY_CUDA(cudaErrorInvalidValue);
    TRY_CUDA(by_type(store_of(y->dtype), [&](auto zero) {
        using T = decltype(zero);
        map_kernel<F, T, T><<<grid_of_packs(n / PACK<T, T>), BLOCK, 0, stream_of(l)>>>((T *)y->data, (const T *)x->data,
                                                                                       n, f);
    }));
    return PL_OK;
}

static int launch_scale(const struct launch *l, struct error *e)
{
    return launch_map(l, &l->out[0], &l->in[0], f_scale{(float)l->attr->scale.value}, e);
}

extern "C" int cuda_launch_act(const struct launch *l, const struct operand *y, const struct operand *x,
                               struct error *e)
{
    return by_kind(l->attr->act.kind, [&](auto k) { return launch_map(l, y, x, f_act<decltype(k)::value>{}, e); });
}
static int launch_act(const struct launch *l, struct error *e)
{
    return cuda_launch_act(l, &l->out[0], &l->in[0], e);
}

struct f_self {
    template <typename T> __device__ float of(float x) const { return x; }
};

/* Calls f with the types of the output and of the input. */
template <typename F> static int by_both_types(const struct launch *l, F f, struct error *e)
{
    if (!is_one_grid(operand_elements(&l->out[0]))) TRY_CUDA(cudaErrorInvalidValue);
    TRY_CUDA(by_type(store_of(l->out[0].dtype), [&](auto to) {
        by_type(store_of(l->in[0].dtype), [&](auto from) { f(to, from); });
    }));
    return PL_OK;
}

static int launch_cast(const struct launch *l, struct error *e)
{
    const int64_t n = operand_elements(&l->out[0]);
    return by_both_types(l, [&](auto to, auto from) {
        using X = decltype(from);
        using Y = decltype(to);
        map_kernel<f_self, X, Y><<<grid_of_packs(n / PACK<X, Y>), BLOCK, 0, stream_of(l)>>>(
            out_as<Y>(l, 0), in_as<X>(l, 0), n, f_self{});
    }, e);
}

/* --- add to an accumulator of another type --------------------------------------------- */

template <typename X, typename A> __global__ void accumulate_kernel(A *acc, const X *a, int64_t n)
{
    constexpr int V = PACK<X, A>;
    const int64_t first = (int64_t)blockIdx.x * BLOCK * TURN + threadIdx.x, packs = n / V;
    pack<X, V> x[TURN];
    pack<A, V> sum[TURN];
#pragma unroll
    for (int u = 0; u < TURN; u++) {
        if (first + u * BLOCK >= packs) continue;
        x[u] = reinterpret_cast<const pack<X, V> *>(a)[first + u * BLOCK];
        sum[u] = reinterpret_cast<const pack<A, V> *>(acc)[first + u * BLOCK];
    }
#pragma unroll
    for (int u = 0; u < TURN; u++) {
        if (first + u * BLOCK >= packs) continue;
#pragma unroll
        for (int i = 0; i < V; i++) sum[u].at[i] = from_float<A>(to_float(sum[u].at[i]) + to_float(x[u].at[i]));
        reinterpret_cast<pack<A, V> *>(acc)[first + u * BLOCK] = sum[u];
    }
    const int64_t rest = packs * V + first;
    if (blockIdx.x == 0 && rest < n) acc[rest] = from_float<A>(to_float(acc[rest]) + to_float(a[rest]));
}

static int launch_accumulate(const struct launch *l, struct error *e)
{
    const int64_t n = operand_elements(&l->out[0]);
    CHECK(l->in[1].data == l->out[0].data, "the accumulator is updated in place");
    return by_both_types(l, [&](auto to, auto from) {
        using X = decltype(from);
        using A = decltype(to);
        accumulate_kernel<X, A><<<grid_of_packs(n / PACK<X, A>), BLOCK, 0, stream_of(l)>>>(out_as<A>(l, 0),
                                                                                           in_as<X>(l, 0), n);
    }, e);
}

/* --- the gradients of the SiLU gate ---------------------------------------------------
 *
 * With s = sigmoid(g): dgate = dy up s (1 + g (1 - s)), dup = dy g s; and y = g s up,
 * recomputed. */

constexpr int GATES = 2; /* packs of three inputs that a thread reads at once */

/* Replaces dy, gate and up by y, dgate and dup. */
template <typename T> static __device__ void gate_backward(T &d, T &g, T &u)
{
    const float dy = to_float(d), gate = to_float(g), up = to_float(u), s = maths<T>::logistic(gate);
    d = from_float<T>(f_silu_gate::of<T>(gate, up));
    g = from_float<T>(dy * up * s * (1.0f + gate * (1.0f - s)));
    u = from_float<T>(dy * gate * s);
}

template <typename T, int V, bool RECOMPUTE_Y>
__global__ void silu_gate_bwd_kernel(T *dgate, T *dup, T *y, const T *dy, const T *gate, const T *up, int64_t n)
{
    const int64_t first = (int64_t)blockIdx.x * BLOCK * GATES + threadIdx.x, packs = n / V;
    pack<T, V> d[GATES], g[GATES], u[GATES];
#pragma unroll
    for (int j = 0; j < GATES; j++) {
        if (first + j * BLOCK >= packs) continue;
        d[j] = reinterpret_cast<const pack<T, V> *>(dy)[first + j * BLOCK];
        g[j] = reinterpret_cast<const pack<T, V> *>(gate)[first + j * BLOCK];
        u[j] = reinterpret_cast<const pack<T, V> *>(up)[first + j * BLOCK];
    }
#pragma unroll
    for (int j = 0; j < GATES; j++) {
        if (first + j * BLOCK >= packs) continue;
#pragma unroll
        for (int i = 0; i < V; i++) gate_backward(d[j].at[i], g[j].at[i], u[j].at[i]);
        reinterpret_cast<pack<T, V> *>(dgate)[first + j * BLOCK] = g[j];
        reinterpret_cast<pack<T, V> *>(dup)[first + j * BLOCK] = u[j];
        if (RECOMPUTE_Y) reinterpret_cast<pack<T, V> *>(y)[first + j * BLOCK] = d[j];
    }
    const int64_t rest = packs * V + first;
    if (blockIdx.x || rest >= n) return;
    T a = dy[rest], b = gate[rest], c = up[rest];
    gate_backward(a, b, c);
    dgate[rest] = b, dup[rest] = c;
    if (RECOMPUTE_Y) y[rest] = a;
}

static int launch_silu_gate_bwd(const struct launch *l, struct error *e)
{
    const int64_t n = operand_elements(&l->in[0]);
    void *dgate = l->out[0].data, *dup = l->out[1].data, *y = l->nout > 2 ? l->out[2].data : nullptr;
    if (!is_one_grid(n)) TRY_CUDA(cudaErrorInvalidValue);
    TRY_CUDA(by_access(store_of(l->in[0].dtype), l->access, [&](auto zero, auto width) {
        using T = decltype(zero);
        constexpr int V = decltype(width)::value;
        const auto kernel = y ? silu_gate_bwd_kernel<T, V, true> : silu_gate_bwd_kernel<T, V, false>;
        kernel<<<grid_of_packs(TURN / GATES * (n / V)), BLOCK, 0, stream_of(l)>>>(
            (T *)dgate, (T *)dup, (T *)y, in_as<T>(l, 0), in_as<T>(l, 1), in_as<T>(l, 2), n);
    }, dgate, dup, y, l->in[0].data, l->in[1].data, l->in[2].data));
    return PL_OK;
}

/* --- fill ------------------------------------------------------------------------- */

/* Writes the first `wide` bytes 16 at a time and the rest one by one; wide is a multiple of 16. */
__global__ void fill_kernel(uint8_t *y, uint64_t pattern, int64_t wide, int64_t bytes)
{
    const int64_t first = (int64_t)blockIdx.x * BLOCK + threadIdx.x, step = (int64_t)gridDim.x * BLOCK;
    const ulonglong2 both = make_ulonglong2(pattern, pattern);
    for (int64_t k = first; k < wide / 16; k += step) reinterpret_cast<ulonglong2 *>(y)[k] = both;
    for (int64_t i = wide + first; i < bytes; i += step) y[i] = (uint8_t)(pattern >> (8 * (i % 8)));
}

extern "C" cudaError_t cuda_fill(void *y, uint64_t pattern, int64_t bytes, int access, cudaStream_t stream)
{
    const int64_t wide = access == 16 ? bytes / 16 * 16 : 0;
    if (misaligned(access, y)) return cudaErrorMisalignedAddress;
    fill_kernel<<<grid_for(wide ? wide / 16 : bytes), BLOCK, 0, stream>>>(static_cast<uint8_t *>(y), pattern, wide,
                                                                          bytes);
    return cudaGetLastError();
}

/* Repeats one element up to eight bytes: the size of every dtype divides eight. */
static int launch_fill(const struct launch *l, struct error *e)
{
    const struct operand *y = &l->out[0];
    const uint32_t size = dtype_size(y->dtype);
    uint64_t pattern = 0;
    for (uint32_t i = 0; i < sizeof pattern / size; i++) dtype_store(&pattern, y->dtype, i, l->attr->fill.value);
    TRY_CUDA(cuda_fill(y->data, pattern, operand_elements(y) * size, l->access, stream_of(l)));
    return PL_OK;
}

/* --- many vectors --------------------------------------------------------------------- */

/* Many short f32 vectors of n elements each: y += x, or, without x, y = value. */
constexpr int VECTORS_MOST = 64, VECTOR_LONGEST = 1 << 14;
struct vectors {
    int count;
    float value;
    float *y[VECTORS_MOST];
    const float *x[VECTORS_MOST];
    int32_t n[VECTORS_MOST];
};

__global__ void vectors_kernel(const __grid_constant__ struct vectors v)
{
    float *y = v.y[blockIdx.y];
    const float *x = v.x[blockIdx.y];
    for (int i = (int)(blockIdx.x * BLOCK + threadIdx.x); i < v.n[blockIdx.y]; i += (int)gridDim.x * BLOCK)
        y[i] = x ? y[i] + x[i] : v.value;
}

/* Reports whether a launch is on short vectors: the gradients of norms and biases, which follow
 * each other at the end of a micro-batch. */
static bool is_vector(const struct operand *x)
{
    return x->dtype == DT_F32 && operand_elements(x) <= VECTOR_LONGEST &&
           (x->rank == 0 || (x->rank == 1 && x->stride[0] == 1));
}

/* Launches the vectors at the beginning of n launches as one, or the first launch by itself. */
template <int (*ONE)(const struct launch *, struct error *)>
static int batch_vectors(const struct launch *l, uint32_t n, uint32_t *taken, struct error *e)
{
    vectors v = {};
    int longest = 1;
    for (uint32_t i = 0; i < n && v.count < VECTORS_MOST; i++) {
        const struct operand *y = &l[i].out[0], *x = l[i].nin ? &l[i].in[0] : nullptr;
        if (!is_vector(y) || (x && (!is_vector(x) || l[i].in[1].data != y->data)) ||
            (!x && l[i].attr->fill.value != l->attr->fill.value))
            break;
        v.y[v.count] = (float *)y->data;
        v.x[v.count] = x ? (const float *)x->data : nullptr;
        v.n[v.count] = (int32_t)operand_elements(y);
        if (v.n[v.count] > longest) longest = v.n[v.count];
        v.count++;
    }
    if (v.count < 2) return ONE(l, e);
    if (!l->nin) v.value = (float)l->attr->fill.value;
    *taken = (uint32_t)v.count;
    const dim3 grid((unsigned)((longest + 2 * BLOCK - 1) / (2 * BLOCK)), (unsigned)v.count);
    vectors_kernel<<<grid, BLOCK, 0, stream_of(l)>>>(v);
    TRY_CUDA(cudaGetLastError());
    return PL_OK;
}

/* The value is in GPU memory. */
template <typename T> __global__ void spread_kernel(T *y, const void *ds, enum any from, int64_t n, int wide)
{
    constexpr int V = 16 / sizeof(T);
    const int64_t first = (int64_t)blockIdx.x * BLOCK + threadIdx.x, step = (int64_t)gridDim.x * BLOCK;
    const T value = from_float<T>((float)any_load(ds, from, 0));
    const int64_t packs = wide ? n / V : 0;
    pack<T, V> all;
#pragma unroll
    for (int i = 0; i < V; i++) all.at[i] = value;
    for (int64_t k = first; k < packs; k += step) reinterpret_cast<pack<T, V> *>(y)[k] = all;
    for (int64_t i = packs * V + first; i < n; i += step) y[i] = value;
}

static int launch_spread(const struct launch *l, struct error *e)
{
    const struct operand *y = &l->out[0];
    const int64_t n = operand_elements(y);
    if (misaligned(l->access, y->data)) TRY_CUDA(cudaErrorMisalignedAddress);
    TRY_CUDA(by_type(store_of(y->dtype), [&](auto zero) {
        using T = decltype(zero);
        spread_kernel<T><<<grid_for(n / 4), BLOCK, 0, stream_of(l)>>>(out_as<T>(l, 0), l->in[0].data,
                                                                      any_of(l->in[0].dtype), n, l->access == 16);
    }));
    return PL_OK;
}

/* --- dropout: the bits of base/random.c, from the step block on the GPU ----------------------- */

/* V divides `each`; a block loops over the samples blockIdx.y, blockIdx.y + gridDim.y ... `first`:
 * the number of their first element here. */
template <typename T, int V>
__global__ void dropout_kernel(T *y, const T *x, const step_block *step, const int32_t *samples, int64_t B,
                               int64_t each, int64_t first, uint32_t key, uint32_t threshold, float scale,
                               int per_sample)
{
    const uint64_t stream = keyed_bits(keyed_bits(keyed_name(step->seed, NAME_DROPOUT, 7), step->rng_step), key);
    for (int64_t b = blockIdx.y; b < B; b += gridDim.y) {
        const uint64_t sample = keyed_bits(stream, (uint64_t)(uint32_t)samples[b]);
        const bool whole = (uint32_t)keyed_bits(sample, 0) >= threshold;
        const pack<T, V> *from = reinterpret_cast<const pack<T, V> *>(x + b * each);
        pack<T, V> *to = reinterpret_cast<pack<T, V> *>(y + b * each);
        for (int64_t k = (int64_t)blockIdx.x * BLOCK + threadIdx.x; k < each / V; k += (int64_t)gridDim.x * BLOCK) {
            const pack<T, V> a = from[k];
            pack<T, V> out;
#pragma unroll
            for (int i = 0; i < V; i++) {
                const int64_t at = first + k * V + i;
                bool keep = whole;
                if (!per_sample) {
                    const uint64_t bits = keyed_bits(sample, (uint64_t)at / 2);
                    keep = (uint32_t)(at % 2 ? bits >> 32 : bits) >= threshold;
                }
                out.at[i] = from_float<T>(keep ? to_float(a.at[i]) * scale : 0.0f);
            }
            to[k] = out;
        }
    }
}

static int launch_dropout(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0];
    const auto &a = l->attr->dropout;
    const int64_t B = x->dim[0], each = operand_elements(x) / B;
    TRY_CUDA(by_access(store_of(x->dtype), l->access, [&](auto zero, auto width) {
        using T = decltype(zero);
        constexpr int V = decltype(width)::value;
        const dim3 grid(grid_for(each / V), (unsigned)(B < 4096 ? B : 4096));
        dropout_kernel<T, V><<<grid, BLOCK, 0, stream_of(l)>>>(
            out_as<T>(l, 0), in_as<T>(l, 0), in_as<step_block>(l, 1), in_as<int32_t>(l, 2), B, each,
            launch_element(l, each), a.key, step_dropout_threshold(a.p), 1.0f / (1.0f - a.p), a.per_sample);
    }, l->out[0].data, x->data));
    return PL_OK;
}

/* --- probe -------------------------------------------------------------------------- */

extern "C" cudaError_t cuda_probe(void)
{
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, fill_kernel);
}

/* The compiler lists the requested architectures in ascending order. GPUs above the lowest can run
 * this build too: with code of their own major version, or from the PTX. */
extern "C" int cuda_min_capability(void)
{
    static const int list[] = {__CUDA_ARCH_LIST__};
    return list[0] / 10;
}

extern "C" bool cuda_is_quick_build(void)
{
#ifdef CUDA_QUICK
    return true;
#else
    return false;
#endif
}

CUDA_KERNEL(cuda_add, .launch = launch_pair<f_add>);
CUDA_KERNEL(cuda_mul, .launch = launch_pair<f_mul>);
CUDA_KERNEL(cuda_silu_gate, .launch = launch_pair<f_silu_gate>);
CUDA_KERNEL(cuda_silu_gate_bwd, .launch = launch_silu_gate_bwd);
CUDA_KERNEL(cuda_silu_gate_bwd_y, .launch = launch_silu_gate_bwd);
CUDA_KERNEL(cuda_scale, .launch = launch_scale);
CUDA_KERNEL(cuda_cast, .launch = launch_cast);
CUDA_KERNEL(cuda_act, .launch = launch_act);
CUDA_KERNEL(cuda_act_bwd, .launch = launch_act_bwd);
CUDA_KERNEL(cuda_accumulate, .launch = launch_accumulate, .batch = batch_vectors<launch_accumulate>);
CUDA_KERNEL(cuda_fill, .launch = launch_fill, .batch = batch_vectors<launch_fill>);
CUDA_KERNEL(cuda_spread, .launch = launch_spread);
CUDA_KERNEL(cuda_dropout, .launch = launch_dropout);

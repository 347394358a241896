/*
 * elementwise.cu: elementwise kernels for dense operands, 16 bytes at a time where the wider of the
 * types allows it, with several loads in flight; fills; dropout.
 *
 * Invariant: the thread that writes element i is the one that read it, so the result may alias an
 * input.
 */
#include <type_traits>

#include "cuda/rows/elements.cuh"
#include "cuda/rows/keyed.cuh"

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

template <typename F>
static cudaError_t launch_pair(void *y, const void *a, const void *b, enum store type, int64_t n, cudaStream_t stream)
{
    if (!is_one_grid(n)) return cudaErrorInvalidValue;
    const unsigned grid = grid_of_packs(n / (type == STORE_F32 ? 4 : 8));
    switch (type) {
        case STORE_F32:
            pair_kernel<F, float><<<grid, BLOCK, 0, stream>>>((float *)y, (const float *)a, (const float *)b, n);
            break;
        case STORE_BF16:
            pair_kernel<F, __nv_bfloat16>
                <<<grid, BLOCK, 0, stream>>>((__nv_bfloat16 *)y, (const __nv_bfloat16 *)a, (const __nv_bfloat16 *)b, n);
            break;
        case STORE_F16:
            pair_kernel<F, __half><<<grid, BLOCK, 0, stream>>>((__half *)y, (const __half *)a, (const __half *)b, n);
            break;
    }
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_pair(enum function f, void *y, const void *a, const void *b, enum store type, int64_t n,
                                 cudaStream_t stream)
{
    switch ((int)f) {
    case FUNCTION_ADD: return launch_pair<f_add>(y, a, b, type, n, stream);
    case FUNCTION_MUL: return launch_pair<f_mul>(y, a, b, type, n, stream);
    case FUNCTION_SILU_GATE: return launch_pair<f_silu_gate>(y, a, b, type, n, stream);
    case FUNCTION_SLOPE + 0: return launch_pair<f_slope<0>>(y, a, b, type, n, stream);
    case FUNCTION_SLOPE + 1: return launch_pair<f_slope<1>>(y, a, b, type, n, stream);
    case FUNCTION_SLOPE + 2: return launch_pair<f_slope<2>>(y, a, b, type, n, stream);
    case FUNCTION_SLOPE + 3: return launch_pair<f_slope<3>>(y, a, b, type, n, stream);
    case FUNCTION_SLOPE + 4: return launch_pair<f_slope<4>>(y, a, b, type, n, stream);
    case FUNCTION_SLOPE + 5: return launch_pair<f_slope<5>>(y, a, b, type, n, stream);
    case FUNCTION_SLOPE + 6: return launch_pair<f_slope<6>>(y, a, b, type, n, stream);
    case FUNCTION_SLOPE + 7: return launch_pair<f_slope<7>>(y, a, b, type, n, stream);
    }
    return cudaErrorInvalidValue;
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

template <typename F, typename X, typename Y>
static cudaError_t launch_map(void *y, const void *a, int64_t n, F f, cudaStream_t stream)
{
    if (!is_one_grid(n)) return cudaErrorInvalidValue;
    map_kernel<F, X, Y>
        <<<grid_of_packs(n / PACK<X, Y>), BLOCK, 0, stream>>>(static_cast<Y *>(y), static_cast<const X *>(a), n, f);
    return cudaGetLastError();
}

template <typename F>
static cudaError_t launch_same(void *y, const void *a, enum store type, int64_t n, F f, cudaStream_t stream)
{
    switch (type) {
    case STORE_F32: return launch_map<F, float, float>(y, a, n, f, stream);
    case STORE_BF16: return launch_map<F, __nv_bfloat16, __nv_bfloat16>(y, a, n, f, stream);
    case STORE_F16: return launch_map<F, __half, __half>(y, a, n, f, stream);
    }
    return cudaErrorInvalidValue;
}

extern "C" cudaError_t cuda_map(enum function f, void *y, const void *a, enum store type, int64_t n, float value,
                                cudaStream_t stream)
{
    switch ((int)f) {
    case FUNCTION_SCALE: return launch_same(y, a, type, n, f_scale{value}, stream);
    case FUNCTION_ACT + 0: return launch_same(y, a, type, n, f_act<0>{}, stream);
    case FUNCTION_ACT + 1: return launch_same(y, a, type, n, f_act<1>{}, stream);
    case FUNCTION_ACT + 2: return launch_same(y, a, type, n, f_act<2>{}, stream);
    case FUNCTION_ACT + 3: return launch_same(y, a, type, n, f_act<3>{}, stream);
    case FUNCTION_ACT + 4: return launch_same(y, a, type, n, f_act<4>{}, stream);
    case FUNCTION_ACT + 5: return launch_same(y, a, type, n, f_act<5>{}, stream);
    case FUNCTION_ACT + 6: return launch_same(y, a, type, n, f_act<6>{}, stream);
    case FUNCTION_ACT + 7: return launch_same(y, a, type, n, f_act<7>{}, stream);
    }
    return cudaErrorInvalidValue;
}

struct f_self {
    template <typename T> __device__ float of(float x) const { return x; }
};

template <typename X>
static cudaError_t launch_cast(void *y, const void *a, enum store to, int64_t n, cudaStream_t stream)
{
    switch (to) {
    case STORE_F32: return launch_map<f_self, X, float>(y, a, n, f_self{}, stream);
    case STORE_BF16: return launch_map<f_self, X, __nv_bfloat16>(y, a, n, f_self{}, stream);
    case STORE_F16: return launch_map<f_self, X, __half>(y, a, n, f_self{}, stream);
    }
    return cudaErrorInvalidValue;
}

extern "C" cudaError_t cuda_cast(void *y, const void *a, enum store to, enum store from, int64_t n, cudaStream_t stream)
{
    switch (from) {
    case STORE_F32: return launch_cast<float>(y, a, to, n, stream);
    case STORE_BF16: return launch_cast<__nv_bfloat16>(y, a, to, n, stream);
    case STORE_F16: return launch_cast<__half>(y, a, to, n, stream);
    }
    return cudaErrorInvalidValue;
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

template <typename X, typename A>
static cudaError_t launch_onto(void *acc, const void *x, int64_t n, cudaStream_t stream)
{
    if (!is_one_grid(n)) return cudaErrorInvalidValue;
    accumulate_kernel<X, A>
        <<<grid_of_packs(n / PACK<X, A>), BLOCK, 0, stream>>>(static_cast<A *>(acc), static_cast<const X *>(x), n);
    return cudaGetLastError();
}

template <typename X>
static cudaError_t launch_accumulate(void *acc, const void *x, enum store to, int64_t n, cudaStream_t stream)
{
    switch (to) {
    case STORE_F32: return launch_onto<X, float>(acc, x, n, stream);
    case STORE_BF16: return launch_onto<X, __nv_bfloat16>(acc, x, n, stream);
    case STORE_F16: return launch_onto<X, __half>(acc, x, n, stream);
    }
    return cudaErrorInvalidValue;
}

extern "C" cudaError_t cuda_accumulate(void *acc, const void *x, enum store to, enum store from, int64_t n,
                                       cudaStream_t stream)
{
    switch (from) {
    case STORE_F32: return launch_accumulate<float>(acc, x, to, n, stream);
    case STORE_BF16: return launch_accumulate<__nv_bfloat16>(acc, x, to, n, stream);
    case STORE_F16: return launch_accumulate<__half>(acc, x, to, n, stream);
    }
    return cudaErrorInvalidValue;
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

template <typename T, int V>
static void launch_gates(void *dgate, void *dup, void *y, const void *dy, const void *gate, const void *up, int64_t n,
                         cudaStream_t stream)
{
    const auto kernel = y ? silu_gate_bwd_kernel<T, V, true> : silu_gate_bwd_kernel<T, V, false>;
    kernel<<<grid_of_packs(TURN / GATES * (n / V)), BLOCK, 0, stream>>>((T *)dgate, (T *)dup, (T *)y, (const T *)dy,
                                                                        (const T *)gate, (const T *)up, n);
}

template <typename T>
static cudaError_t launch_silu_gate_bwd(void *dgate, void *dup, void *y, const void *dy, const void *gate,
                                        const void *up, int64_t n, int access, cudaStream_t stream)
{
    if (!is_one_grid(n)) return cudaErrorInvalidValue;
    if (misaligned(access, dgate, dup, y, dy, gate, up)) return cudaErrorMisalignedAddress;
    if (access == 16) launch_gates<T, 16 / sizeof(T)>(dgate, dup, y, dy, gate, up, n, stream);
    else launch_gates<T, 1>(dgate, dup, y, dy, gate, up, n, stream);
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_silu_gate_bwd(void *dgate, void *dup, void *y, const void *dy, const void *gate,
                                          const void *up, enum store type, int64_t n, int access, cudaStream_t stream)
{
    switch (type) {
    case STORE_F32: return launch_silu_gate_bwd<float>(dgate, dup, y, dy, gate, up, n, access, stream);
    case STORE_BF16: return launch_silu_gate_bwd<__nv_bfloat16>(dgate, dup, y, dy, gate, up, n, access, stream);
    case STORE_F16: return launch_silu_gate_bwd<__half>(dgate, dup, y, dy, gate, up, n, access, stream);
    }
    return cudaErrorInvalidValue;
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

/* --- many vectors --------------------------------------------------------------------- */

__global__ void vectors_kernel(const __grid_constant__ struct vectors v)
{
    float *y = v.y[blockIdx.y];
    const float *x = v.x[blockIdx.y];
    for (int i = (int)(blockIdx.x * BLOCK + threadIdx.x); i < v.n[blockIdx.y]; i += (int)gridDim.x * BLOCK)
        y[i] = x ? y[i] + x[i] : v.value;
}

extern "C" cudaError_t cuda_vectors(struct vectors v, cudaStream_t stream)
{
    int longest = 1;
    for (int i = 0; i < v.count; i++) longest = v.n[i] > longest ? v.n[i] : longest;
    const dim3 grid((unsigned)((longest + 2 * BLOCK - 1) / (2 * BLOCK)), (unsigned)v.count);
    vectors_kernel<<<grid, BLOCK, 0, stream>>>(v);
    return cudaGetLastError();
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

extern "C" cudaError_t cuda_spread(void *y, const void *ds, enum any from, enum store type, int64_t n, int access,
                                   cudaStream_t stream)
{
    const unsigned grid = grid_for(n / 4);
    const int wide = access == 16;
    if (misaligned(access, y)) return cudaErrorMisalignedAddress;
    switch (type) {
    case STORE_F32: spread_kernel<<<grid, BLOCK, 0, stream>>>((float *)y, ds, from, n, wide); break;
    case STORE_BF16: spread_kernel<<<grid, BLOCK, 0, stream>>>((__nv_bfloat16 *)y, ds, from, n, wide); break;
    case STORE_F16: spread_kernel<<<grid, BLOCK, 0, stream>>>((__half *)y, ds, from, n, wide); break;
    }
    return cudaGetLastError();
}

/* --- dropout: the bits of base/random.c, from the step block on the GPU ----------------------- */

/* V divides `each`; a block loops over the samples blockIdx.y, blockIdx.y + gridDim.y ... */
template <typename T, int V>
__global__ void dropout_kernel(T *y, const T *x, const step_block *step, const int32_t *samples, int64_t B,
                               int64_t each, uint32_t key, uint32_t threshold, float scale, int per_sample)
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
                const int64_t at = k * V + i;
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

template <typename T>
static cudaError_t launch_dropout(void *y, const void *x, const struct step_block *step, const int32_t *samples,
                                  int64_t B, int64_t each, uint32_t key, uint32_t threshold, float scale,
                                  int per_sample, int access, cudaStream_t stream)
{
    constexpr int V = 16 / sizeof(T);
    const bool wide = access == 16;
    if (misaligned(access, y, x)) return cudaErrorMisalignedAddress;
    const dim3 grid(grid_for(wide ? each / V : each), (unsigned)(B < 4096 ? B : 4096));
    if (wide)
        dropout_kernel<T, V><<<grid, BLOCK, 0, stream>>>((T *)y, (const T *)x, step, samples, B, each, key, threshold,
                                                         scale, per_sample);
    else
        dropout_kernel<T, 1><<<grid, BLOCK, 0, stream>>>((T *)y, (const T *)x, step, samples, B, each, key, threshold,
                                                         scale, per_sample);
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_dropout(void *y, const void *x, const struct step_block *step, const int32_t *samples,
                                    enum store type, int64_t B, int64_t each, uint32_t key, uint32_t threshold,
                                    float scale, int per_sample, int access, cudaStream_t stream)
{
    switch (type) {
        case STORE_F32:
            return launch_dropout<float>(y, x, step, samples, B, each, key, threshold, scale, per_sample, access,
                                         stream);
        case STORE_BF16:
            return launch_dropout<__nv_bfloat16>(y, x, step, samples, B, each, key, threshold, scale, per_sample,
                                                 access, stream);
        case STORE_F16:
            return launch_dropout<__half>(y, x, step, samples, B, each, key, threshold, scale, per_sample, access,
                                          stream);
    }
    return cudaErrorInvalidValue;
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

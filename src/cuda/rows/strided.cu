/*
 * strided.cu: elementwise kernels for operands with strides, including broadcast ones. ADD and MUL
 * use 16-byte accesses if the innermost loop allows it; everything else, of any dtypes, goes
 * element by element.
 */
#include "cuda/rows/elementwise.cuh"

/* --- ADD and MUL ------------------------------------------------------------------ */

template <typename T, int V> static __device__ pack<T, V> load_or_repeat(const T *x, int64_t stride)
{
    pack<T, V> out;
    if (V > 1 && stride) return *reinterpret_cast<const pack<T, V> *>(x);
    const T one = *x;
#pragma unroll
    for (int i = 0; i < V; i++) out.at[i] = one;
    return out;
}

/* V divides the innermost loop. */
template <typename F, typename T, int V>
__global__ void pair_form_kernel(T *y, const T *a, const T *b, loop_nest f, int64_t packs)
{
    const int64_t each = f.size[0] / V, first = (int64_t)blockIdx.x * BLOCK * TURN + threadIdx.x;
    pack<T, V> x[TURN], z[TURN];
    int64_t to[TURN];
#pragma unroll
    for (int u = 0; u < TURN; u++) {
        const int64_t k = first + u * BLOCK;
        if (k >= packs) continue;
        const int64_t row = quotient(k, each);
        const offsets p = offsets_of(f, row, (k - row * each) * V);
        x[u] = load_or_repeat<T, V>(a + p.a, f.a[0]);
        z[u] = load_or_repeat<T, V>(b + p.b, f.b[0]);
        to[u] = p.y;
    }
#pragma unroll
    for (int u = 0; u < TURN; u++) {
        if (first + u * BLOCK >= packs) continue;
        pack<T, V> out;
#pragma unroll
        for (int i = 0; i < V; i++)
            out.at[i] = from_float<T>(F::template of<T>(to_float(x[u].at[i]), to_float(z[u].at[i])));
        *reinterpret_cast<pack<T, V> *>(y + to[u]) = out;
    }
}

/* The same for PAIR_PACKS_32 (loop_nest.h). Strides are in packs. */
struct repeats {
    divisor size[2];
    uint32_t a[2], b[2]; /* strides of the second and the third loop */
};

template <typename F, typename T>
__global__ void pair_repeats_kernel(T *y, const T *a, const T *b, repeats r, uint32_t packs)
{
    constexpr int V = 16 / sizeof(T);
    const uint32_t first = blockIdx.x * BLOCK * TURN + threadIdx.x;
    uint4 x[TURN], z[TURN];
#pragma unroll
    for (int u = 0; u < TURN; u++) {
        const uint32_t k = first + u * BLOCK, row = k / r.size[0], in = k - row * r.size[0].by, up = row / r.size[1],
                       mid = row - up * r.size[1].by;
        if (k >= packs) continue;
        x[u] = reinterpret_cast<const uint4 *>(a)[in + mid * r.a[0] + up * r.a[1]];
        z[u] = reinterpret_cast<const uint4 *>(b)[in + mid * r.b[0] + up * r.b[1]];
    }
#pragma unroll
    for (int u = 0; u < TURN; u++) {
        if (first + u * BLOCK >= packs) continue;
        const pack<T, V> p = *reinterpret_cast<const pack<T, V> *>(&x[u]),
                         q = *reinterpret_cast<const pack<T, V> *>(&z[u]);
        pack<T, V> out;
#pragma unroll
        for (int i = 0; i < V; i++) out.at[i] = from_float<T>(F::template of<T>(to_float(p.at[i]), to_float(q.at[i])));
        reinterpret_cast<pack<T, V> *>(y)[first + u * BLOCK] = out;
    }
}

static repeats repeats_of(const loop_nest &f, int V)
{
    repeats r = {{divisor_of(f.size[0] / V), divisor_of(f.loops > 1 ? f.size[1] : 1)}, {0, 0}, {0, 0}};
    for (int k = 1; k < f.loops; k++) r.a[k - 1] = (uint32_t)(f.a[k] / V), r.b[k - 1] = (uint32_t)(f.b[k] / V);
    return r;
}

/* Loads one element at a time, for any function and type: the type is checked at each access. */
static __device__ float element_at(const void *x, enum store type, int64_t i)
{
    if (type == STORE_F32) return static_cast<const float *>(x)[i];
    return type == STORE_BF16 ? to_float(static_cast<const __nv_bfloat16 *>(x)[i])
                              : to_float(static_cast<const __half *>(x)[i]);
}

__global__ void single_form_kernel(void *y, const void *a, const void *b, enum store type, bool product, loop_nest f,
                                   int64_t n)
{
    const int64_t first = (int64_t)blockIdx.x * BLOCK * TURN + threadIdx.x;
    float x[TURN], z[TURN];
    int64_t to[TURN];
#pragma unroll
    for (int u = 0; u < TURN; u++) {
        const int64_t k = first + u * BLOCK;
        if (k >= n) continue;
        const int64_t row = quotient(k, f.size[0]);
        const offsets p = offsets_of(f, row, k - row * f.size[0]);
        x[u] = element_at(a, type, p.a);
        z[u] = element_at(b, type, p.b);
        to[u] = p.y;
    }
#pragma unroll
    for (int u = 0; u < TURN; u++) {
        if (first + u * BLOCK >= n) continue;
        const float out = product ? x[u] * z[u] : x[u] + z[u];
        if (type == STORE_F32) static_cast<float *>(y)[to[u]] = out;
        else if (type == STORE_BF16) static_cast<__nv_bfloat16 *>(y)[to[u]] = from_float<__nv_bfloat16>(out);
        else static_cast<__half *>(y)[to[u]] = from_float<__half>(out);
    }
}

template <typename F, typename T>
static cudaError_t launch_pair_strided(void *y, const void *a, const void *b, enum store type, const loop_nest &f,
                                       int access, enum pair_form form, cudaStream_t stream)
{
    constexpr int V = 16 / sizeof(T);
    const int64_t n = loop_nest_elements(&f);
    if (!is_one_grid(n) || form != pair_form(&f, access == 16 ? V : 1)) return cudaErrorInvalidValue;
    /* A broadcast operand is read one element at a time. */
    if (misaligned(access, y, f.a[0] ? a : nullptr, f.b[0] ? b : nullptr)) return cudaErrorMisalignedAddress;
    T *to = static_cast<T *>(y);
    const T *x = static_cast<const T *>(a), *z = static_cast<const T *>(b);
    switch (form) {
        case PAIR_ELEMENTS:
            single_form_kernel<<<grid_of_packs(n), BLOCK, 0, stream>>>(y, a, b, type, std::is_same_v<F, f_mul>, f, n);
            break;
        case PAIR_PACKS:
            pair_form_kernel<F, T, V><<<grid_of_packs(n / V), BLOCK, 0, stream>>>(to, x, z, f, n / V);
            break;
        case PAIR_PACKS_32:
            pair_repeats_kernel<F, T>
                <<<grid_of_packs(n / V), BLOCK, 0, stream>>>(to, x, z, repeats_of(f, V), (uint32_t)(n / V));
            break;
    }
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_pair_strided(enum function f, void *y, const void *a, const void *b, enum store type,
                                         struct loop_nest nest, int access, enum pair_form form, cudaStream_t stream)
{
    return try_by_type(type, [&](auto zero) {
        using T = decltype(zero);
        return f == FUNCTION_ADD ? launch_pair_strided<f_add, T>(y, a, b, type, nest, access, form, stream)
                                 : launch_pair_strided<f_mul, T>(y, a, b, type, nest, access, form, stream);
    });
}

template <enum function F> static int launch_strided(const struct launch *l, struct error *e)
{
    const struct operand *y = &l->out[0], *a = &l->in[0], *b = &l->in[1];
    TRY_CUDA(cuda_pair_strided(F, y->data, a->data, b->data, store_of(y->dtype), loop_nest_of(y, a, b), l->access,
                               (enum pair_form)l->form, stream_of(l)));
    return PL_OK;
}

/* --- everything ----------------------------------------------------------------------- */

/* The same function that dense operands of this type use. */
template <typename T> static __device__ float function_of(int f, float x, float z)
{
    if (f == FUNCTION_SILU_GATE) return f_silu_gate::of<T>(x, z);
    return f < FUNCTION_SLOPE ? act_value<T>(f - FUNCTION_ACT, x) : x * act_slope<T>(f - FUNCTION_SLOPE, z);
}

__global__ void any_kernel(int f, void *y, const void *a, const void *b, any_types types, loop_nest nest, int64_t n,
                           float value)
{
    const int64_t step = (int64_t)gridDim.x * BLOCK;
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < n; i += step) {
        const int64_t row = quotient(i, nest.size[0]);
        const offsets p = offsets_of(nest, row, i - row * nest.size[0]);
        const double first = any_load(a, types.a, p.a);
        const float x = (float)first, z = b ? (float)any_load(b, types.b, p.b) : 0.0f;
        double out;
        if (f == FUNCTION_CAST) out = first;
        else if (f == FUNCTION_SCALE) out = x * value;
        else if (f == FUNCTION_ADD) out = x + z;
        else if (f == FUNCTION_MUL) out = x * z;
        else if (types.a == ANY_BF16 || types.a == ANY_F16) out = function_of<__nv_bfloat16>(f, x, z);
        else out = function_of<float>(f, x, z);
        any_store(y, types.y, p.y, out);
    }
}

extern "C" cudaError_t cuda_any(enum function f, void *y, const void *a, const void *b, struct any_types types,
                                struct loop_nest nest, float value, cudaStream_t stream)
{
    const int64_t n = loop_nest_elements(&nest);
    any_kernel<<<grid_for(n), BLOCK, 0, stream>>>((int)f, y, a, b, types, nest, n, value);
    return cudaGetLastError();
}

/* Launches f of one or two inputs; b is nullptr for one. */
static int launch_any(const struct launch *l, int f, const struct operand *b, struct error *e)
{
    const struct operand *y = &l->out[0], *a = &l->in[0];
    const any_types types = {any_of(y->dtype), any_of(a->dtype), b ? any_of(b->dtype) : ANY_F32};
    const float value = f == FUNCTION_SCALE ? (float)l->attr->scale.value : 0.0f;
    TRY_CUDA(cuda_any((enum function)f, y->data, a->data, b ? b->data : nullptr, types, loop_nest_of(y, a, b), value,
                      stream_of(l)));
    return PL_OK;
}

template <int F> static int launch_one(const struct launch *l, struct error *e) { return launch_any(l, F, nullptr, e); }
template <int F> static int launch_two(const struct launch *l, struct error *e)
{
    return launch_any(l, F, &l->in[1], e);
}
static int launch_act_any(const struct launch *l, struct error *e)
{
    return launch_any(l, FUNCTION_ACT + l->attr->act.kind, nullptr, e);
}
int launch_act_bwd_any(const struct launch *l, struct error *e)
{
    return launch_any(l, FUNCTION_SLOPE + l->attr->act.kind, &l->in[1], e);
}
static int launch_accumulate_any(const struct launch *l, struct error *e)
{
    CHECK(l->in[1].data == l->out[0].data, "the accumulator is updated in place");
    return launch_any(l, FUNCTION_ADD, &l->in[1], e);
}

CUDA_KERNEL(cuda_add_strided, .launch = launch_strided<FUNCTION_ADD>);
CUDA_KERNEL(cuda_mul_strided, .launch = launch_strided<FUNCTION_MUL>);
CUDA_KERNEL(cuda_silu_gate_any, .launch = launch_two<FUNCTION_SILU_GATE>);
CUDA_KERNEL(cuda_act_bwd_any, .launch = launch_act_bwd_any);
CUDA_KERNEL(cuda_scale_any, .launch = launch_one<FUNCTION_SCALE>);
CUDA_KERNEL(cuda_act_any, .launch = launch_act_any);
CUDA_KERNEL(cuda_cast_any, .launch = launch_one<FUNCTION_CAST>);
CUDA_KERNEL(cuda_accumulate_any, .launch = launch_accumulate_any);

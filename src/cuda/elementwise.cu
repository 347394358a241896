/*
 * elementwise.cu: SILU_GATE, ADD and FILL: every element from the elements at
 * its own place.
 *
 * Invariant: the thread that writes element i is the one that read it, so the
 * result may take an input's bytes.
 */
#include "cuda/device.cuh"

/* --- two inputs, one result --------------------------------------------------- */

struct silu_gate {
    static __device__ float of(float gate, float up) { return gate / (1.0f + expf(-gate)) * up; }
};
struct add {
    static __device__ float of(float a, float b) { return a + b; }
};

template <typename F, typename T, int V> __global__ void pair_kernel(T *y, const T *a, const T *b, int64_t n)
{
    const int64_t first = (int64_t)blockIdx.x * BLOCK + threadIdx.x, step = (int64_t)gridDim.x * BLOCK;
    const int64_t packs = n / V;
    for (int64_t k = first; k < packs; k += step) {
        const pack<T, V> x = reinterpret_cast<const pack<T, V> *>(a)[k];
        const pack<T, V> z = reinterpret_cast<const pack<T, V> *>(b)[k];
        pack<T, V> out;
#pragma unroll
        for (int i = 0; i < V; i++) out.at[i] = from_float<T>(F::of(to_float(x.at[i]), to_float(z.at[i])));
        reinterpret_cast<pack<T, V> *>(y)[k] = out;
    }
    for (int64_t i = packs * V + first; i < n; i += step) y[i] = from_float<T>(F::of(to_float(a[i]), to_float(b[i])));
}

template <typename F, typename T>
static cudaError_t launch_pair(void *y, const void *a, const void *b, int64_t n, cudaStream_t stream)
{
    constexpr int V = 16 / sizeof(T);
    T *to = static_cast<T *>(y);
    const T *x = static_cast<const T *>(a), *z = static_cast<const T *>(b);
    if (is_aligned(y, 16) && is_aligned(a, 16) && is_aligned(b, 16))
        pair_kernel<F, T, V><<<grid_for(n / V), BLOCK, 0, stream>>>(to, x, z, n);
    else
        pair_kernel<F, T, 1><<<grid_for(n), BLOCK, 0, stream>>>(to, x, z, n);
    return cudaGetLastError();
}

template <typename F>
static cudaError_t launch_pair_of(void *y, const void *a, const void *b, enum store type, int64_t n, cudaStream_t stream)
{
    switch (type) {
    case STORE_F32: return launch_pair<F, float>(y, a, b, n, stream);
    case STORE_BF16: return launch_pair<F, __nv_bfloat16>(y, a, b, n, stream);
    case STORE_F16: return launch_pair<F, __half>(y, a, b, n, stream);
    }
    return cudaErrorInvalidValue;
}

extern "C" cudaError_t cuda_silu_gate(void *y, const void *gate, const void *up, enum store type, int64_t n,
                                      cudaStream_t stream)
{
    return launch_pair_of<silu_gate>(y, gate, up, type, n, stream);
}

extern "C" cudaError_t cuda_add(void *y, const void *a, const void *b, enum store type, int64_t n, cudaStream_t stream)
{
    return launch_pair_of<add>(y, a, b, type, n, stream);
}

/* --- fill ------------------------------------------------------------------------- */

/* The first `wide` bytes by 16, the rest one by one; wide is a multiple of 16. */
__global__ void fill_kernel(uint8_t *y, uint64_t pattern, int64_t wide, int64_t bytes)
{
    const int64_t first = (int64_t)blockIdx.x * BLOCK + threadIdx.x, step = (int64_t)gridDim.x * BLOCK;
    const ulonglong2 both = make_ulonglong2(pattern, pattern);
    for (int64_t k = first; k < wide / 16; k += step) reinterpret_cast<ulonglong2 *>(y)[k] = both;
    for (int64_t i = wide + first; i < bytes; i += step) y[i] = (uint8_t)(pattern >> (8 * (i % 8)));
}

extern "C" cudaError_t cuda_fill(void *y, uint64_t pattern, int64_t bytes, cudaStream_t stream)
{
    const int64_t wide = is_aligned(y, 16) ? bytes / 16 * 16 : 0;
    fill_kernel<<<grid_for(wide ? wide / 16 : bytes), BLOCK, 0, stream>>>(static_cast<uint8_t *>(y), pattern, wide, bytes);
    return cudaGetLastError();
}

/* --- probe -------------------------------------------------------------------------- */

extern "C" cudaError_t cuda_probe(void)
{
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, fill_kernel);
}

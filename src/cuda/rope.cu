/*
 * rope.cu: ROPE: the pair (x[i], x[i+D/2]) of each head turns by the angle t * inv_freq[i].
 *
 * The angle is an f32 product, as published models take it; its sine and cosine are exact.
 * A block has one position of one sequence: it makes their D/2 values once, in shared memory,
 * for all heads. Both halves of a pair are read by the thread that writes them: y may be x.
 */
#include "cuda/launch_tokens.h"
#include "cuda/rows.cuh"

template <typename T, int V> static __global__ void rope_kernel(T *y, const T *x, const float *inv_freq, rope_shape s)
{
    extern __shared__ float turns[]; /* [2, D/2]: cosines, sines */
    const int64_t row = blockIdx.x;
    const int half = (int)(s.D / 2), packs = half / V, items = (int)s.H * packs;
    const float t = (float)(row % s.T);
    for (int i = threadIdx.x; i < half; i += blockDim.x) {
        float sine, cosine;
        sincosf(__fmul_rn(t, inv_freq[i]), &sine, &cosine);
        turns[i] = cosine * s.scale;
        turns[half + i] = sine * s.sign * s.scale;
    }
    __syncthreads();
    for (int item = threadIdx.x; item < items; item += blockDim.x) {
        const int i0 = item % packs * V;
        const int64_t at = (row * s.H + item / packs) * s.D + i0;
        float a[V], b[V], c[V], d[V];
        load<V>(a, x + at);
        load<V>(b, x + at + half);
#pragma unroll
        for (int i = 0; i < V; i++) {
            const float cosine = turns[i0 + i], sine = turns[half + i0 + i];
            c[i] = a[i] * cosine - b[i] * sine;
            d[i] = b[i] * cosine + a[i] * sine;
        }
        store<V>(y + at, c);
        store<V>(y + at + half, d);
    }
}

template <typename T, int V>
static void launch_rope(void *y, const void *x, const float *inv_freq, rope_shape s, cudaStream_t stream)
{
    const int64_t items = s.H * (s.D / 2 / V), wanted = items > s.D / 2 ? items : s.D / 2;
    const unsigned threads = (unsigned)(wanted < 64 ? 64 : wanted > BLOCK ? BLOCK : (wanted + WARP - 1) / WARP * WARP);
    rope_kernel<T, V><<<(unsigned)(s.B * s.T), threads, (size_t)s.D * sizeof(float), stream>>>(
        static_cast<T *>(y), static_cast<const T *>(x), inv_freq, s);
}

extern "C" cudaError_t cuda_rope(void *y, const void *x, const float *inv_freq, enum store type, rope_shape s, cudaStream_t stream)
{
    return by_type(type, [&](auto zero) {
        using T = decltype(zero);
        constexpr int V = 16 / sizeof(T);
        if (s.D / 2 % V == 0 && are_aligned(y, x)) launch_rope<T, V>(y, x, inv_freq, s, stream);
        else launch_rope<T, 1>(y, x, inv_freq, s, stream);
    });
}

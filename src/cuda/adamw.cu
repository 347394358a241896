/*
 * adamw.cu: ADAMW, as torch.optim.AdamW:
 *
 *     p -= lr wd p
 *     m += (1-b1) (g - m)          v = b2 v + (1-b2) g^2
 *     p -= lr / (1-b1^t) * m / (sqrt(v) / sqrt(1-b2^t) + eps)
 *
 * What varies by step is read from the step block on the card, so that one
 * captured graph serves every step. found_inf, or a norm that is not finite, leaves
 * every byte as it was.
 */
#include "cuda/device.cuh"

/* Made in double and rounded once, as the CPU does. */
struct scalars {
    float keep;             /* 1 - lr wd */
    float rate1, b2, rate2; /* 1-b1, b2, 1-b2 */
    float root;             /* sqrt(1-b2^t) */
    float eps, size;        /* lr / (1-b1^t) */
    float clip;             /* factor on the gradient */
};

static __device__ scalars prepare(const step_block *step, const float *clip, adamw_rates r)
{
    const double b1 = r.beta1, b2 = r.beta2, lr = (double)step->learning_rate * r.lr_scale;
    scalars s;
    s.keep = (float)(1 - lr * r.weight_decay);
    s.rate1 = (float)(1 - b1);
    s.b2 = r.beta2;
    s.rate2 = (float)(1 - b2);
    s.root = (float)sqrt(1 - pow(b2, (double)step->adam_t));
    s.eps = r.eps;
    s.size = (float)(lr / (1 - pow(b1, (double)step->adam_t)));
    s.clip = clip ? clip[1] : 1.0f;
    return s;
}

static __device__ void update(float &p, float &m, float &v, float g, const scalars &s)
{
    g *= s.clip;
    m += s.rate1 * (g - m);
    v = s.b2 * v + s.rate2 * g * g;
    p = p * s.keep - s.size * (m / (sqrtf(v) / s.root + s.eps));
}

/* Packs of V from the front, the rest element by element; w may be NULL. */
template <typename W, int V>
__global__ void adamw_kernel(float *p, float *m, float *v, W *w, const float *g, const step_block *step,
                             const float *clip, int64_t n, adamw_rates rates)
{
    if (step->found_inf || (clip && !isfinite(clip[0]))) return;
    __shared__ scalars s;
    if (threadIdx.x == 0) s = prepare(step, clip, rates);
    __syncthreads();

    using four = pack<float, V>;
    const int64_t first = (int64_t)blockIdx.x * BLOCK + threadIdx.x, stride = (int64_t)gridDim.x * BLOCK;
    const int64_t packs = n / V;
    for (int64_t k = first; k < packs; k += stride) {
        four a = reinterpret_cast<four *>(p)[k], b = reinterpret_cast<four *>(m)[k], c = reinterpret_cast<four *>(v)[k];
        const four d = reinterpret_cast<const four *>(g)[k];
        pack<W, V> rounded;
#pragma unroll
        for (int i = 0; i < V; i++) {
            update(a.at[i], b.at[i], c.at[i], d.at[i], s);
            rounded.at[i] = from_float<W>(a.at[i]);
        }
        reinterpret_cast<four *>(p)[k] = a;
        reinterpret_cast<four *>(m)[k] = b;
        reinterpret_cast<four *>(v)[k] = c;
        if (w) reinterpret_cast<pack<W, V> *>(w)[k] = rounded;
    }
    for (int64_t i = packs * V + first; i < n; i += stride) {
        update(p[i], m[i], v[i], g[i], s);
        if (w) w[i] = from_float<W>(p[i]);
    }
}

template <typename W>
static cudaError_t launch_adamw(float *p, float *m, float *v, void *w, const float *g, const step_block *step,
                                const float *clip, int64_t n, adamw_rates rates, cudaStream_t stream)
{
    const bool wide = is_aligned(p, 16) && is_aligned(m, 16) && is_aligned(v, 16) && is_aligned(g, 16) &&
                      is_aligned(w, 4 * sizeof(W));
    W *to = static_cast<W *>(w);
    if (wide)
        adamw_kernel<W, 4><<<grid_for(n / 4), BLOCK, 0, stream>>>(p, m, v, to, g, step, clip, n, rates);
    else
        adamw_kernel<W, 1><<<grid_for(n), BLOCK, 0, stream>>>(p, m, v, to, g, step, clip, n, rates);
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_adamw(float *p, float *m, float *v, void *w, const float *g, const step_block *step,
                                  const float *clip, enum store type, int64_t n, adamw_rates rates, cudaStream_t stream)
{
    switch (type) {
    case STORE_F32: return launch_adamw<float>(p, m, v, w, g, step, clip, n, rates, stream);
    case STORE_BF16: return launch_adamw<__nv_bfloat16>(p, m, v, w, g, step, clip, n, rates, stream);
    case STORE_F16: return launch_adamw<__half>(p, m, v, w, g, step, clip, n, rates, stream);
    }
    return cudaErrorInvalidValue;
}

/*
 * softcap.cu: SOFTCAP and its gradient (the formulas: cpu/rows/softcap.c). A thread reads its pack
 * of elements before it writes it: the result may be an input.
 */
#include "cuda/device/kernel.cuh"

/* Computes dx from dy and x, or without dy y from x. */
template <typename T, int V> static __global__ void softcap_kernel(T *to, const T *dy, const T *x, int64_t n, float cap)
{
    const int64_t i = ((int64_t)blockIdx.x * BLOCK + threadIdx.x) * V;
    if (i >= n) return;
    const float inverse = 1.0f / cap;
    float a[V], d[V] = {};
    load<V>(a, x + i);
    if (dy) load<V>(d, dy + i);
#pragma unroll
    for (int k = 0; k < V; k++) {
        const float t = tanhf(a[k] * inverse);
        a[k] = dy ? d[k] * fmaf(-t, t, 1.0f) : cap * t;
    }
    store<V>(to + i, a);
}

static int launch(const struct launch *l, const void *dy, const void *x, struct error *e)
{
    const int64_t n = operand_elements(&l->out[0]);
    TRY_CUDA(by_type(store_of(l->out[0].dtype), [&](auto zero) {
        using T = decltype(zero);
        const auto run = [&](auto kernel, int V) {
            kernel<<<grid_of_rows(n, (int64_t)BLOCK * V, INT32_MAX), BLOCK, 0,
                     (cudaStream_t)l->stream>>>((T *)l->out[0].data, (const T *)dy, (const T *)x, n,
                                                l->attr->softcap.cap);
        };
        constexpr int V = 16 / sizeof(T);
        if (l->access == 16) run(softcap_kernel<T, V>, V);
        else run(softcap_kernel<T, 1>, 1);
    }));
    return PL_OK;
}

static int launch_softcap(const struct launch *l, struct error *e) { return launch(l, NULL, l->in[0].data, e); }
static int launch_softcap_bwd(const struct launch *l, struct error *e)
{
    return launch(l, l->in[0].data, l->in[1].data, e);
}

CUDA_KERNEL(cuda_softcap, .launch = launch_softcap);
CUDA_KERNEL(cuda_softcap_bwd, .launch = launch_softcap_bwd);

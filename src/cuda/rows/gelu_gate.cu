/*
 * gelu_gate.cu: GELU_GATE and its gradient (the formulas: cpu/rows/gelu_gate.c). act_slope returns
 * gelu of the gate and its derivative.
 */
#include "cuda/device/kernel.cuh"

template <typename T> static __global__ void gate_kernel(T *y, const T *gate, const T *up, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) y[i] = from_float<T>(act_value<T>(ACT_GELU_TANH, to_float(gate[i])) * to_float(up[i]));
}

/* dgate and dup may overwrite gate and up: a thread reads its elements before it writes them. */
template <typename T>
static __global__ void gate_bwd_kernel(T *dgate, T *dup, const T *dy, const T *gate, const T *up, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= n) return;
    float value;
    const float d = to_float(dy[i]), slope = act_slope<T>(ACT_GELU_TANH, to_float(gate[i]), value), u = to_float(up[i]);
    dgate[i] = from_float<T>(d * u * slope);
    dup[i] = from_float<T>(d * value);
}

static unsigned blocks_of(int64_t n) { return grid_of_rows(n, BLOCK, INT32_MAX); }

static int launch_gelu_gate(const struct launch *l, struct error *e)
{
    const int64_t n = operand_elements(&l->out[0]);
    TRY_CUDA(by_type(store_of(l->out[0].dtype), [&](auto zero) {
        using T = decltype(zero);
        gate_kernel<T><<<blocks_of(n), BLOCK, 0, (cudaStream_t)l->stream>>>((T *)l->out[0].data,
                                                                            (const T *)l->in[0].data,
                                                                            (const T *)l->in[1].data, n);
    }));
    return PL_OK;
}

static int launch_gelu_gate_bwd(const struct launch *l, struct error *e)
{
    const int64_t n = operand_elements(&l->in[0]);
    TRY_CUDA(by_type(store_of(l->in[0].dtype), [&](auto zero) {
        using T = decltype(zero);
        gate_bwd_kernel<T>
            <<<blocks_of(n), BLOCK, 0, (cudaStream_t)l->stream>>>((T *)l->out[0].data, (T *)l->out[1].data,
                                                                  (const T *)l->in[0].data, (const T *)l->in[1].data,
                                                                  (const T *)l->in[2].data, n);
    }));
    return PL_OK;
}

CUDA_KERNEL(cuda_gelu_gate, .launch = launch_gelu_gate);
CUDA_KERNEL(cuda_gelu_gate_bwd, .launch = launch_gelu_gate_bwd);

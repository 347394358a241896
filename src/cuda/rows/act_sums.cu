/*
 * act_sums.cu: ACT_BWD_SUM: dx as in ACT_BWD, and its column sums, computed from the stored
 * (rounded) values while they are still in registers; and, on request, the recomputed value y of
 * the activation. Two stages, as in sums.cu; loop_nest.h describes the split of the rows.
 *
 * The thread that writes a pack is the one that read it: dx and y may alias inputs.
 */
#include "cuda/rows/column_sums.cuh"
#include "cuda/rows/elementwise.cuh"

static_assert(BLOCK == ACT_THREADS, "loop_nest.h counts in blocks of this size");

template <int KIND, typename T, bool RECOMPUTE_Y>
static __global__ void __launch_bounds__(BLOCK, 4)
    act_sums_kernel(T *dx, T *y, float *partial, const T *dy, const T *x, act_sums s)
{
    constexpr int V = 16 / sizeof(T);
    __shared__ float meet[ACT_LINES][ACT_ACROSS * V];
    pdl_launch_dependents();
    const int64_t block = blockIdx.x / (unsigned)s.tiles, tile = blockIdx.x - block * s.tiles;
    const int lane = threadIdx.x % ACT_ACROSS, line = (int)threadIdx.x / ACT_ACROSS;
    const int64_t c = (tile * ACT_ACROSS + lane) * V, begin = block * s.each,
                  end = begin + s.each < s.rows ? begin + s.each : s.rows;
    float sum[V];
#pragma unroll
    for (int i = 0; i < V; i++) sum[i] = 0;
    for (int64_t r = begin + line; c < s.C && r < end; r += ACT_TURN * ACT_LINES) {
        uint4 d[ACT_TURN], a[ACT_TURN];
#pragma unroll
        for (int k = 0; k < ACT_TURN; k++) {
            if (r + k * ACT_LINES >= end) continue;
            d[k] = *reinterpret_cast<const uint4 *>(dy + (r + k * ACT_LINES) * s.C + c);
            a[k] = *reinterpret_cast<const uint4 *>(x + (r + k * ACT_LINES) * s.C + c);
        }
#pragma unroll
        for (int k = 0; k < ACT_TURN; k++) {
            if (r + k * ACT_LINES >= end) continue;
            const pack<T, V> p = *reinterpret_cast<const pack<T, V> *>(&d[k]),
                             q = *reinterpret_cast<const pack<T, V> *>(&a[k]);
            pack<T, V> out, again;
#pragma unroll
            for (int i = 0; i < V; i++) {
                float value;
                out.at[i] = from_float<T>(f_slope<KIND>::template of<T>(to_float(p.at[i]), to_float(q.at[i]), value));
                if (RECOMPUTE_Y) again.at[i] = from_float<T>(value);
                sum[i] += to_float(out.at[i]);
            }
            *reinterpret_cast<pack<T, V> *>(dx + (r + k * ACT_LINES) * s.C + c) = out;
            if (RECOMPUTE_Y) *reinterpret_cast<pack<T, V> *>(y + (r + k * ACT_LINES) * s.C + c) = again;
        }
    }
    /* Column i of a thread's V is at i * ACT_ACROSS + lane of its line. */
#pragma unroll
    for (int i = 0; i < V; i++) meet[line][i * ACT_ACROSS + lane] = sum[i];
    __syncthreads();
    for (int j = threadIdx.x; j < ACT_ACROSS * V; j += BLOCK) {
        const int64_t column = (tile * ACT_ACROSS + j % ACT_ACROSS) * V + j / ACT_ACROSS;
        float total = 0;
        for (int l = 0; l < ACT_LINES; l++) total += meet[l][j];
        if (column < s.C) partial[block * s.C + column] = total;
    }
}

/* One element at a time, for short rows or unaligned operands. */
template <int KIND, typename T> static __global__ void act_both_kernel(T *dx, T *y, const T *dy, const T *x, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < n; i += (int64_t)gridDim.x * BLOCK) {
        const float d = to_float(dy[i]), a = to_float(x[i]);
        float value;
        dx[i] = from_float<T>(f_slope<KIND>::template of<T>(d, a, value));
        y[i] = from_float<T>(value);
    }
}

static int launch_act_bwd_sum(const struct launch *l, struct error *e)
{
    const struct operand *dx = &l->out[0];
    const act_sums s = act_sums_of(operand_rows(dx), launch_whole(l, operand_rows(dx)), operand_last(dx),
                                   (int)dtype_size(dx->dtype));
    const int64_t grid = s.tiles * s.blocks;
    void *y = l->nout > 2 ? l->out[2].data : nullptr;
    float *partial = (float *)l->work;
    const typed_ptr to = {l->out[1].data, STORE_F32};
    if (grid > INT32_MAX) TRY_CUDA(cudaErrorInvalidValue);
    TRY_CUDA(by_kind(l->attr->act.kind, [&](auto k) {
        return by_type(store_of(dx->dtype), [&](auto zero) {
            using T = decltype(zero);
            const auto kernel =
                y ? act_sums_kernel<decltype(k)::value, T, true> : act_sums_kernel<decltype(k)::value, T, false>;
            kernel<<<(unsigned)grid, BLOCK, 0, stream_of(l)>>>(out_as<T>(l, 0), (T *)y, partial, in_as<T>(l, 0),
                                                               in_as<T>(l, 1), s);
        });
    }));
    launch_column_sums({to, to, s.C, 0}, partial, s.blocks, s.C, stream_of(l));
    TRY_CUDA(cudaGetLastError());
    return PL_OK;
}

/* Launches ACT_BWD and then SUM_TO, by their own kernels. */
template <int (*ACT_BWD)(const struct launch *, struct error *)>
static int launch_act_bwd_then_sum(const struct launch *l, struct error *e)
{
    const struct operand *dx = &l->out[0];
    const int64_t n = operand_elements(dx);
    if (l->nout > 2 && l->out[2].data)
        TRY_CUDA(by_kind(l->attr->act.kind, [&](auto k) {
            return by_type(store_of(dx->dtype), [&](auto zero) {
                using T = decltype(zero);
                act_both_kernel<decltype(k)::value, T><<<grid_for(n), BLOCK, 0, stream_of(l)>>>(
                    out_as<T>(l, 0), out_as<T>(l, 2), in_as<T>(l, 0), in_as<T>(l, 1), n);
            });
        }));
    else TRY(ACT_BWD(l, e));
    return launch_sum_columns(l, dx, &l->out[1], false, e);
}

CUDA_KERNEL(cuda_act_bwd_sum, .launch = launch_act_bwd_sum);
CUDA_KERNEL(cuda_act_bwd_then_sum, .launch = launch_act_bwd_then_sum<launch_act_bwd>);
CUDA_KERNEL(cuda_act_bwd_any_then_sum, .launch = launch_act_bwd_then_sum<launch_act_bwd_any>);

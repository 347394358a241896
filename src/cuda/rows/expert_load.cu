/*
 * expert_load.cu: how groups of rows are spread over experts (EXPERT_LOAD), and the loss that
 * balances them (BALANCE). The formulas: cpu/rows/expert_load.c.
 *
 * A group is cut into parts, by its number of rows only, and a block sums a part: each of its warps
 * every LOAD_WARPS-th row, a lane every 32nd expert. A second launch adds the parts in order. The
 * bits of a group depend on no other group.
 */
#include "cuda/device/kernel.cuh"

extern "C" {
#include "cuda/rows/expert_blocks.h"
}

/* --- EXPERT_LOAD ------------------------------------------------------------------------------ */

/* A row's largest logit, and 1 / the sum of exponentials above it. All lanes of a warp call it. */
struct row_softmax {
    float top, factor;
    __device__ row_softmax(typed_ptr x, int64_t row, int E)
    {
        const int lane = threadIdx.x % WARP;
        float most = -INFINITY, sum = 0;
        for (int e = lane; e < E; e += WARP) most = fmaxf(most, element(x, row * E + e));
        top = group_max(most, WARP, NULL);
        for (int e = lane; e < E; e += WARP) sum += expf(element(x, row * E + e) - top);
        factor = 1 / group_sum(sum, WARP, NULL);
    }
    __device__ float of(float logit) const { return expf(logit - top) * factor; }
};

/* Which rows count: those in their own ranges; NULL: all. */
struct row_filter {
    const int32_t *ranges;
    int64_t tokens;
    __device__ bool counts(int64_t row) const
    {
        const int64_t t = row % tokens;
        return !ranges || (ranges[2 * row] <= t && t < ranges[2 * row + 1]);
    }
};
static row_filter filter_of(const struct launch *l)
{
    return row_filter{(const int32_t *)data_in(l, 2), l->attr->expert_load.tokens};
}

/* Writes sums [groups, parts, 2, E]: chances, then loads. */
static __global__ void __launch_bounds__(LOAD_WARPS *WARP)
    part_kernel(float *sums, typed_ptr logits, const int32_t *index, row_filter filter, int64_t rows, int64_t each,
                int E, int k)
{
    extern __shared__ float shared[]; /* [warps, 2, E] */
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int64_t first = (int64_t)blockIdx.y * rows, begin = first + blockIdx.x * each,
                  end = min(begin + each, first + rows);
    float *chance = shared + 2 * warp * E, *load = chance + E;
    for (int e = lane; e < 2 * E; e += WARP) chance[e] = 0;
    __syncwarp();
    for (int64_t r = begin + warp; r < end; r += LOAD_WARPS) {
        if (!filter.counts(r)) continue;
        const row_softmax p(logits, r, E);
        for (int e = lane; e < E; e += WARP) chance[e] += p.of(element(logits, r * E + e));
        for (int j = 0; j < k; j++) {
            const int32_t i = index[r * k + j];
            const int e = (unsigned)i < (unsigned)E ? i : 0;
            if (e % WARP == lane) load[e] += 1;
        }
    }
    __syncthreads();
    float *to = sums + (blockIdx.y * (int64_t)gridDim.x + blockIdx.x) * 2 * E;
    for (int e = threadIdx.x; e < 2 * E; e += LOAD_WARPS * WARP) {
        float sum = 0;
        for (int w = 0; w < LOAD_WARPS; w++) sum += shared[2 * w * E + e];
        to[e] = sum;
    }
}

static __global__ void group_kernel(float *chance, float *load, const float *sums, int parts, int E)
{
    const int64_t g = blockIdx.x;
    for (int e = threadIdx.x; e < 2 * E; e += BLOCK) {
        double sum = 0;
        for (int p = 0; p < parts; p++) sum += (double)sums[(g * parts + p) * 2 * E + e];
        (e < E ? chance[g * E + e] : load[g * E + e - E]) = (float)sum;
    }
}

static int launch_expert_load(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0];
    const int64_t rows = l->attr->expert_load.rows, groups = x->dim[0] / rows, parts = load_parts(rows);
    const int E = (int)x->dim[1];
    float *sums = (float *)l->work;
    if (E > EXPERTS_MOST || groups > GROUPS_MOST || l->work_bytes < load_work(x->dim[0], rows, E))
        TRY_CUDA(cudaErrorInvalidValue);
    const dim3 grid((unsigned)parts, (unsigned)groups);
    part_kernel<<<grid, LOAD_WARPS * WARP, LOAD_WARPS * 2 * (size_t)E * sizeof(float), (cudaStream_t)l->stream>>>(
        sums, typed_ptr{x->data, store_of(x->dtype)}, (const int32_t *)l->in[1].data, filter_of(l), rows,
        load_each(rows), E, (int)l->in[1].dim[1]);
    TRY_CUDA(cudaGetLastError());
    group_kernel<<<(unsigned)groups, BLOCK, 0, (cudaStream_t)l->stream>>>((float *)l->out[0].data,
                                                                          (float *)l->out[1].data, sums, (int)parts, E);
    TRY_CUDA(cudaGetLastError());
    return PL_OK;
}

/* Computes a row with each warp. dlogits may be the logits: a lane reads an element before it
 * writes it, and after the row's sums. */
static __global__ void expert_load_bwd_kernel(typed_ptr dlogits, const float *dchance, typed_ptr logits,
                                              row_filter filter, int64_t R, int64_t rows, int E)
{
    const int lane = threadIdx.x % WARP;
    const int64_t warps = (int64_t)gridDim.x * (BLOCK / WARP);
    for (int64_t r = (int64_t)blockIdx.x * (BLOCK / WARP) + threadIdx.x / WARP; r < R; r += warps) {
        const float *d = dchance + r / rows * E;
        const bool live = filter.counts(r);
        const row_softmax p(logits, r, E);
        float dot = 0;
        for (int e = lane; e < E; e += WARP) dot += p.of(element(logits, r * E + e)) * d[e];
        dot = group_sum(dot, WARP, NULL);
        for (int e = lane; e < E; e += WARP) {
            const float dx[1] = {live ? p.of(element(logits, r * E + e)) * (d[e] - dot) : 0.0f};
            store<1>(dlogits, r * E + e, dx);
        }
    }
}

static int launch_expert_load_bwd(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[1];
    const int64_t R = x->dim[0];
    expert_load_bwd_kernel<<<grid_of_rows(R, BLOCK / WARP, GRID_MAX), BLOCK, 0, (cudaStream_t)l->stream>>>(
        typed_ptr{l->out[0].data, store_of(l->out[0].dtype)}, (const float *)l->in[0].data,
        typed_ptr{x->data, store_of(x->dtype)}, filter_of(l), R, l->attr->expert_load.rows, (int)x->dim[1]);
    TRY_CUDA(cudaGetLastError());
    return PL_OK;
}

/* --- BALANCE ---------------------------------------------------------------------------------- */

/* Returns the sum of x[e] y[e] over the experts; y NULL: of x[e]. All threads of the block call it,
 * and have it. */
static __device__ inline double expert_sum(const float *x, const float *y, int E)
{
    __shared__ double all;
    double sum = 0;
    for (int e = threadIdx.x; e < E; e += BLOCK) sum += (double)x[e] * (y ? (double)y[e] : 1.0);
    sum = block_sum_double(sum);
    if (threadIdx.x == 0) all = sum;
    __syncthreads();
    sum = all;
    __syncthreads(); /* before a next sum is written */
    return sum;
}

/* Returns E / n^2 of a group; 0: it has no rows. */
static __device__ inline double balance_factor(const float *load, int E, int k)
{
    const double n = expert_sum(load, NULL, E) / k;
    return n > 0 ? E / (n * n) : 0;
}

static __global__ void __launch_bounds__(BLOCK)
    balance_kernel(float *loss, const float *chance, const float *load, int64_t groups, int E, int k)
{
    double sum = 0;
    for (int64_t g = 0; g < groups; g++) {
        const double factor = balance_factor(load + g * E, E, k);
        sum += factor * expert_sum(chance + g * E, load + g * E, E);
    }
    if (threadIdx.x == 0) *loss = (float)sum;
}

static int launch_balance(const struct launch *l, struct error *e)
{
    balance_kernel<<<1, BLOCK, 0, (cudaStream_t)l->stream>>>(
        (float *)l->out[0].data, (const float *)l->in[0].data, (const float *)l->in[1].data, l->in[0].dim[0],
        (int)l->in[0].dim[1], (int)l->attr->balance.k);
    TRY_CUDA(cudaGetLastError());
    return PL_OK;
}

static __global__ void __launch_bounds__(BLOCK)
    balance_bwd_kernel(float *dchance, const float *load, const float *dloss, int E, int k)
{
    const int64_t g = blockIdx.x;
    const double factor = balance_factor(load + g * E, E, k) * (double)*dloss;
    for (int e = threadIdx.x; e < E; e += BLOCK) dchance[g * E + e] = (float)(factor * (double)load[g * E + e]);
}

static int launch_balance_bwd(const struct launch *l, struct error *e)
{
    balance_bwd_kernel<<<(unsigned)l->in[0].dim[0], BLOCK, 0, (cudaStream_t)l->stream>>>(
        (float *)l->out[0].data, (const float *)l->in[1].data, (const float *)l->in[2].data, (int)l->in[0].dim[1],
        (int)l->attr->balance.k);
    TRY_CUDA(cudaGetLastError());
    return PL_OK;
}

CUDA_KERNEL(cuda_expert_load, .launch = launch_expert_load);
CUDA_KERNEL(cuda_expert_load_bwd, .launch = launch_expert_load_bwd);
CUDA_KERNEL(cuda_balance, .launch = launch_balance);
CUDA_KERNEL(cuda_balance_bwd, .launch = launch_balance_bwd);

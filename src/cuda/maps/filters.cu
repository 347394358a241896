/*
 * filters.cu: BMM_ACT of any shape and activation (thin.cu has the fast kernels for SAM's shapes).
 *
 *     y, dz    one thread per element, which sums along the short side
 *     da       one block per element: each thread sums its positions in ascending order, then
 *              group_sum adds the threads
 */
#include "cuda/device/kernel.cuh"
#include "cuda/maps/mask_blocks.h"
#include "cuda/products/launch_products.h"

static __global__ void forward_kernel(typed_ptr y, typed_ptr a, typed_ptr z, filters n)
{
    const int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= n.batches * n.M * n.N) return;
    const int64_t place = i % n.N, row = i / n.N, batch = row / n.M;
    float sum[1] = {0};
    for (int64_t k = 0; k < n.K; k++)
        sum[0] = fmaf(element(a, row * n.K + k), act_value<float>(n.kind, element(z, (batch * n.N + place) * n.K + k)),
                      sum[0]);
    store<1>(y, i, sum);
}

static __global__ void da_kernel(typed_ptr da, typed_ptr dy, typed_ptr z, filters n)
{
    __shared__ float partial[BLOCK / WARP];
    const int64_t i = blockIdx.x, k = i % n.K, row = i / n.K, batch = row / n.M;
    float own = 0;
    for (int64_t place = threadIdx.x; place < n.N; place += BLOCK)
        own = fmaf(element(dy, row * n.N + place),
                   act_value<float>(n.kind, element(z, (batch * n.N + place) * n.K + k)), own);
    const float sum[1] = {group_sum(own, BLOCK, partial)};
    if (threadIdx.x == 0) store<1>(da, i, sum);
}

static __global__ void dz_kernel(typed_ptr dz, typed_ptr dy, typed_ptr a, typed_ptr z, filters n)
{
    const int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= n.batches * n.N * n.K) return;
    const int64_t k = i % n.K, place = i / n.K % n.N, batch = i / n.K / n.N;
    float sum[1] = {0};
    for (int64_t m = 0; m < n.M; m++)
        sum[0] = fmaf(element(dy, (batch * n.M + m) * n.N + place), element(a, (batch * n.M + m) * n.K + k), sum[0]);
    sum[0] *= act_slope<float>(n.kind, element(z, i));
    store<1>(dz, i, sum);
}

static unsigned blocks_of(int64_t n) { return (unsigned)((n + BLOCK - 1) / BLOCK); }

static filters filters_launched(const struct launch *l, int a)
{
    filters n = filters_of(l->in[a].rank, l->in[a].dim, l->in[a + 1].dim);
    n.kind = l->attr->act.kind;
    return n;
}

static int launch_any(const struct launch *l, struct error *e)
{
    const filters n = filters_launched(l, 0);
    forward_kernel<<<blocks_of(n.batches * n.M * n.N), BLOCK, 0, stream_of(l)>>>(
        typed_of(&l->out[0]), typed_of(&l->in[0]), typed_of(&l->in[1]), n);
    TRY_CUDA(cudaGetLastError());
    return PL_OK;
}

/* Computes da first: dz may alias z. */
static int launch_any_bwd(const struct launch *l, struct error *e)
{
    const filters n = filters_launched(l, 1);
    const typed_ptr dy = typed_of(&l->in[0]), a = typed_of(&l->in[1]), z = typed_of(&l->in[2]);
    da_kernel<<<(unsigned)(n.batches * n.M * n.K), BLOCK, 0, stream_of(l)>>>(typed_of(&l->out[0]), dy, z, n);
    dz_kernel<<<blocks_of(n.batches * n.N * n.K), BLOCK, 0, stream_of(l)>>>(typed_of(&l->out[1]), dy, a, z, n);
    TRY_CUDA(cudaGetLastError());
    return PL_OK;
}

static int launch_thin(const struct launch *l, struct error *e)
{
    const struct operand *a = &l->in[0], *z = &l->in[1], *y = &l->out[0];
    thin t = thin_of(false, true, y->rank, a->dim, z->dim, y->dim);
    t.gelu = true;
    TRY_CUDA(cuda_thin(typed_of(a), typed_of(z), typed_of(y), nullptr, nullptr, t, THIN_FORM_DOWN, stream_of(l)));
    return PL_OK;
}

/* Computes da first: dz may alias z. */
static int launch_thin_bwd(const struct launch *l, struct error *e)
{
    const struct operand *dy = &l->in[0], *a = &l->in[1], *z = &l->in[2], *da = &l->out[0], *dz = &l->out[1];
    thin across = thin_of(false, false, dy->rank, dy->dim, z->dim, da->dim),
         up = thin_of(true, false, dz->rank, dy->dim, a->dim, dz->dim);
    across.gelu = up.gelu = true;
    TRY_CUDA(cuda_thin(typed_of(da), typed_of(z), typed_of(dy), nullptr, (float *)l->work, across, THIN_FORM_ACROSS,
                       stream_of(l)));
    TRY_CUDA(cuda_thin(typed_of(a), typed_of(dz), typed_of(dy), z->data, nullptr, up, THIN_FORM_UP, stream_of(l)));
    return PL_OK;
}

CUDA_KERNEL(cuda_filters_thin, .launch = launch_thin);
CUDA_KERNEL(cuda_filters_thin_bwd, .launch = launch_thin_bwd);
CUDA_KERNEL(cuda_filters, .launch = launch_any);
CUDA_KERNEL(cuda_filters_bwd, .launch = launch_any_bwd);

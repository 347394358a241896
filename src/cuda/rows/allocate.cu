/*
 * allocate.cu: ALLOCATE, as cpu/rows/allocate.c does it. A block has one image: its threads find
 * the best features one after the other, each by a reduction over the image, and one thread shares
 * the tokens among them. A second launch places the tokens of the text.
 */
#include "base/allocation.h"
#include "cuda/device/kernel.cuh"

/* A feature with its score; one that comes before all others is `none`. */
struct candidate {
    float score;
    int at; /* below 0: none */
};

static __device__ bool is_better(struct candidate a, struct candidate b)
{
    return a.at >= 0 && (b.at < 0 || a.score > b.score || (a.score == b.score && a.at < b.at));
}

static __device__ struct candidate best_of_warp(struct candidate x)
{
    for (int k = 16; k; k /= 2) {
        const struct candidate y = {__shfl_xor_sync(0xffffffffu, x.score, k), __shfl_xor_sync(0xffffffffu, x.at, k)};
        if (is_better(y, x)) x = y;
    }
    return x;
}

/* Finds the best feature behind `last`. All threads get it. */
static __device__ struct candidate find_next(typed_ptr score, int64_t row, int begin, int end, struct candidate last,
                                             struct candidate *warps)
{
    struct candidate found = {0, -1};
    for (int i = begin + (int)threadIdx.x; i < end; i += BLOCK) {
        const float raw = element(score, row + i);
        const struct candidate x = {raw == raw ? raw : 0, i};
        if ((last.at < 0 || is_better(last, x)) && is_better(x, found)) found = x;
    }
    found = best_of_warp(found);
    __syncthreads(); /* the warps' candidates of the last call have been read */
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = found;
    __syncthreads();
    for (int w = 0; w < BLOCK / 32; w++)
        if (is_better(warps[w], found)) found = warps[w];
    return found;
}

struct allocate_sizes {
    int F, images, tokens, most, merge;
};

/* Sorts features, of which the first `fine` have the finer level, and writes their tokens. */
static __device__ void put_tokens(int32_t *slot, int32_t *at, struct allocation a, int unit, int tokens)
{
    int n = 0;
    for (int i = 0; i < a.kept; i++) {
        const int32_t x = at[i] * 2 + (i < a.fine);
        int k = i;
        for (; k && at[k - 1] > x; k--) at[k] = at[k - 1];
        at[k] = x;
    }
    for (int k = 0; k < a.kept; k++) {
        const bool fine = at[k] % 2;
        const int32_t feature = at[k] / 2;
        for (int i = 0; i < (fine ? unit : 1); i++, n++) {
            slot[3 * n] = feature;
            slot[3 * n + 1] = fine ? -1 : feature;
            slot[3 * n + 2] = fine ? feature * unit + i : -1;
        }
    }
    for (n *= 3; n < 3 * tokens; n++) slot[n] = -1;
}

static __global__ void __launch_bounds__(BLOCK)
    allocate_kernel(int32_t *slots, typed_ptr score, const int32_t *ranges, struct allocate_sizes z)
{
    __shared__ float best[ALLOCATION_MOST];
    __shared__ int32_t at[ALLOCATION_MOST];
    __shared__ struct candidate warps[BLOCK / 32];
    const int m = (int)(blockIdx.x % (unsigned)z.images), unit = z.merge * z.merge;
    const int64_t r = blockIdx.x / (unsigned)z.images;
    int begin = 0, end = 0;
    for (int i = 0; i <= m; i++) {
        begin = end;
        if (begin < z.F) end = ranges[(r * z.F + begin) * unit * 2 + 1] / unit;
        if (end <= begin || end > z.F) {
            begin = end = 0;
            break;
        }
    }
    const int cap = (int)allocation_most(end - begin, z.tokens, z.most, unit), n = cap < z.tokens ? cap : z.tokens;
    struct candidate last = {0, -1};
    for (int k = 0; k < n; k++) {
        last = find_next(score, r * z.F, begin, end, last, warps);
        if (threadIdx.x == 0) best[k] = last.score, at[k] = last.at;
    }
    __syncthreads();
    if (threadIdx.x) return;
    const struct allocation a = allocation_share(best, end - begin, z.tokens, z.most, unit);
    put_tokens(slots + 3 * (int64_t)blockIdx.x * z.tokens, at, a, unit, z.tokens);
}

static __global__ void __launch_bounds__(BLOCK)
    place_kernel(int32_t *to, const int32_t *slots, const int32_t *places, const int32_t *positions,
                 const int32_t *index, int64_t R, int64_t B, int64_t T, struct allocate_sizes z)
{
    const int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= B * T) return;
    const int64_t r = i / T * R / B, S = (int64_t)z.images * z.tokens;
    const int32_t at = index[i], feature = at >= 0 && at < S ? slots[(r * S + at) * 3] : -1;
    const int32_t *place = places + (r * z.F + (feature < 0 ? 0 : feature)) * z.merge * z.merge * 3;
    for (int k = 0; k < 3; k++) to[3 * i + k] = positions[3 * i + k] + (feature < 0 || !k ? 0 : place[k - 1] / z.merge);
}

static int launch_allocate(const struct launch *l, struct error *e)
{
    const struct operand *score = &l->in[0], *positions = &l->in[3];
    const int64_t R = score->dim[0], B = positions->dim[0], T = positions->dim[1], blocks = (B * T + BLOCK - 1) / BLOCK;
    const struct allocate_sizes z = {(int)score->dim[1], (int)l->attr->allocate.images, (int)l->attr->allocate.tokens,
                                     (int)l->attr->allocate.most, (int)l->attr->allocate.merge};
    const typed_ptr from = {score->data, store_of(score->dtype)};
    int32_t *slots = (int32_t *)l->out[0].data;
    allocate_kernel<<<(unsigned)(R * z.images), BLOCK, 0, (cudaStream_t)l->stream>>>(
        slots, from, (const int32_t *)l->in[1].data, z);
    TRY_CUDA(cudaGetLastError());
    place_kernel<<<(unsigned)blocks, BLOCK, 0, (cudaStream_t)l->stream>>>(
        (int32_t *)l->out[1].data, slots, (const int32_t *)l->in[2].data, (const int32_t *)positions->data,
        (const int32_t *)l->in[4].data, R, B, T, z);
    TRY_CUDA(cudaGetLastError());
    return PL_OK;
}

CUDA_KERNEL(cuda_allocate, .launch = launch_allocate);

/*
 * topk.cu: TOPK. A block has one row, in shared memory. A thread counts the elements that come
 * before its own, as cpu/rows/tokens.c does; those that are kept are written in the order of the
 * row.
 */
#include "cuda/device/kernel.cuh"

static __device__ bool is_larger(float a, float b) { return a > b || (a != a && b == b); }

static __global__ void __launch_bounds__(BLOCK) topk_kernel(int32_t *index, typed_ptr x, int N, int k)
{
    extern __shared__ float row[];
    __shared__ int count[BLOCK / 32]; /* by warp */
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t r = blockIdx.x;
    for (int i = threadIdx.x; i < N; i += BLOCK) row[i] = element(x, r * N + i);
    __syncthreads();
    int n = 0; /* kept so far */
    for (int first = 0; first < N; first += BLOCK) {
        const int i = first + (int)threadIdx.x;
        int before = i < N ? 0 : k;
        for (int j = 0; j < N && before < k; j++)
            before += is_larger(row[j], row[i]) || (j < i && !is_larger(row[i], row[j]));
        const unsigned votes = __ballot_sync(0xffffffffu, before < k);
        if (lane == 0) count[warp] = __popc(votes);
        __syncthreads();
        int at = n + __popc(votes & ((1u << lane) - 1));
        for (int w = 0; w < BLOCK / 32; w++) {
            if (w < warp) at += count[w];
            n += count[w];
        }
        if (before < k) index[r * k + at] = i;
        __syncthreads(); /* before the counts are overwritten */
    }
}

static int launch_topk(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0];
    const int64_t N = x->dim[x->rank - 1], rows = operand_elements(x) / N;
    const typed_ptr from = {x->data, store_of(x->dtype)};
    topk_kernel<<<(unsigned)rows, BLOCK, (size_t)N * sizeof(float), (cudaStream_t)l->stream>>>(
        (int32_t *)l->out[0].data, from, (int)N, (int)l->attr->topk.k);
    TRY_CUDA(cudaGetLastError());
    return PL_OK;
}

CUDA_KERNEL(cuda_topk, .launch = launch_topk);

/*
 * dense.cu: the attention forward on tensor cores, bf16 and f16, where nothing is added
 * to the scores: dense, causal, sliding window, grouped heads.
 *
 * Four warps hold 128 queries, 32 each, and traverse the keys in tiles. Keys and values have one
 * buffer each in shared memory; while one is multiplied, the other is loaded:
 *
 *     s = q k^T   ->   p = 2^(s - maximum)   ->   o += p v
 *     values' copy     next keys' copy
 *
 * s and p are in registers, p rounded to the storage type for its product; sums are f32. Only tiles
 * at an edge are masked.
 */
#include "cuda/attention/tiles.cuh"

constexpr int M = 2, QUERIES = WARPS * 16 * M;
/* Keys per tile: longer rows leave fewer registers. */
template <int D> constexpr int keys_to_tile = D <= 64 ? 128 : 64;

template <typename T, int D> __global__ void __launch_bounds__(FAST_BLOCK, 2) dense_forward(const attention a)
{
    if (!multiplies<T>()) return;
    extern __shared__ __align__(128) uint4 shared[];
    constexpr int KEYS = keys_to_tile<D>;
    const unsigned q = shared_address(shared), k = q + QUERIES * D * 2, v = k + KEYS * D * 2;
    const int tiles = (a.T + QUERIES - 1) / QUERIES, lane = threadIdx.x % 32, own = threadIdx.x / 32 * 16 * M;
    const block_of block = block_in_order((int64_t)a.B * a.H, tiles, a.causal, true);
    const int64_t b = block.head / a.H, h = block.head % a.H, g = h / (a.H / a.G);
    const int t0 = block.tile * QUERIES;
    const span keys = keys_of(a, t0, QUERIES);
    const int begin = keys.begin / KEYS * KEYS;
    const T *from_k = row_at<T>(a.k, b, 0, g), *from_v = row_at<T>(a.v, b, 0, g);
    const float factor = a.scale * LOG2E;

    float o[M][D / 8][4], top[M][2], sum[M][2] = {};
    clear(o);
#pragma unroll
    for (int m = 0; m < M; m++) top[m][0] = top[m][1] = -CUDART_INF_F;
    copy_tile<T, D, QUERIES>(q, row_at<T>(a.q, b, 0, h), a.q.token, t0, a.T);
    if (begin < keys.end) copy_tile<T, D, KEYS>(k, from_k, a.k.token, begin, a.S);
    copy_commit();

    const unsigned own_q = q + own * 2 * D + ldmatrix_left<D>(lane), read_k = k + ldmatrix_right<D>(lane), read_v = v + ldmatrix_left<D>(lane);
    for (int s0 = begin; s0 < keys.end; s0 += KEYS) {
        copy_wait<0>();
        __syncthreads(); /* keys have arrived, values are no longer read */
        copy_tile<T, D, KEYS>(v, from_v, a.v.token, s0, a.S);
        copy_commit();
        float x[M][KEYS / 8][4];
        multiply<T, D, M, KEYS / 8>(x, own_q, read_k);
        copy_wait<0>();
        __syncthreads(); /* values have arrived, keys are no longer read */
        if (s0 + KEYS < keys.end) copy_tile<T, D, KEYS>(k, from_k, a.k.token, s0 + KEYS, a.S);
        copy_commit();
        if (s0 + KEYS > a.S || !all_seen(a, t0, QUERIES, s0, KEYS)) mask_scores<false, M, KEYS / 8>(x, a, t0 + own, s0);
        online_softmax<D, M, KEYS / 8>(x, o, top, sum, factor);
        multiply_add<T, D, M, KEYS / 8>(o, x, read_v);
    }
    copy_wait<0>();

    store_output<T, D, M>(a, b, h, t0 + own, o, top, sum);
}

/* --- launching -------------------------------------------------------------------------------- */

template <typename T, int D> static cudaError_t start(const attention *a, cudaStream_t stream)
{
    const int64_t blocks = (int64_t)a->B * a->H * ((a->T + QUERIES - 1) / QUERIES);
    constexpr size_t bytes = (QUERIES + 2 * keys_to_tile<D>) * D * sizeof(T);
    static_assert(bytes <= ATTENTION_SHARED_SM75, "it fits, on 7.5 too");
    if (blocks < 1 || blocks > INT32_MAX) return cudaErrorInvalidValue; /* the limit of a CUDA grid */
    const cudaError_t rc = allow_shared(dense_forward<T, D>, bytes);
    if (rc != cudaSuccess) return rc;
    dense_forward<T, D><<<(unsigned)blocks, FAST_BLOCK, bytes, stream>>>(*a);
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_attention_dense(const struct attention *a, cudaStream_t stream)
{
    return by_type_and_length(a, [&](auto t, auto d) { return start<decltype(t), decltype(d)::value>(a, stream); });
}

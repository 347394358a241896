/*
 * dense_dq.cu: the attention gradient dq on tensor cores, bf16 and f16, where nothing is
 * added to the scores.
 *
 * Four warps hold 128 queries and their do, 32 each, and traverse the keys in tiles; the next tile
 * is in flight while this one is multiplied:
 *
 *     s = q k^T,  dp = do v^T   ->   ds = 2^(s - lse) (dp - delta)   ->   dq += ds k
 *
 * ds stays in registers, rounded to the storage type. Only tiles at an edge are masked.
 */
#include "cuda/attention/tiles.cuh"

constexpr int M = 2, QUERIES = WARPS * 16 * M;
/* Keys per tile: longer rows leave fewer registers, and less shared memory. */
template <int D> constexpr int keys_to_tile = D <= 64 ? 64 : 32;

template <typename T, int D> __global__ void __launch_bounds__(FAST_BLOCK, 2) dense_dq(const attention a)
{
    if (!multiplies<T>()) return;
    extern __shared__ __align__(128) uint4 shared[];
    constexpr int KEYS = keys_to_tile<D>, N = KEYS / 8, TILE = KEYS * D * 2;
    const unsigned q = shared_address(shared), dout = q + QUERIES * D * 2, k = dout + QUERIES * D * 2, v = k + 2 * TILE;
    const int tiles = (a.T + QUERIES - 1) / QUERIES, lane = threadIdx.x % 32, own = threadIdx.x / 32 * 16 * M;
    const block_of block = block_in_order((int64_t)a.B * a.H, tiles, a.causal, true);
    const int64_t b = block.head / a.H, h = block.head % a.H, g = h / (a.H / a.G);
    const int t0 = block.tile * QUERIES, padded = (a.T + 63) / 64 * 64;
    const span keys = keys_of(a, t0, QUERIES);
    const int begin = keys.begin / KEYS * KEYS;
    const T *from_k = row_at<T>(a.k, b, 0, g), *from_v = row_at<T>(a.v, b, 0, g);
    const float factor = a.scale * LOG2E;

    copy_tile<T, D, QUERIES>(q, row_at<T>(a.q, b, 0, h), a.q.token, t0, a.T);
    copy_tile<T, D, QUERIES>(dout, row_at<T>(a.dout, b, 0, h), a.dout.token, t0, a.T);
    if (begin < keys.end) {
        copy_tile<T, D, KEYS>(k, from_k, a.k.token, begin, a.S);
        copy_tile<T, D, KEYS>(v, from_v, a.v.token, begin, a.S);
    }
    copy_commit();
    float lse[M][2], delta[M][2], dq[M][D / 8][4];
    clear(dq);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int t = t0 + own + 16 * m + lane / 4 + 8 * half;
            lse[m][half] = t < a.T ? a.lse2[block.head * padded + t] : CUDART_INF_F;
            delta[m][half] = t < a.T ? a.delta[block.head * padded + t] : 0.0f;
        }

    const unsigned own_q = q + own * 2 * D + ldmatrix_left<D>(lane), own_dout = own_q + (dout - q);
    unsigned slot = 0;
    for (int s0 = begin; s0 < keys.end; s0 += KEYS, slot ^= TILE) {
        copy_wait<0>();
        __syncthreads(); /* this tile has arrived, the previous one is no longer read */
        if (s0 + KEYS < keys.end) {
            copy_tile<T, D, KEYS>(k + (slot ^ TILE), from_k, a.k.token, s0 + KEYS, a.S);
            copy_tile<T, D, KEYS>(v + (slot ^ TILE), from_v, a.v.token, s0 + KEYS, a.S);
        }
        copy_commit();
        float x[M][N][4], ds[M][N][4];
        multiply<T, D, M, N>(x, own_q, k + slot + ldmatrix_right<D>(lane));
        multiply<T, D, M, N>(ds, own_dout, v + slot + ldmatrix_right<D>(lane));
        if (s0 + KEYS > a.S || !all_seen(a, t0, QUERIES, s0, KEYS)) mask_scores<false, M, N>(x, a, t0 + own, s0);
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    ds[m][n][i] = power_of_two(fmaf(x[m][n][i], factor, -lse[m][i / 2])) * (ds[m][n][i] - delta[m][i / 2]);
        multiply_add<T, D, M, N>(dq, ds, k + slot + ldmatrix_left<D>(lane));
    }
    copy_wait<0>();
#pragma unroll
    for (int m = 0; m < M; m++) store_rows<T, D>(a.dq, b, h, t0 + own + 16 * m, a.T, dq[m], a.scale, a.scale);
}

/* --- launching -------------------------------------------------------------------------------- */

template <typename T, int D> static cudaError_t start(const attention *a, cudaStream_t stream)
{
    const int64_t blocks = (int64_t)a->B * a->H * ((a->T + QUERIES - 1) / QUERIES);
    constexpr size_t bytes = (2 * QUERIES + 4 * keys_to_tile<D>) * D * sizeof(T);
    static_assert(bytes <= (D <= ATTENTION_SMALL ? ATTENTION_SHARED_SM75 : ATTENTION_SHARED), "it fits");
    if (blocks < 1 || blocks > INT32_MAX) return cudaErrorInvalidValue; /* the limit of a CUDA grid */
    const cudaError_t rc = allow_shared(dense_dq<T, D>, bytes);
    if (rc != cudaSuccess) return rc;
    dense_dq<T, D><<<(unsigned)blocks, FAST_BLOCK, bytes, stream>>>(*a);
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_attention_dense_dq(const struct attention *a, cudaStream_t stream)
{
    return by_type_and_length(a, [&](auto t, auto d) { return start<decltype(t), decltype(d)::value>(a, stream); });
}

/*
 * dense_dkv.cu: the attention gradient dk, dv on tensor cores, bf16 and f16, where
 * nothing is added to the scores.
 *
 * Four warps hold keys and their values, 32 each or, for longer rows, 16, and traverse the queries
 * of all heads that read these keys, in tiles; the next tile is in flight. Everything is
 * transposed, keys as rows:
 *
 *     s^T = k q^T,  dp^T = v do^T   ->   p^T, ds^T   ->   dv += p^T do,  dk += ds^T q
 *
 * Tiles begin at multiples of their length, so that lse and delta, which are padded, are loaded in
 * chunks of 16 bytes.
 */
#include "cuda/attention/tiles.cuh"

/* Groups of 16 keys per warp, and queries per tile: as registers and shared memory allow. */
template <int D> constexpr int sixteens = D <= 80 ? 2 : 1;
template <int D> constexpr int queries_to_tile = D == 96 ? 64 : 32;
/* With 16 keys per warp, keys and values are in registers; they are loaded through the tiles'
 * buffers. */
template <int D> constexpr bool is_held = sixteens<D> == 1;
template <int D> constexpr int tiles_begin = is_held<D> ? 0 : 2 * WARPS * 16 * sixteens<D> * D * 2;

/* Loads a tile of queries: rows and statistics. */
template <typename T, int D, int QUERIES>
static __device__ void fetch(unsigned q, unsigned dout, unsigned stats, const attention &a, int64_t b, int64_t h, int t0)
{
    copy_tile<T, D, QUERIES>(q, row_at<T>(a.q, b, 0, h), a.q.token, t0, a.T);
    copy_tile<T, D, QUERIES>(dout, row_at<T>(a.dout, b, 0, h), a.dout.token, t0, a.T);
    constexpr int CHUNKS = QUERIES / 4;
    if (threadIdx.x >= 2 * CHUNKS) return;
    const int64_t at = (b * a.H + h) * ((a.T + 63) / 64 * 64) + t0;
    copy_to(stats + threadIdx.x * 16, (threadIdx.x < CHUNKS ? a.lse2 : a.delta) + at + threadIdx.x % CHUNKS * 4, true);
}

/* Turns products into p and ds, the latter not yet scaled. stats: lse and delta of the tile's
 * queries. */
template <int M, int N> static __device__ void compute_p_ds(float (&x)[M][N][4], float (&dp)[M][N][4], const float *stats, float factor)
{
    const int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < N; n++) {
        const float2 lse = *reinterpret_cast<const float2 *>(stats + 8 * n + column);
        const float2 delta = *reinterpret_cast<const float2 *>(stats + 8 * N + 8 * n + column);
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float p = power_of_two(fmaf(x[m][n][i], factor, i % 2 ? -lse.y : -lse.x));
                x[m][n][i] = p;
                dp[m][n][i] = p * (dp[m][n][i] - (i % 2 ? delta.y : delta.x));
            }
    }
}

template <typename T, int D> __global__ void __launch_bounds__(FAST_BLOCK, 2) dense_dkv(const attention a)
{
    if (!multiplies<T>()) return;
    extern __shared__ __align__(128) uint4 shared[];
    constexpr int M = sixteens<D>, KEYS = WARPS * 16 * M, QUERIES = queries_to_tile<D>, N = QUERIES / 8, TILE = QUERIES * D * 2;
    constexpr int STATS = 2 * QUERIES * 4, BEFORE = tiles_begin<D> + 4 * TILE;
    static_assert(!is_held<D> || 2 * KEYS <= 4 * QUERIES, "keys and values fit the tiles' buffers");
    const unsigned k = shared_address(shared), v = k + KEYS * D * 2, q = k + tiles_begin<D>, dout = q + 2 * TILE, stats = k + BEFORE;
    const int tiles = (a.S + KEYS - 1) / KEYS, group = a.H / a.G, lane = threadIdx.x % 32, own = threadIdx.x / 32 * 16 * M;
    const block_of block = block_in_order((int64_t)a.B * a.G, tiles, a.causal, false);
    const int64_t b = block.head / a.G, g = block.head % a.G;
    const int s0 = block.tile * KEYS;
    const span queries = queries_of(a, s0, KEYS);
    const int begin = queries.begin / QUERIES * QUERIES;
    const float factor = a.scale * LOG2E;

    copy_tile<T, D, KEYS>(k, row_at<T>(a.k, b, 0, g), a.k.token, s0, a.S);
    copy_tile<T, D, KEYS>(v, row_at<T>(a.v, b, 0, g), a.v.token, s0, a.S);
    const unsigned own_k = k + own * 2 * D + ldmatrix_left<D>(lane), own_v = own_k + (v - k);
    unsigned held_k[is_held<D> ? D / 16 : 1][M][4], held_v[is_held<D> ? D / 16 : 1][M][4];
    if constexpr (is_held<D>) {
        copy_commit();
        copy_wait<0>();
        __syncthreads();
        load_held<D, M>(held_k, own_k), load_held<D, M>(held_v, own_v);
        __syncthreads();
    }
    const bool any = begin < queries.end;
    if (any) fetch<T, D, QUERIES>(q, dout, stats, a, b, g * group, begin);
    copy_commit();

    float dk[M][D / 8][4], dv[M][D / 8][4];
    clear(dk), clear(dv);
    int slot = 0, h = 0, t0 = begin; /* over heads, then tiles */
    while (any && h < group) {
        const int next = t0 + QUERIES < queries.end ? t0 + QUERIES : begin, next_h = next == begin ? h + 1 : h, other = slot ^ 1;
        copy_wait<0>();
        __syncthreads(); /* this tile has arrived, the previous one is no longer read */
        if (next_h < group) fetch<T, D, QUERIES>(q + other * TILE, dout + other * TILE, stats + other * STATS, a, b, g * group + next_h, next);
        copy_commit();
        const unsigned here_q = q + slot * TILE, here_dout = dout + slot * TILE;
        float p[M][N][4], ds[M][N][4];
        if constexpr (is_held<D>) {
            multiply_held<T, D, M, N>(p, held_k, here_q + ldmatrix_right<D>(lane));
            multiply_held<T, D, M, N>(ds, held_v, here_dout + ldmatrix_right<D>(lane));
        } else {
            multiply<T, D, M, N>(p, own_k, here_q + ldmatrix_right<D>(lane));
            multiply<T, D, M, N>(ds, own_v, here_dout + ldmatrix_right<D>(lane));
        }
        if (s0 + KEYS > a.S || !all_seen(a, t0, QUERIES, s0, KEYS)) mask_scores<true, M, N>(p, a, s0 + own, t0);
        compute_p_ds<M, N>(p, ds, reinterpret_cast<const float *>(reinterpret_cast<const char *>(shared) + BEFORE + slot * STATS), factor);
        multiply_add<T, D, M, N>(dv, p, here_dout + ldmatrix_left<D>(lane));
        multiply_add<T, D, M, N>(dk, ds, here_q + ldmatrix_left<D>(lane));
        slot = other, h = next_h, t0 = next;
    }
    copy_wait<0>();
#pragma unroll
    for (int m = 0; m < M; m++) {
        store_rows<T, D>(a.dk, b, g, s0 + own + 16 * m, a.S, dk[m], a.scale, a.scale);
        store_rows<T, D>(a.dv, b, g, s0 + own + 16 * m, a.S, dv[m], 1.0f, 1.0f);
    }
}

/* --- launching -------------------------------------------------------------------------------- */

template <typename T, int D> static cudaError_t start(const attention *a, cudaStream_t stream)
{
    constexpr int KEYS = WARPS * 16 * sixteens<D>, QUERIES = queries_to_tile<D>;
    const int64_t blocks = (int64_t)a->B * a->G * ((a->S + KEYS - 1) / KEYS);
    constexpr size_t bytes = tiles_begin<D> + 4 * QUERIES * D * sizeof(T) + 4 * QUERIES * sizeof(float);
    static_assert(bytes <= (D <= ATTENTION_SMALL ? ATTENTION_SHARED_SM75 : ATTENTION_SHARED), "it fits");
    if (blocks < 1 || blocks > INT32_MAX) return cudaErrorInvalidValue; /* the limit of a CUDA grid */
    const cudaError_t rc = allow_shared(dense_dkv<T, D>, bytes);
    if (rc != cudaSuccess) return rc;
    dense_dkv<T, D><<<(unsigned)blocks, FAST_BLOCK, bytes, stream>>>(*a);
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_attention_dense_dkv(const struct attention *a, cudaStream_t stream)
{
    return by_type_and_length(a, [&](auto t, auto d) { return start<decltype(t), decltype(d)::value>(a, stream); });
}

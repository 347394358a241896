/*
 * fast_dkv.cu: the attention gradient dk, dv on tensor cores, bf16 and f16, where
 * something is added to the scores: a mask, the position terms of a grid, a bias by distance.
 *
 * Four warps hold 64 keys and their values, 16 each, in registers, and traverse the queries of all
 * heads that read these keys, in tiles of 32; the next tile is in flight. Everything is transposed,
 * keys as rows:
 *
 *     s^T = k q^T,  dp^T = v do^T   ->   p^T, ds^T   ->   dv += p^T do,  dk += ds^T q
 *
 * With tables, a tile of queries comes with its position terms: those of the grid rows that contain
 * the keys, and of all columns. With a bias, this memory holds the biases. A tile's stats are the
 * lse, delta and grid cell of its queries.
 */
#include "cuda/attention/score_bias.cuh"

constexpr int QUERIES = FAST_DKV_QUERIES, STATS = FAST_DKV_STATS;

/* The maximum number of grid rows that 64 keys span; the offset of a query's column terms after
 * them. */
__device__ inline int rows_of_keys(const attention &a) { return dkv_key_rows(a.height, a.width); }
__host__ __device__ inline int columns_offset(const attention &a) { return dkv_columns(a.height, a.width); }

constexpr int N = QUERIES / 8; /* fragments per row of a tile */

/* A thread's two keys: the mask, and the indices of their terms in a query's row of position
 * terms. */
struct key_info {
    float add[2];
    int row[2], column[2], cell[2];
};
static __device__ key_info own_key_info(const attention &a, int64_t b, int s0)
{
    key_info stats;
    const int lane = threadIdx.x % 32, own = threadIdx.x / 32 * 16;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int s = min(s0 + own + lane / 4 + 8 * half, a.S - 1);
        stats.add[half] = a.mask ? a.mask[b * a.mask_sample + s * a.mask_key] * LOG2E : 0.0f;
        stats.row[half] = s / a.width - s0 / a.width;
        stats.column[half] = columns_offset(a) + s % a.width;
        stats.cell[half] = grid_cell(a, s);
    }
    return stats;
}

/* Loads the position terms of a tile of queries, in chunks of 16 bytes if they are aligned. */
static __device__ void fetch_key_positions(float *to, int stride, const attention &a, int64_t head, int t0, int s0)
{
    const int rows = rows_of_keys(a), behind = columns_offset(a), top = s0 / a.width, R = positions(a);
    const float *from = a.rel + (head * a.T + t0) * R;
    const bool whole = a.height % 4 == 0 && a.width % 4 == 0;
    for (int r = threadIdx.x / 32; r < QUERIES; r += WARPS) {
        const float *row = from + (t0 + r < a.T ? r * R : 0);
        for (int c = threadIdx.x % 32; c < rows; c += 32) copy4(to + r * stride + c, row + min(top + c, a.height - 1), true);
        if (whole)
            for (int c = threadIdx.x % 32 * 4; c < a.width; c += 128) copy16(to + r * stride + behind + c, row + a.height + c, true);
        else
            for (int c = threadIdx.x % 32; c < a.width; c += 32) copy4(to + r * stride + behind + c, row + a.height + c, true);
    }
}

/* Loads a tile of queries: rows, stats, position terms. */
template <typename T, int D, attention_mode MODE>
static __device__ void fetch(unsigned q, unsigned dout, float *stats, float *rel, const attention &a, int64_t b, int64_t h, int t0, int s0, int stride)
{
    constexpr int CHUNKS = QUERIES / 4;
    const int64_t head = b * a.H + h;
    copy_tile<T, D, QUERIES>(q, row_at<T>(a.q, b, 0, h), a.q.token, t0, a.T);
    copy_tile<T, D, QUERIES>(dout, row_at<T>(a.dout, b, 0, h), a.dout.token, t0, a.T);
    if (threadIdx.x < 2 * CHUNKS)
        copy16(stats + threadIdx.x * 4, (threadIdx.x < CHUNKS ? a.lse2 : a.delta) + head * ((a.T + 63) / 64 * 64) + t0 + threadIdx.x % CHUNKS * 4, true);
    if (MODE == ATTENTION_BY_BIAS && threadIdx.x < QUERIES)
        reinterpret_cast<int *>(stats)[2 * QUERIES + threadIdx.x] = grid_cell(a, min(t0 + (int)threadIdx.x, a.T - 1));
    if (MODE == ATTENTION_BY_TABLES) fetch_key_positions(rel, stride, a, head, t0, s0);
}

/* Turns products into scores. */
template <attention_mode MODE>
static __device__ void add_score_bias(float (&x)[N][4], const attention &a, const key_info &of, const float *stats, const float *rel, int stride, bool one_row)
{
    const int column = threadIdx.x % 4 * 2;
    const float factor = a.scale * LOG2E;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int side = 0; side < 2; side++) {
            const int c = 8 * n + column + side;
            float add[2] = {of.add[0], of.add[1]};
            if (MODE == ATTENTION_BY_TABLES) {
                const float *from = rel + c * stride, upper = from[of.row[0]], lower = one_row ? upper : from[of.row[1]];
                add[0] = upper + from[of.column[0]], add[1] = lower + from[of.column[1]];
            }
            if (MODE == ATTENTION_BY_BIAS) {
                const int cell = reinterpret_cast<const int *>(stats)[2 * QUERIES + c];
                add[0] = rel[bias_between(a, of.cell[0], cell)], add[1] = rel[bias_between(a, of.cell[1], cell)];
            }
            x[n][side] = fmaf(x[n][side], factor, add[0]), x[n][2 + side] = fmaf(x[n][2 + side], factor, add[1]);
        }
}

/* Turns scores and dp into p and ds, the latter not yet scaled. */
static __device__ void compute_p_ds(float (&x)[N][4], float (&dp)[N][4], const float *stats)
{
#pragma unroll
    for (int n = 0; n < N; n++) {
        const float2 lse = *reinterpret_cast<const float2 *>(stats + 8 * n + threadIdx.x % 4 * 2);
        const float2 delta = *reinterpret_cast<const float2 *>(stats + QUERIES + 8 * n + threadIdx.x % 4 * 2);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[n][i] = power_of_two(x[n][i] - (i % 2 ? lse.y : lse.x));
            dp[n][i] = x[n][i] * (dp[n][i] - (i % 2 ? delta.y : delta.x));
        }
    }
}

template <typename T, int D, attention_mode MODE>
__global__ void __launch_bounds__(FAST_BLOCK, D > 64 ? 2 : 3) fast_dkv(const attention a, int stride)
{
    if (!multiplies<T>()) return;
    extern __shared__ __align__(128) uint4 shared[];
    constexpr int TILE = QUERIES * D * 2;
    static_assert(2 * HELD == 4 * QUERIES, "keys and values are loaded through the tiles' buffers");
    const unsigned q = shared_address(shared), dout = q + 2 * TILE;
    float *stats = reinterpret_cast<float *>(reinterpret_cast<char *>(shared) + 4 * TILE), *rel = stats + 2 * STATS;
    const int tiles = (a.S + HELD - 1) / HELD, group = a.H / a.G, room = MODE == ATTENTION_BY_TABLES ? QUERIES * stride : 0;
    const int lane = threadIdx.x % 32, own = threadIdx.x / 32 * 16;
    const block_of block = block_in_order((int64_t)a.B * a.G, tiles, a.causal, false);
    const int64_t b = block.head / a.G, g = block.head % a.G;
    const int s0 = block.tile * HELD;
    const span queries = queries_of(a, s0, HELD);
    const int begin = queries.begin / QUERIES * QUERIES;
    const bool any = begin < queries.end, one_row = s0 / a.width == (min(s0 + HELD, a.S) - 1) / a.width;

    copy_tile<T, D, HELD>(q, row_at<T>(a.k, b, 0, g), a.k.token, s0, a.S);
    copy_tile<T, D, HELD>(dout, row_at<T>(a.v, b, 0, g), a.v.token, s0, a.S);
    copy_commit();
    const key_info of = own_key_info(a, b, s0);
    if (MODE == ATTENTION_BY_BIAS) /* here a group is one head */
        for (int i = threadIdx.x; i < a.T; i += FAST_BLOCK) rel[i] = a.bias[g * a.T + i];
    unsigned k[D / 16][1][4], v[D / 16][1][4];
    copy_wait<0>();
    __syncthreads();
    load_held<D, 1>(k, q + own * 2 * D + ldmatrix_left<D>(lane));
    load_held<D, 1>(v, dout + own * 2 * D + ldmatrix_left<D>(lane));
    __syncthreads();
    if (any) fetch<T, D, MODE>(q, dout, stats, rel, a, b, g * group, begin, s0, stride);
    copy_commit();

    float dk[1][D / 8][4], dv[1][D / 8][4];
    clear(dk), clear(dv);
    int slot = 0, h = 0, t0 = begin; /* over heads, then tiles */
    while (any && h < group) {
        const int next = t0 + QUERIES < queries.end ? t0 + QUERIES : begin, next_h = next == begin ? h + 1 : h, other = slot ^ 1;
        copy_wait<0>();
        __syncthreads(); /* this tile has arrived, the previous one is no longer read */
        if (next_h < group)
            fetch<T, D, MODE>(q + other * TILE, dout + other * TILE, stats + other * STATS, rel + other * room, a, b, g * group + next_h, next, s0, stride);
        copy_commit();
        const unsigned here_q = q + slot * TILE, here_dout = dout + slot * TILE;
        float p[1][N][4], ds[1][N][4];
        multiply_held<T, D, 1, N>(p, k, here_q + ldmatrix_right<D>(lane));
        multiply_held<T, D, 1, N>(ds, v, here_dout + ldmatrix_right<D>(lane));
        add_score_bias<MODE>(p[0], a, of, stats + slot * STATS, rel + slot * room, stride, one_row);
        if (s0 + HELD > a.S || !all_seen(a, t0, QUERIES, s0, HELD)) mask_scores<true, 1, N>(p, a, s0 + own, t0);
        compute_p_ds(p[0], ds[0], stats + slot * STATS);
        multiply_add<T, D, 1, N>(dv, p, here_dout + ldmatrix_left<D>(lane));
        multiply_add<T, D, 1, N>(dk, ds, here_q + ldmatrix_left<D>(lane));
        slot = other, h = next_h, t0 = next;
    }
    copy_wait<0>();
    store_rows<T, D>(a.dk, b, g, s0 + own, a.S, dk[0], a.scale, a.scale);
    store_rows<T, D>(a.dv, b, g, s0 + own, a.S, dv[0], 1.0f, 1.0f);
}

/* --- launching -------------------------------------------------------------------------------- */

template <typename T, int D, attention_mode MODE> static cudaError_t start(const attention *a, cudaStream_t stream)
{
    const int stride = position_stride(columns_offset(*a) + a->width);
    const int64_t blocks = (int64_t)a->B * a->G * ((a->S + HELD - 1) / HELD);
    static_assert(fast_dkv_bytes(D, MODE, position_stride(ATTENTION_GRID + 3), ATTENTION_BIASES) <= ATTENTION_SHARED, "it fits");
    const size_t bytes = fast_dkv_bytes(D, MODE, stride, a->T);
    if (blocks < 1 || blocks > INT32_MAX) return cudaErrorInvalidValue; /* the limit of a CUDA grid */
    const cudaError_t rc = allow_shared(fast_dkv<T, D, MODE>, bytes);
    if (rc != cudaSuccess) return rc;
    fast_dkv<T, D, MODE><<<(unsigned)blocks, FAST_BLOCK, bytes, stream>>>(*a, stride);
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_attention_fast_dkv(const struct attention *a, cudaStream_t stream)
{
    return by_type_length_and_mode(a, [&](auto t, auto d, auto mode) { return start<decltype(t), decltype(d)::value, decltype(mode)::value>(a, stream); });
}

/*
 * attention_fast_dkv.cu: attention's gradient by keys on tensor cores, bf16 and f16.
 *
 * Four warps hold 64 keys and their values, 16 each, and walk the queries, of all the heads that
 * read these keys, in tiles. Everything stands on its side, keys as rows:
 *
 *     s^T = k q^T,  dp^T = v do^T   ->   p^T, ds^T   ->   dv += p^T do,  dk += ds^T q
 *
 * By tables, a tile of queries brings its positions: those of the grid's rows that the keys lie
 * in, and of all columns. A bias lies in their place.
 */
#include "cuda/attention_mma.cuh"

/* Queries to a tile: longer rows leave fewer registers. */
template <int D> constexpr int queries_to_tile = D <= 64 ? 64 : 32;

struct query_notes {
    float lse[2][64], delta[2][64];
    int place[2][64];
};

/* Rows of the grid that 64 keys may lie in. */
__host__ __device__ inline int rows_of_keys(const attention &a)
{
    const int rows = (HELD - 1) / a.width + 2;
    return rows < a.height ? rows : a.height;
}

#if HAS_MMA

/* What a thread knows of its two keys: the mask, and the places of their positions in a query's row. */
struct key_notes {
    float add[2];
    int row[2], column[2], place[2];
};
static __device__ key_notes note_keys(const attention &a, int64_t b, int s0)
{
    key_notes notes;
    const int lane = threadIdx.x % 32, own = threadIdx.x / 32 * 16;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int s = min(s0 + own + lane / 4 + 8 * half, a.S - 1);
        notes.add[half] = a.mask ? a.mask[b * a.mask_sample + s * a.mask_key] * LOG2E : 0.0f;
        notes.row[half] = s / a.width - s0 / a.width;
        notes.column[half] = rows_of_keys(a) + s % a.width;
        notes.place[half] = place_of(a, s);
    }
    return notes;
}

/* A tile of queries: rows, statistics, positions. */
template <typename T, int D, int QUERIES>
static __device__ void bring(T *q, T *dout, query_notes *notes, float *rel, int slot, const attention &a, int64_t b, int64_t h,
                             int t0, int s0, int stride)
{
    copy_rows<T, D, QUERIES>(q, a.q, b, h, t0, a.T);
    copy_rows<T, D, QUERIES>(dout, a.dout, b, h, t0, a.T);
    for (int i = threadIdx.x; i < QUERIES; i += FAST_BLOCK) {
        const int t = t0 + i;
        const float lse = t < a.T ? *lse_at(a, b, h, t) : CUDART_INF_F;
        notes->lse[slot][i] = lse == -CUDART_INF_F ? CUDART_INF_F : lse * LOG2E; /* 2^(s - inf) = 0 */
        notes->delta[slot][i] = t < a.T ? a.delta[(b * a.H + h) * a.T + t] : 0.0f;
        notes->place[slot][i] = place_of(a, min(t, a.T - 1));
    }
    if (a.mode != ATTENTION_BY_TABLES) return;
    const int rows = rows_of_keys(a), wide = rows + a.width, top = s0 / a.width;
    const float *from = a.rel + (b * a.H + h) * a.T * positions(a);
    for (int i = threadIdx.x; i < QUERIES * wide; i += FAST_BLOCK) {
        const int r = i / wide, c = i % wide, place = c < rows ? top + c : a.height + c - rows;
        const bool there = t0 + r < a.T && (c >= rows || top + c < a.height);
        copy4(rel + r * stride + c, from + (there ? (int64_t)(t0 + r) * positions(a) + place : 0), there);
    }
}

/* Products become p and ds, the latter not yet scaled. */
template <int QUERIES>
static __device__ void make_pair(float (&x)[QUERIES / 8][4], float (&dp)[QUERIES / 8][4], const attention &a,
                                 const key_notes &of, const query_notes *notes, const float *rel, int slot, int t0, int s0,
                                 int stride)
{
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4, column = lane % 4 * 2;
    const bool whole = all_seen(a, t0, QUERIES, s0, HELD);
    const float factor = a.scale * LOG2E;
#pragma unroll
    for (int n = 0; n < QUERIES / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int c = 8 * n + column + i % 2, half = i / 2;
            float score = x[n][i] * factor + of.add[half];
            if (a.mode == ATTENTION_BY_TABLES) score += rel[c * stride + of.row[half]] + rel[c * stride + of.column[half]];
            if (a.mode == ATTENTION_BY_BIAS) score += rel[bias_between(a, of.place[half], notes->place[slot][c])];
            if (!whole && !key_seen(a, t0 + c, s0 + row + 8 * half)) score = -CUDART_INF_F;
            x[n][i] = exp2f(score - notes->lse[slot][c]);
            dp[n][i] = x[n][i] * (dp[n][i] - notes->delta[slot][c]);
        }
}

#endif

template <typename T, int D> __global__ void __launch_bounds__(FAST_BLOCK) fast_dkv(const attention a, int stride)
{
#if HAS_MMA
    extern __shared__ uint4 shared[];
    constexpr int QUERIES = queries_to_tile<D>, TILE = QUERIES * (D + 8);
    T *k = reinterpret_cast<T *>(shared), *v = k + HELD * (D + 8), *q = v + HELD * (D + 8), *dout = q + 2 * TILE;
    query_notes *notes = reinterpret_cast<query_notes *>(dout + 2 * TILE);
    float *rel = reinterpret_cast<float *>(notes + 1);
    const int tiles = (a.S + HELD - 1) / HELD, s0 = (int)(blockIdx.x % tiles) * HELD, own = threadIdx.x / 32 * 16;
    const int group = a.H / a.G, room = a.mode == ATTENTION_BY_TABLES ? QUERIES * stride : 0;
    const int64_t head = blockIdx.x / tiles, b = head / a.G, g = head % a.G;
    const span queries = queries_of(a, s0, HELD);
    const int length = queries.end > queries.begin ? (queries.end - queries.begin + QUERIES - 1) / QUERIES : 0;
    const int steps = length * group; /* head by head, tile by tile */

    copy_rows<T, D, HELD>(k, a.k, b, g, s0, a.S);
    copy_rows<T, D, HELD>(v, a.v, b, g, s0, a.S);
    if (steps) bring<T, D, QUERIES>(q, dout, notes, rel, 0, a, b, g * group, queries.begin, s0, stride);
    if (a.mode == ATTENTION_BY_BIAS) /* a group is one head */
        for (int i = threadIdx.x; i < a.T; i += FAST_BLOCK) rel[i] = a.bias[g * a.T + i];
    copy_commit();
    const key_notes of = note_keys(a, b, s0);

    float dk[D / 8][4], dv[D / 8][4];
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) dk[n][i] = dv[n][i] = 0;
    for (int step = 0; step < steps; step++) {
        const int slot = step & 1, other = slot ^ 1, next = step + 1;
        if (next < steps)
            bring<T, D, QUERIES>(q + other * TILE, dout + other * TILE, notes, rel + other * room, other, a, b,
                                 g * group + next / length, queries.begin + next % length * QUERIES, s0, stride);
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        float p[QUERIES / 8][4], ds[QUERIES / 8][4];
        product_rows<T, D, QUERIES / 8>(p, k + own * (D + 8), q + slot * TILE);
        product_rows<T, D, QUERIES / 8>(ds, v + own * (D + 8), dout + slot * TILE);
        make_pair<QUERIES>(p, ds, a, of, notes, rel + slot * room, slot, queries.begin + step % length * QUERIES, s0, stride);
        product_add<T, D, QUERIES / 8>(dv, p, dout + slot * TILE);
        product_add<T, D, QUERIES / 8>(dk, ds, q + slot * TILE);
        __syncthreads();
    }
    copy_wait<0>();
    store_rows<T, D>(a.dk, b, g, s0 + own, a.S, dk, a.scale, a.scale);
    store_rows<T, D>(a.dv, b, g, s0 + own, a.S, dv, 1.0f, 1.0f);
#endif
}

/* --- launching -------------------------------------------------------------------------------- */

template <typename T, int D> static cudaError_t start(const attention *a, cudaStream_t stream)
{
    constexpr int QUERIES = queries_to_tile<D>;
    const int stride = position_stride(rows_of_keys(*a) + a->width);
    const int64_t blocks = (int64_t)a->B * a->G * ((a->S + HELD - 1) / HELD);
    size_t bytes = (2 * HELD + 4 * QUERIES) * (D + 8) * sizeof(T) + sizeof(query_notes);
    if (a->mode == ATTENTION_BY_TABLES) bytes += (size_t)(2 * QUERIES * stride) * sizeof(float);
    if (a->mode == ATTENTION_BY_BIAS) bytes += (size_t)a->T * sizeof(float);
    if (blocks < 1 || blocks > INT32_MAX) return cudaErrorInvalidValue; /* blocks of one grid */
    const cudaError_t rc = allow_shared(fast_dkv<T, D>, bytes);
    if (rc != cudaSuccess) return rc;
    fast_dkv<T, D><<<(unsigned)blocks, FAST_BLOCK, bytes, stream>>>(*a, stride);
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_attention_fast_dkv(const struct attention *a, cudaStream_t stream)
{
    return by_type_and_length(a, [&](auto t, auto d) { return start<decltype(t), decltype(d)::value>(a, stream); });
}

/*
 * attention_fast_dq.cu: attention's gradient by queries on tensor cores, bf16 and f16.
 *
 * Four warps hold 64 queries and their do, 16 each, and walk the keys in tiles:
 *
 *     s = q k^T,  dp = do v^T   ->   ds = 2^(s - lse) (dp - delta)   ->   dq += ds k
 *
 * By tables, ds also goes through shared memory, where the warp adds it up by the keys' rows and
 * columns into drel: 16 queries' positions are one warp's, which adds in one order. At the end drel
 * is written for the tables' gradients and spread over the table rows it belongs to,
 *
 *     dq += g tables      g [queries][table rows], 64 table rows at a time
 *
 * a product on tensor cores in the memory where the tiles were. By bias, likewise, each warp
 * adds ds into a row of its own, and the four rows are the block's partial sum.
 */
#include "cuda/attention_mma.cuh"

static_assert(HELD == ATTENTION_FAST_TILE, "the partial sums are of so many queries");
constexpr int SPREAD = 64, SPREAD_ROW = SPREAD + 8;

/* Keys to a tile: longer rows leave fewer registers. */
template <int D> constexpr int keys_to_tile = D <= 64 ? 64 : 32;

struct key_notes {
    float add[2][64];
    int place[2][64];
};

#if HAS_MMA

template <int KEYS> static __device__ void note_keys(key_notes *notes, int slot, const attention &a, int64_t b, int s0)
{
    for (int i = threadIdx.x; i < KEYS; i += FAST_BLOCK) {
        const int s = s0 + i;
        float add = s < a.S ? 0.0f : -CUDART_INF_F;
        if (a.mask && s < a.S) add = a.mask[b * a.mask_sample + s * a.mask_key] * LOG2E;
        notes->add[slot][i] = add;
        notes->place[slot][i] = place_of(a, s);
    }
}

/* lse in powers of two, delta and positions of the thread's two queries. */
struct query_notes {
    float lse[2], delta[2];
    const float *rel[2];
    int place[2];
};
static __device__ query_notes note_queries(const attention &a, int64_t b, int64_t h, int first)
{
    query_notes notes;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int t = first + threadIdx.x % 32 / 4 + 8 * half, there = min(t, a.T - 1);
        const float lse = t < a.T ? *lse_at(a, b, h, t) : CUDART_INF_F;
        notes.lse[half] = lse == -CUDART_INF_F ? CUDART_INF_F : lse * LOG2E; /* 2^(s - inf) = 0 */
        notes.delta[half] = t < a.T ? a.delta[(b * a.H + h) * a.T + t] : 0.0f;
        notes.place[half] = place_of(a, there);
        notes.rel[half] = a.rel + ((b * a.H + h) * a.T + there) * positions(a);
    }
    return notes;
}

/* Turns products into scores. */
template <int KEYS>
static __device__ void make_scores(float (&x)[KEYS / 8][4], const attention &a, const key_notes *notes, int slot,
                                   const query_notes &of, const float *bias, int t0, int s0)
{
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4, column = lane % 4 * 2;
    const bool whole = all_seen(a, t0, HELD, s0, KEYS);
    const float factor = a.scale * LOG2E;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int c = 8 * n + column + i % 2, half = i / 2;
            float score = x[n][i] * factor + notes->add[slot][c];
            if (a.mode == ATTENTION_BY_TABLES && s0 + c < a.S) {
                const int place = notes->place[slot][c];
                score += of.rel[half][place >> 16] + of.rel[half][a.height + (place & 0xffff)];
            }
            if (a.mode == ATTENTION_BY_BIAS && s0 + c < a.S)
                score += bias[bias_between(a, of.place[half], notes->place[slot][c])];
            if (!whole && !key_seen(a, t0 + row + 8 * half, s0 + c)) score = -CUDART_INF_F;
            x[n][i] = score;
        }
}

/* The same for a tile within one row of the grid: its row's number is one, its columns' lie side by side. */
template <int KEYS>
static __device__ void make_level_scores(float (&x)[KEYS / 8][4], const attention &a, const query_notes &of, int s0)
{
    const int column = threadIdx.x % 4 * 2;
    const float factor = a.scale * LOG2E;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float level = of.rel[half][s0 / a.width], *columns = of.rel[half] + a.height + s0 % a.width + column;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) x[n][2 * half + i] = x[n][2 * half + i] * factor + (level + columns[8 * n + i]);
    }
}

/* dp becomes ds, not yet scaled; x are scores. */
template <int KEYS>
static __device__ void make_ds(float (&dp)[KEYS / 8][4], const float (&x)[KEYS / 8][4], const query_notes &of)
{
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) dp[n][i] = exp2f(x[n][i] - of.lse[i / 2]) * (dp[n][i] - of.delta[i / 2]);
}

/* The warp's 16 rows of ds to its part of shared memory. */
template <int KEYS> static __device__ void lay_out(float *tile, const float (&ds)[KEYS / 8][4])
{
    const int lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) tile[(row + i / 2 * 8) * (KEYS + 4) + 8 * n + column + i % 2] = ds[n][i];
    __syncwarp();
}

/* Adds the warp's 16 rows of ds into its row of bias gradients: a lane to a distance between columns. */
template <int KEYS>
static __device__ void add_biases(const attention &a, float *dbias, float *tile, const float (&ds)[KEYS / 8][4], int first, int s0)
{
    constexpr int P = KEYS + 4;
    const int end = min(s0 + KEYS, a.S);
    lay_out<KEYS>(tile, ds);
    for (int dx = threadIdx.x % 32; dx < a.width; dx += 32)
        for (int r = 0; r < min(16, a.T - first); r++) {
            const int y = (first + r) / a.width, x = (first + r) % a.width;
            for (int ky = s0 / a.width; ky * a.width < end; ky++) {
                const int right = ky * a.width + x + dx, left = ky * a.width + x - dx;
                float sum = 0;
                if (x + dx < a.width && right >= s0 && right < end) sum += tile[r * P + right - s0];
                if (dx && x >= dx && left >= s0 && left < end) sum += tile[r * P + left - s0];
                dbias[abs(y - ky) * a.width + dx] += sum;
            }
        }
    __syncwarp();
}

/* Adds the warp's 16 rows of ds into its rows of drel. */
template <int KEYS>
static __device__ void add_positions(const attention &a, float *drel, int stride, float *tile, const float (&ds)[KEYS / 8][4],
                                     int s0)
{
    constexpr int P = KEYS + 4;
    const int lane = threadIdx.x % 32, end = min(s0 + KEYS, a.S);
    lay_out<KEYS>(tile, ds);
    for (int c = lane; c < a.width; c += 32) {
        int s = s0 - s0 % a.width + c;
        if (s < s0) s += a.width;
        for (; s < end; s += a.width)
#pragma unroll
            for (int r = 0; r < 16; r++) drel[r * stride + a.height + c] += tile[r * P + s - s0];
    }
    const int r = lane % 16;
    for (int y = s0 / a.width; y * a.width < end; y++) {
        const int last = min(end, (y + 1) * a.width);
        float sum = 0;
        for (int s = max(s0, y * a.width) + lane / 16; s < last; s += 2) sum += tile[r * P + s - s0];
        sum += __shfl_xor_sync(0xffffffffu, sum, 16);
        if (lane < 16) drel[r * stride + y] += sum;
    }
    __syncwarp();
}

/* dq += g tables, for 64 table rows from j0 on: g and rows are places in shared memory. */
template <typename T, int D>
static __device__ void add_tables(float (&dq)[D / 8][4], const attention &a, const float *drel, int stride, T *g, T *rows,
                                  int t0, int j0)
{
    constexpr int ROW = D + 8;
    const int lane = threadIdx.x % 32, J = table_rows(a), split = 2 * a.height - 1;
    __syncthreads();
    for (int i = threadIdx.x; i < SPREAD * D; i += FAST_BLOCK) {
        const int j = i / D, d = i % D;
        rows[j * ROW + d] = from_float<T>(j0 + j < J ? a.tables[(int64_t)(j0 + j) * a.D + d] : 0.0f);
    }
    for (int i = threadIdx.x; i < HELD * SPREAD; i += FAST_BLOCK) {
        const int r = i / SPREAD, j = j0 + i % SPREAD, t = t0 + r;
        const int side = j < split ? a.height : a.width;
        const int c = j < split ? t / a.width - j + side - 1 : t % a.width - (j - split) + side - 1;
        const bool there = t < a.T && j < J && c >= 0 && c < side;
        g[r * SPREAD_ROW + i % SPREAD] = from_float<T>(there ? drel[r * stride + (j < split ? c : a.height + c)] : 0.0f);
    }
    __syncthreads();
    const T *left = g + (threadIdx.x / 32 * 16 + lane % 16) * SPREAD_ROW + lane / 16 * 8;
    const T *right = rows + lane % 16 * ROW + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < SPREAD; k += 16) {
        unsigned x[4];
        load4(x, left + k);
#pragma unroll
        for (int n = 0; n < D / 8; n += 2) {
            unsigned y[4];
            load4_across(y, right + k * ROW + n * 8);
            mma(dq[n], x, y[0], y[1], T());
            mma(dq[n + 1], x, y[2], y[3], T());
        }
    }
}

#endif

template <typename T, int D> __global__ void __launch_bounds__(FAST_BLOCK) fast_dq(const attention a, int stride)
{
#if HAS_MMA
    extern __shared__ uint4 shared[];
    constexpr int KEYS = keys_to_tile<D>, TILE = KEYS * (D + 8);
    T *q = reinterpret_cast<T *>(shared), *dout = q + HELD * (D + 8), *k = dout + HELD * (D + 8), *v = k + 2 * TILE;
    key_notes *notes = reinterpret_cast<key_notes *>(v + 2 * TILE);
    float *through = reinterpret_cast<float *>(notes + 1), *drel = through + HELD * (KEYS + 4);
    const int tiles = (a.T + HELD - 1) / HELD, t0 = (int)(blockIdx.x % tiles) * HELD, own = threadIdx.x / 32 * 16;
    const int64_t head = blockIdx.x / tiles, b = head / a.H, h = head % a.H, g = h / (a.H / a.G);
    const span keys = keys_of(a, t0, HELD);
    const bool by_tables = a.mode == ATTENTION_BY_TABLES, by_bias = a.mode == ATTENTION_BY_BIAS;
    float *bias = drel, *dbias = bias + a.T; /* a bias has these: [T], [WARPS][T] */

    copy_rows<T, D, HELD>(q, a.q, b, h, t0, a.T);
    copy_rows<T, D, HELD>(dout, a.dout, b, h, t0, a.T);
    if (keys.begin < keys.end) {
        copy_rows<T, D, KEYS>(k, a.k, b, g, keys.begin, a.S);
        copy_rows<T, D, KEYS>(v, a.v, b, g, keys.begin, a.S);
        note_keys<KEYS>(notes, 0, a, b, keys.begin);
    }
    copy_commit();
    const query_notes of = note_queries(a, b, h, t0 + own);
    if (by_tables)
        for (int i = threadIdx.x; i < HELD * stride; i += FAST_BLOCK) drel[i] = 0;
    if (by_bias) {
        for (int i = threadIdx.x; i < a.T; i += FAST_BLOCK) bias[i] = a.bias[h * a.T + i];
        for (int i = threadIdx.x; i < WARPS * a.T; i += FAST_BLOCK) dbias[i] = 0;
    }

    float dq[D / 8][4];
#pragma unroll
    for (int n = 0; n < D / 8; n++) dq[n][0] = dq[n][1] = dq[n][2] = dq[n][3] = 0;
    int slot = 0;
    for (int s0 = keys.begin; s0 < keys.end; s0 += KEYS, slot ^= 1) {
        if (s0 + KEYS < keys.end) {
            copy_rows<T, D, KEYS>(k + (slot ^ 1) * TILE, a.k, b, g, s0 + KEYS, a.S);
            copy_rows<T, D, KEYS>(v + (slot ^ 1) * TILE, a.v, b, g, s0 + KEYS, a.S);
            note_keys<KEYS>(notes, slot ^ 1, a, b, s0 + KEYS);
        }
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        float x[KEYS / 8][4], ds[KEYS / 8][4];
        product_rows<T, D, KEYS / 8>(x, q + own * (D + 8), k + slot * TILE);
        product_rows<T, D, KEYS / 8>(ds, dout + own * (D + 8), v + slot * TILE);
        if (by_tables && s0 / a.width == (s0 + KEYS - 1) / a.width) make_level_scores<KEYS>(x, a, of, s0);
        else make_scores<KEYS>(x, a, notes, slot, of, bias, t0, s0);
        make_ds<KEYS>(ds, x, of);
        if (by_tables) add_positions<KEYS>(a, drel + own * stride, stride, through + own * (KEYS + 4), ds, s0);
        if (by_bias)
            add_biases<KEYS>(a, dbias + own / 16 * a.T, through + own * (KEYS + 4), ds, t0 + own, s0);
        product_add<T, D, KEYS / 8>(dq, ds, k + slot * TILE);
        __syncthreads();
    }
    copy_wait<0>();
    if (by_tables) {
        __syncthreads();
        for (int i = threadIdx.x; i < min(HELD, a.T - t0) * positions(a); i += FAST_BLOCK)
            a.drel[(head * a.T + t0) * positions(a) + i] = drel[i / positions(a) * stride + i % positions(a)];
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) dq[n][i] *= a.scale;
        for (int j0 = 0; j0 < table_rows(a); j0 += SPREAD) add_tables<T, D>(dq, a, drel, stride, q, k, t0, j0);
    }
    if (by_bias) /* the loop ended with a barrier */
        for (int i = threadIdx.x; i < a.T; i += FAST_BLOCK) {
            float sum = 0;
            for (int w = 0; w < WARPS; w++) sum += dbias[w * a.T + i];
            a.partial[((b * tiles + t0 / HELD) * a.H + h) * a.T + i] = sum;
        }
    const float factor = by_tables ? 1.0f : a.scale;
    store_rows<T, D>(a.dq, b, h, t0 + own, a.T, dq, factor, factor);
#endif
}

/* --- launching -------------------------------------------------------------------------------- */

template <typename T, int D> static cudaError_t start(const attention *a, cudaStream_t stream)
{
    constexpr int KEYS = keys_to_tile<D>;
    /* add_tables finds room in the tiles' places. */
    static_assert(2 * HELD * (D + 8) >= HELD * SPREAD_ROW && 4 * KEYS >= SPREAD, "g and the table rows fit");
    const int stride = position_stride(a->height + a->width);
    const int64_t blocks = (int64_t)a->B * a->H * ((a->T + HELD - 1) / HELD);
    size_t bytes = (2 * HELD + 4 * KEYS) * (D + 8) * sizeof(T) + sizeof(key_notes);
    if (a->mode == ATTENTION_BY_TABLES) bytes += (size_t)(HELD * (KEYS + 4) + HELD * stride) * sizeof(float);
    if (a->mode == ATTENTION_BY_BIAS) bytes += (size_t)(HELD * (KEYS + 4) + (WARPS + 1) * a->T) * sizeof(float);
    if (blocks < 1 || blocks > INT32_MAX) return cudaErrorInvalidValue; /* blocks of one grid */
    const cudaError_t rc = allow_shared(fast_dq<T, D>, bytes);
    if (rc != cudaSuccess) return rc;
    fast_dq<T, D><<<(unsigned)blocks, FAST_BLOCK, bytes, stream>>>(*a, stride);
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_attention_fast_dq(const struct attention *a, cudaStream_t stream)
{
    return by_type_and_length(a, [&](auto t, auto d) { return start<decltype(t), decltype(d)::value>(a, stream); });
}

/*
 * dq.cu: the attention gradient dq on tensor cores, bf16 and f16: dense, causal, sliding window,
 * grouped heads; a mask, the position terms of a grid or a bias by distance may be added to the
 * scores.
 *
 * Four warps hold queries and their do, 32 each if nothing is added to the scores, else 16, and
 * traverse the keys in tiles; the next tile is in flight while this one is multiplied, unless heads
 * of 256 leave no room for it:
 *
 *     s = q k^T,  dp = do v^T   ->   ds = 2^(s - lse) (dp - delta)   ->   dq += ds k
 *
 * ds stays in registers, rounded to the storage type. Only tiles at an edge are masked. With RANGES
 * each query has a range of keys (ranges.cuh). What depends
 * on the added terms:
 *
 *     tables    ds also goes through shared memory, where the warp sums it by the keys' grid rows
 *               and columns into drel: one warp owns the position terms of 16 queries and adds in
 *               one order. drel takes the memory of the next tile, which is loaded after this one.
 *     grid64    a tile of 64 keys is one row of the grid. A query has one row term for all of them,
 *               and a column term for each, which is the same in every tile and stays in registers.
 *               So do the sums of ds by the keys' columns, one addition per tile; by the keys' rows
 *               a tile has one sum, which is written to drel at once. No tile has an edge.
 *     both      at the end drel is written for the tables' gradients, and its contribution is added
 *               to dq: a product with the tables, in the shared memory of the tiles.
 *     bias      each warp adds ds into a row of its own, through shared memory, and the four rows
 *               form the block's partial sum.
 */
#include "cuda/attention/tiles.cuh"

static_assert(HELD == ATTENTION_FAST_TILE, "a partial sum covers the queries of one block");

/* Groups of 16 queries per warp; keys per tile: longer rows leave fewer registers, and less shared
 * memory. */
template <int D, score_terms ADDED> constexpr int sixteens = is_bare<ADDED> && D <= 128 ? 2 : 1;
template <int D, score_terms ADDED>
constexpr int keys_to_tile = ADDED == ADDS_GRID64    ? ATTENTION_GRID64_WIDTH
                             : is_bare<ADDED>        ? (D <= 64 ? 64 : 32)
                                                     : dq_keys(D);

/* --- sums of ds ------------------------------------------------------------------------------- */

/* Writes the warp's 16 rows of ds to its part of shared memory. */
template <int KEYS> static __device__ void store_ds(float *tile, const float (&ds)[KEYS / 8][4])
{
    const int lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
    each<KEYS / 8, 2>([&](int n, int half) {
        *reinterpret_cast<float2 *>(tile + (row + half * 8) * (KEYS + 4) + 8 * n + column) = {ds[n][2 * half],
                                                                                              ds[n][2 * half + 1]};
    });
    __syncwarp();
}

/* Adds the warp's 16 rows of ds into its row of bias gradients: one lane per distance between
 * columns. */
template <int KEYS>
static __device__ void gather_biases(const attention &a, float *dbias, float *tile, const float (&ds)[KEYS / 8][4],
                                     int first, int s0)
{
    constexpr int P = KEYS + 4;
    const int end = min(s0 + KEYS, a.S);
    store_ds<KEYS>(tile, ds);
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
static __device__ void gather_positions(const attention &a, float *drel, int stride, float *tile,
                                        const float (&ds)[KEYS / 8][4], int s0)
{
    constexpr int P = KEYS + 4;
    const int lane = threadIdx.x % 32, end = min(s0 + KEYS, a.S);
    store_ds<KEYS>(tile, ds);
    for (int c = lane; c < a.width; c += 32) {
        int s = s0 - s0 % a.width + c;
        if (s < s0) s += a.width;
        for (; s < end; s += a.width)
            each<16>([&](int r) { drel[r * stride + a.height + c] += tile[r * P + s - s0]; });
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

/* Stores the block's partial sum of a bias gradient: the warps' rows, added in order. */
static __device__ void store_biases(const attention &a, const float *dbias, int64_t b, int64_t h, int tile, int tiles)
{
    for (int i = threadIdx.x; i < a.T; i += FAST_BLOCK) {
        float sum = 0;
        for (int w = 0; w < WARPS; w++) sum += dbias[w * a.T + i];
        a.partial[((b * tiles + tile) * a.H + h) * a.T + i] = sum;
    }
}

/* What a thread has of its two queries on a grid of 64 columns: the column terms and the sums of ds
 * by column, the terms of the next row of the grid, in flight. */
struct grid64_state {
    static constexpr int N = ATTENTION_GRID64_WIDTH / 8;
    float across[N][4], columns[1][N][4], row_bias[2];
};

/* Turns products into ds, not yet scaled, and adds up its sums. `before`: the row term of each
 * query minus its lse. */
template <int N>
static __device__ void make_ds_grid64(float (&ds)[N][4], const float (&x)[N][4], grid64_state &grid, float (&row)[2],
                                      const float (&before)[2], const float (&delta)[2], float factor)
{
    row[0] = row[1] = 0;
    each<N, 4>([&](int n, int i) {
        const float p = power_of_two(fmaf(x[n][i], factor, grid.across[n][i] + before[i / 2]));
        ds[n][i] = p * (ds[n][i] - delta[i / 2]);
        grid.columns[0][n][i] += ds[n][i];
        row[i / 2] += ds[n][i];
    });
    each<2>([&](int half) {
        row[half] = quad_sum(row[half]);
    });
}

/* --- the tables' contribution ----------------------------------------------------------------- */

constexpr int TABLE_TILE = 64, TABLE_TILE_PITCH = TABLE_TILE + 8;

/* Bytes of shared memory needed in addition to drel. */
template <int D> constexpr int dq_tables_bytes = (HELD * TABLE_TILE_PITCH + TABLE_TILE * (D + 8)) * 2;

/* dq = scale dq + g tables, 64 table rows at a time: g [queries][table rows] has a query's drel at
 * the table rows that its position terms are computed with. drel [HELD][stride]: the terms of the
 * grid's rows, then those of its columns. The row pitch here is D + 8 elements (mma.cuh). */
template <typename T, int D>
static __device__ void add_tables(float (&dq)[D / 8][4], const attention &a, const float *drel, int stride, T *scratch,
                                  int t0)
{
    constexpr int ROW = D + 8;
    const int J = table_rows(a), split = 2 * a.height - 1;
    T *g = scratch, *rows = g + HELD * TABLE_TILE_PITCH;
    each<D / 8, 4>([&](int n, int i) { dq[n][i] *= a.scale; });
    for (int j0 = 0; j0 < J; j0 += TABLE_TILE) {
        __syncthreads();
        for (int i = threadIdx.x; i < TABLE_TILE * D; i += FAST_BLOCK) {
            const int j = i / D, d = i % D;
            rows[j * ROW + d] = from_float<T>(j0 + j < J ? a.tables[(int64_t)(j0 + j) * a.D + d] : 0.0f);
        }
        for (int i = threadIdx.x; i < HELD * TABLE_TILE; i += FAST_BLOCK) {
            const int r = i / TABLE_TILE, j = j0 + i % TABLE_TILE, t = t0 + r;
            const int side = j < split ? a.height : a.width;
            const int c = j < split ? t / a.width - j + side - 1 : t % a.width - (j - split) + side - 1;
            const bool there = t < a.T && j < J && c >= 0 && c < side;
            g[r * TABLE_TILE_PITCH + i % TABLE_TILE] =
                from_float<T>(there ? drel[r * stride + (j < split ? c : a.height + c)] : 0.0f);
        }
        __syncthreads();
        product_add<T, D, TABLE_TILE, TABLE_TILE_PITCH>(dq, g, threadIdx.x / 32 * 16, rows);
    }
}

/* Writes drel for the tables' gradients. */
static __device__ void store_positions(const attention &a, const float *drel, int stride, int64_t head, int t0)
{
    for (int i = threadIdx.x; i < min(HELD, a.T - t0) * positions(a); i += FAST_BLOCK)
        a.drel[(head * a.T + t0) * positions(a) + i] = drel[i / positions(a) * stride + i % positions(a)];
}

/* Stores the sums on a grid of 64 columns, where those by rows are written already: both go to
 * `sums`, [HELD][stride], too. */
static __device__ void store_grid64(const attention &a, const grid64_state &grid, float *sums, int stride, int64_t head,
                                    int t0)
{
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
    float *drel = a.drel + head * positions(a) * a.T + t0;
    each<grid64_state::N, 4>([&](int n, int i) {
        const int c = a.height + 8 * n + lane % 4 * 2 + i % 2;
        sums[(row + i / 2 * 8) * stride + c] = grid.columns[0][n][i];
        drel[(int64_t)c * a.T + row + i / 2 * 8] = grid.columns[0][n][i];
    });
    for (int i = threadIdx.x; i < HELD * a.height; i += FAST_BLOCK)
        sums[i % HELD * stride + i / HELD] = drel[(int64_t)(i / HELD) * a.T + i % HELD];
}

/* --- the kernel ------------------------------------------------------------------------------- */

template <typename T, int D, score_terms ADDED, bool RANGES>
__global__ void __launch_bounds__(FAST_BLOCK, 2) tiles_dq(const attention a, int stride)
{
    if (!multiplies<T>()) return;
    extern __shared__ __align__(128) uint4 shared[];
    constexpr bool BY_TABLES = ADDED == ADDS_TABLES, BY_BIAS = ADDED == ADDS_BIAS, GRID64 = ADDED == ADDS_GRID64;
    constexpr int M = sixteens<D, ADDED>, QUERIES = WARPS * 16 * M, KEYS = keys_to_tile<D, ADDED>, N = KEYS / 8,
                  TILE = KEYS * D * 2;
    constexpr int SLOTS = dq_slots(D, ADDED), BEFORE = 2 * QUERIES * D * 2 + 2 * SLOTS * TILE;
    const unsigned q = shared_address(shared), dout = q + QUERIES * D * 2, k = dout + QUERIES * D * 2,
                   v = k + SLOTS * TILE;
    float *key_info = reinterpret_cast<float *>(reinterpret_cast<char *>(shared) + BEFORE);
    float *through = key_info + SLOTS * KEYS, *sums = through + HELD * (KEYS + 4);
    float *bias = sums, *dbias = bias + a.T; /* [T], [WARPS][T]; or drel [HELD][stride] */
    const int tiles = (a.T + QUERIES - 1) / QUERIES, lane = threadIdx.x % 32, own = threadIdx.x / 32 * 16 * M;
    const block_of block = block_in_order((int64_t)a.B * a.H, tiles, RANGES || (a.causal && !GRID64), true);
    const int64_t b = block.head / a.H, h = block.head % a.H, g = h / (a.H / a.G);
    const int t0 = block.tile * QUERIES, padded = GRID64 ? a.T : (a.T + 63) / 64 * 64, R = positions(a);
    range_tile bounds = {};
    if (RANGES) bounds = bounds_of(a, b, t0, QUERIES);
    const span keys = RANGES ? span{bounds.begin, bounds.end} : GRID64 ? span{0, a.S} : keys_of(a, t0, QUERIES);
    const int begin = keys.begin / KEYS * KEYS;
    const T *from_k = row_at<T>(a.k, b, 0, g), *from_v = row_at<T>(a.v, b, 0, g);
    const auto fetch = [&](int slot, int s0) {
        copy_tile<T, D, KEYS>(k + slot * TILE, from_k, a.k, s0, a.S);
        copy_tile<T, D, KEYS>(v + slot * TILE, from_v, a.v, s0, a.S);
        if constexpr (ADDED == ADDS_MASK || BY_TABLES || BY_BIAS)
            load_key_info<ADDED, KEYS>(key_info + slot * KEYS, a, b, s0);
    };

    copy_tile<T, D, QUERIES>(q, row_at<T>(a.q, b, 0, h), a.q, t0, a.T);
    copy_tile<T, D, QUERIES>(dout, row_at<T>(a.dout, b, 0, h), a.dout, t0, a.T);
    if (begin < keys.end) fetch(0, begin);
    copy_commit();
    if (BY_TABLES)
        for (int i = threadIdx.x; i < HELD * stride; i += FAST_BLOCK) sums[i] = 0;
    if (BY_BIAS) {
        for (int i = threadIdx.x; i < a.T; i += FAST_BLOCK) bias[i] = a.bias[h * a.T + i];
        for (int i = threadIdx.x; i < WARPS * a.T; i += FAST_BLOCK) dbias[i] = 0;
    }
    float lse[M][2], delta[M][2], dq[M][D / 8][4];
    const float *rel[2];
    clear(dq);
    each<M, 2>([&](int m, int half) {
        const int t = t0 + own + 16 * m + lane / 4 + 8 * half;
        lse[m][half] = t < a.T ? a.lse2[block.head * padded + t] : CUDART_INF_F;
        delta[m][half] = t < a.T ? a.delta[block.head * padded + t] : 0.0f;
        if (BY_TABLES) rel[half] = a.rel + (block.head * a.T + min(t, a.T - 1)) * R;
    });
    grid64_state grid;
    if constexpr (GRID64) {
        clear(grid.columns);
        rel[0] = a.rel + block.head * R * a.T + t0 + own + lane / 4, rel[1] = rel[0] + 8;
        each<2>([&](int half) { grid.row_bias[half] = rel[half][0]; });
        each<N, 4>([&](int n, int i) {
            grid.across[n][i] = rel[i / 2][(int64_t)(a.height + 8 * n + lane % 4 * 2 + i % 2) * a.T];
        });
    }

    const unsigned own_q = q + own * 2 * D + ldmatrix_left<D>(lane), own_dout = own_q + (dout - q);
    const float factor = a.scale * LOG2E;
    int slot = 0;
    for (int s0 = begin; s0 < keys.end; s0 += KEYS, slot ^= SLOTS - 1) {
        copy_wait<0>();
        __syncthreads(); /* this tile has arrived, the previous one is no longer read */
        if (SLOTS == 2 && s0 + KEYS < keys.end) fetch(slot ^ 1, s0 + KEYS);
        copy_commit();
        const float *here = key_info + slot * KEYS;
        float x[M][N][4], ds[M][N][4], before[2];
        if (GRID64)
            each<2>([&](int half) {
                before[half] = grid.row_bias[half] - lse[0][half];
                grid.row_bias[half] = rel[half][(int64_t)min(s0 / KEYS + 1, a.height - 1) * a.T];
            });
        multiply<T, D, M, N>(x, own_q, k + slot * TILE + ldmatrix_right<D>(lane));
        multiply<T, D, M, N>(ds, own_dout, v + slot * TILE + ldmatrix_right<D>(lane));
        if constexpr (ADDED == ADDS_CAP) cap_scores(x, a);
        if (ADDED == ADDS_MASK) add_mask<N>(x[0], here, factor);
        if (BY_TABLES) add_positions<N, false>(x[0], a, here, rel, a.height, s0, factor);
        if (BY_BIAS) add_bias<N>(x[0], a, here, bias, t0 + own + lane / 4, factor);
        if constexpr (GRID64) {
            float row[2];
            make_ds_grid64(ds[0], x[0], grid, row, before, delta[0], factor);
            float *drel = a.drel + (block.head * R + s0 / KEYS) * a.T + t0 + own + lane / 4;
            if (lane % 4 == 0) drel[0] = row[0], drel[8] = row[1];
        } else {
            if (!RANGES && (s0 + KEYS > a.S || !all_seen(a, t0, QUERIES, s0, KEYS)))
                mask_scores<false, M, N>(x, a, t0 + own, s0);
            each<M, N, 4>([&](int m, int n, int i) {
                const float p = power_of_two(ADDED == ADDS_NOTHING ? fmaf(x[m][n][i], factor, -lse[m][i / 2])
                                                                   : x[m][n][i] - lse[m][i / 2]);
                ds[m][n][i] = p * (ds[m][n][i] - delta[m][i / 2]);
                if (ADDED == ADDS_CAP) ds[m][n][i] *= cap_slope(a, x[m][n][i]);
            });
        }
        if constexpr (RANGES) {
            if (!sees_all(bounds, s0, KEYS)) set_unseen(ds, a, b, t0 + own, s0, 0);
            if (is_mixed(bounds, s0, KEYS)) {
                __syncthreads(); /* the scores are computed */
                clean_tile<T, D, KEYS>(reinterpret_cast<char *>(shared) + 2 * QUERIES * D * 2 + slot * TILE, nullptr);
                __syncthreads();
            }
        }
        if (BY_TABLES) gather_positions<KEYS>(a, sums + own * stride, stride, through + own * (KEYS + 4), ds[0], s0);
        if (BY_BIAS) gather_biases<KEYS>(a, dbias + own / 16 * a.T, through + own * (KEYS + 4), ds[0], t0 + own, s0);
        multiply_add<T, D, M, N>(dq, ds, k + slot * TILE + ldmatrix_left<D>(lane));
        if (SLOTS == 1) {
            __syncthreads(); /* this tile is no longer read */
            if (s0 + KEYS < keys.end) fetch(0, s0 + KEYS);
            copy_commit();
        }
    }
    copy_wait<0>();
    if (!is_bare<ADDED>) __syncthreads(); /* the sums are complete, the tiles no longer read */
    if constexpr (BY_TABLES) {
        store_positions(a, sums, stride, block.head, t0);
        add_tables<T, D>(dq[0], a, sums, stride, reinterpret_cast<T *>(shared), t0);
    }
    if constexpr (GRID64) {
        float *all = reinterpret_cast<float *>(shared);
        store_grid64(a, grid, all, stride, block.head, t0);
        add_tables<T, D>(dq[0], a, all, stride, reinterpret_cast<T *>(all + HELD * stride), t0);
    }
    if (BY_BIAS) store_biases(a, dbias, b, h, block.tile, tiles);
    const float scale = BY_TABLES || GRID64 ? 1.0f : a.scale;
    each<M>([&](int m) { store_rows<T, D>(a.dq, b, h, t0 + own + 16 * m, a.T, dq[m], scale, scale); });
}

extern "C" cudaError_t cuda_attention_dq(const struct attention *a, enum score_terms added, cudaStream_t stream)
{
    return by_kind(a, added, [&](auto t, auto d, auto terms, auto ranges) {
        constexpr score_terms ADDED = terms;
        constexpr bool FIXED = is_bare<ADDED> || ADDED == ADDS_GRID64;
        constexpr int D = d, QUERIES = WARPS * 16 * sixteens<D, ADDED>;
        constexpr size_t tiles = (2 * QUERIES + 2 * dq_slots(D, ADDED) * keys_to_tile<D, ADDED>) * D * sizeof t;
        constexpr size_t most =
            ADDED == ADDS_GRID64
                ? HELD * position_stride(2 * ATTENTION_GRID64_WIDTH) * sizeof(float) + dq_tables_bytes<D>
                : 0;
        static_assert(!FIXED || (tiles > most ? tiles : most) <=
                                    (D <= ATTENTION_SMALL ? ATTENTION_SHARED_SM75 : ATTENTION_SHARED),
                      "it fits");
        static_assert(FIXED || fast_dq_bytes(D, ADDED, position_stride(ATTENTION_GRID), ATTENTION_BIASES) <=
                                   ATTENTION_SHARED,
                      "it fits");
        static_assert(ADDED != ADDS_TABLES || dq_tables_bytes<D> <= tiles, "add_tables fits the tiles' buffers");
        const int stride = position_stride(a->height + a->width);
        const size_t after = ADDED == ADDS_GRID64 ? HELD * (size_t)stride * sizeof(float) + dq_tables_bytes<D> : 0;
        return start_kernel(tiles_dq<decltype(t), D, ADDED, ranges>,
                            (int64_t)a->B * a->H * ((a->T + QUERIES - 1) / QUERIES), FAST_BLOCK,
                            FIXED ? (tiles > after ? tiles : after) : fast_dq_bytes(D, ADDED, stride, a->T), stream, *a,
                            stride);
    });
}

/*
 * dkv.cu: the attention gradient dk, dv on tensor cores, bf16 and f16: dense, causal, sliding
 * window, grouped heads; a mask, the position terms of a grid or a bias by distance may be added to
 * the scores.
 *
 * Four warps hold keys and their values and traverse the queries of all heads that read these keys,
 * in tiles; the next tile is in flight. Everything is transposed, keys as rows:
 *
 *     s^T = k q^T,  dp^T = v do^T   ->   p^T, ds^T   ->   dv += p^T do,  dk += ds^T q
 *
 * Tiles begin at multiples of their length, so that lse and delta, which are padded, are loaded in
 * chunks of 16 bytes. With tables, a tile of queries comes with its position terms: those of the
 * grid rows that contain the keys, and of all columns. On a grid of 64 columns the 64 keys that a
 * block holds are one row of the grid: a tile of queries comes with one term per query for the row
 * and, for each key's column, a row of the queries' terms, in the layout of rel; no tile has an
 * edge. With a bias, the biases of the head are in shared memory. With RANGES each query has a
 * range of keys (ranges.cuh), and tiles of queries that see none of the block's keys are left out.
 */
#include "cuda/attention/tiles.cuh"

/* Groups of 16 keys per warp, and queries per tile: as registers and shared memory allow. */
template <int D, score_terms ADDED, bool RANGES>
constexpr int sixteens = is_bare<ADDED> && D <= (RANGES ? 64 : 80) ? 2 : 1;
template <int D, score_terms ADDED>
constexpr int queries_to_tile = ADDED == ADDS_NOTHING && D == 96 ? 64 : FAST_DKV_QUERIES;
/* The next tile of queries is in flight, unless heads are too long. */
template <int D> constexpr int slots_of = D <= 128 ? 2 : 1;
/* With 16 keys per warp, keys and values are in registers; they are loaded through the tiles'
 * buffers. */
template <int D, score_terms ADDED, bool RANGES>
constexpr bool is_held = sixteens<D, ADDED, RANGES> == 1 && D <= 128;
template <int D, score_terms ADDED, bool RANGES>
constexpr int tiles_begin = is_held<D, ADDED, RANGES> ? 0 : 2 * WARPS * 16 * sixteens<D, ADDED, RANGES> * D * 2;

/* The floats that come with a tile of queries: lse and delta; the queries' cells or row terms; on a
 * grid of 64 columns the column terms, with a pitch such that the pairs read by a warp cause no
 * bank conflicts. Position terms of other grids follow both slots. */
constexpr int GRID64_PITCH = FAST_DKV_QUERIES + 8;
template <int D, score_terms ADDED>
constexpr int stats_of = is_bare<ADDED>        ? 2 * queries_to_tile<D, ADDED>
                                               : FAST_DKV_STATS + (ADDED == ADDS_GRID64 ? HELD * GRID64_PITCH : 0);

/* What a launch computes. The sums of dk and dv of long heads do not fit the registers together: dv
 * and dk have a launch each, and both compute the scores. */
enum gradients { BOTH, ONLY_DV, ONLY_DK };

/* A thread's two keys: the mask, and the indices of their terms in a query's row of position
 * terms. */
struct key_info {
    float add[2];
    int row[2], column[2], cell[2];
};
static __device__ key_info own_key_info(const attention &a, int64_t b, int s0)
{
    key_info of;
    each<2>([&](int half) {
        const int s = min(s0 + (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4 + 8 * half, a.S - 1);
        of.add[half] = a.mask ? a.mask[b * a.mask_sample + s * a.mask_key] * LOG2E : 0.0f;
        of.row[half] = s / a.width - s0 / a.width;
        of.column[half] = dkv_columns(a.height, a.width) + s % a.width;
        of.cell[half] = grid_cell(a, s);
    });
    return of;
}

/* Loads the position terms of a tile of queries, in chunks of 16 bytes if they are aligned. */
static __device__ void fetch_key_positions(unsigned to, int stride, const attention &a, int64_t head, int t0, int s0)
{
    const int rows = dkv_key_rows(a.height, a.width), behind = dkv_columns(a.height, a.width), top = s0 / a.width,
              R = positions(a);
    const float *from = a.rel + (head * a.T + t0) * R;
    const bool whole = a.height % 4 == 0 && a.width % 4 == 0;
    for (int r = threadIdx.x / 32; r < FAST_DKV_QUERIES; r += WARPS) {
        const float *row = from + (t0 + r < a.T ? r * R : 0);
        for (int c = threadIdx.x % 32; c < rows; c += 32)
            copy4_to(to + (r * stride + c) * 4, row + min(top + c, a.height - 1));
        if (whole)
            for (int c = threadIdx.x % 32 * 4; c < a.width; c += 128)
                copy_to(to + (r * stride + behind + c) * 4, row + a.height + c, true);
        else
            for (int c = threadIdx.x % 32; c < a.width; c += 32)
                copy4_to(to + (r * stride + behind + c) * 4, row + a.height + c);
    }
}

/* Fetches, on a grid of 64 columns, the queries' terms for each column. */
static __device__ void fetch_columns(unsigned to, const attention &a, int64_t head, int t0)
{
    constexpr int CHUNKS = FAST_DKV_QUERIES / 4, STEP = FAST_BLOCK / CHUNKS;
    const int which = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS * 4;
    const float *columns = a.rel + (head * positions(a) + a.height + which) * a.T + t0 + chunk;
    const unsigned at = to + (which * GRID64_PITCH + chunk) * 4;
    each<HELD / STEP>([&](int i) {
        copy_to(at + i * STEP * GRID64_PITCH * 4, columns, true);
        columns += (int64_t)STEP * a.T;
    });
}

/* Loads a tile of queries: rows, statistics, position terms. */
template <typename T, int D, score_terms ADDED>
static __device__ void fetch(unsigned q, unsigned dout, unsigned stats, unsigned rel, const attention &a, int64_t b,
                             int64_t h, int t0, int s0, int stride)
{
    constexpr int QUERIES = queries_to_tile<D, ADDED>, CHUNKS = QUERIES / 4;
    const int64_t head = b * a.H + h;
    const int padded = ADDED == ADDS_GRID64 ? a.T : (a.T + 63) / 64 * 64;
    copy_tile<T, D, QUERIES>(q, row_at<T>(a.q, b, 0, h), a.q, t0, a.T);
    copy_tile<T, D, QUERIES>(dout, row_at<T>(a.dout, b, 0, h), a.dout, t0, a.T);
    if (threadIdx.x < 2 * CHUNKS)
        copy_to(stats + threadIdx.x * 16,
                (threadIdx.x < CHUNKS ? a.lse2 : a.delta) + head * padded + t0 + threadIdx.x % CHUNKS * 4, true);
    else if (ADDED == ADDS_GRID64 && threadIdx.x < 3 * CHUNKS) /* the terms of the keys' row */
        copy_to(stats + threadIdx.x * 16,
                a.rel + (head * positions(a) + s0 / HELD) * a.T + t0 + threadIdx.x % CHUNKS * 4, true);
    if (ADDED == ADDS_BIAS && threadIdx.x < QUERIES)
        store_to(stats + (2 * QUERIES + threadIdx.x) * 4, grid_cell(a, min(t0 + (int)threadIdx.x, a.T - 1)));
    if (ADDED == ADDS_TABLES) fetch_key_positions(rel, stride, a, head, t0, s0);
    if (ADDED == ADDS_GRID64) fetch_columns(stats + 3 * QUERIES * 4, a, head, t0);
}

/* Turns products into scores, with the added terms. */
template <score_terms ADDED, int N>
static __device__ void add_score_bias(float (&x)[N][4], const attention &a, const key_info &of, const float *stats,
                                      const float *rel, int stride, bool one_row)
{
    const float factor = a.scale * LOG2E;
    each<N, 2>([&](int n, int side) {
        const int c = 8 * n + threadIdx.x % 4 * 2 + side;
        float add[2] = {of.add[0], of.add[1]};
        if (ADDED == ADDS_TABLES) {
            const float *from = rel + c * stride, upper = from[of.row[0]], lower = one_row ? upper : from[of.row[1]];
            add[0] = upper + from[of.column[0]], add[1] = lower + from[of.column[1]];
        }
        if (ADDED == ADDS_BIAS) {
            const int cell = reinterpret_cast<const int *>(stats)[16 * N + c];
            add[0] = rel[bias_between(a, of.cell[0], cell)], add[1] = rel[bias_between(a, of.cell[1], cell)];
        }
        x[n][side] = fmaf(x[n][side], factor, add[0]), x[n][2 + side] = fmaf(x[n][2 + side], factor, add[1]);
    });
}

/* Turns products, or scores with their added terms, and dp into p and ds, the latter not yet
 * scaled. stats: those of the tile's queries; key: the upper of the thread's two keys. */
template <score_terms ADDED, int M, int N>
static __device__ void compute_p_ds(float (&x)[M][N][4], float (&dp)[M][N][4], const attention &a, const float *stats,
                                    int key, float factor)
{
    each<N>([&](int n) {
        const float *own = stats + 8 * n + threadIdx.x % 4 * 2;
        const float2 lse = pair_at(own), delta = pair_at(own + 8 * N);
        const float2 row = ADDED == ADDS_GRID64 ? pair_at(own + 16 * N) : float2{0, 0};
        const float before[2] = {row.x - lse.x, row.y - lse.y};
        each<M, 4>([&](int m, int i) {
            float &p = x[m][n][i], last = i % 2 ? lse.y : lse.x;
            const float slope = ADDED == ADDS_CAP ? cap_slope(a, p) : 1.0f;
            if (ADDED == ADDS_NOTHING) {
                p = power_of_two(fmaf(p, factor, -last));
            } else if (ADDED == ADDS_GRID64) {
                const float2 column = pair_at(own + 24 * N + (key + i / 2 * 8) * GRID64_PITCH);
                p = power_of_two(fmaf(p, factor, (i % 2 ? column.y : column.x) + before[i % 2]));
            } else {
                p = power_of_two(p - last);
            }
            dp[m][n][i] = p * (dp[m][n][i] - (i % 2 ? delta.y : delta.x)) * slope;
        });
    });
}

/* The next tile of QUERIES queries from t on that sees a key of s0 .. s0+sn; T or more: none. */
template <int QUERIES> static __device__ int next_meeting(const attention &a, int64_t b, int t, int s0, int sn)
{
    const range_bounds *from = a.bounds + b * ((a.T + 63) / 64);
    while (t < a.T && (from[t / 64].begin >= s0 + sn || from[t / 64].end <= s0)) t += QUERIES;
    return t;
}

template <typename T, int D, score_terms ADDED, bool RANGES, gradients OF>
__global__ void __launch_bounds__(FAST_BLOCK, is_bare<ADDED> || D > 64 || RANGES ? 2 : 3)
    tiles_dkv(const attention a, int stride)
{
    if (!multiplies<T>()) return;
    extern __shared__ __align__(128) uint4 shared[];
    /* FREE: compute_p_ds adds the terms */
    constexpr bool KEPT = is_held<D, ADDED, RANGES>, FREE = is_bare<ADDED> || ADDED == ADDS_GRID64;
    constexpr int M = sixteens<D, ADDED, RANGES>, KEYS = WARPS * 16 * M, QUERIES = queries_to_tile<D, ADDED>,
                  N = QUERIES / 8, TILE = QUERIES * D * 2;
    constexpr int SLOTS = slots_of<D>, STATS = stats_of<D, ADDED>,
                  BEFORE = tiles_begin<D, ADDED, RANGES> + 2 * SLOTS * TILE;
    static_assert(!KEPT || 2 * KEYS <= 4 * QUERIES, "keys and values fit the tiles' buffers");
    const unsigned k = shared_address(shared), v = k + KEYS * D * 2, q = k + tiles_begin<D, ADDED, RANGES>,
                   dout = q + SLOTS * TILE, with = k + BEFORE;
    /* at `with` */
    float *stats = reinterpret_cast<float *>(reinterpret_cast<char *>(shared) + BEFORE), *rel = stats + 2 * STATS;
    const int tiles = (a.S + KEYS - 1) / KEYS, group = a.H / a.G, room = ADDED == ADDS_TABLES ? QUERIES * stride : 0;
    const int lane = threadIdx.x % 32, own = threadIdx.x / 32 * 16 * M;
    const block_of block =
        block_in_order((int64_t)a.B * a.G, tiles, RANGES || (a.causal && ADDED != ADDS_GRID64), false);
    const int64_t b = block.head / a.G, g = block.head % a.G;
    const int s0 = block.tile * KEYS;
    const span queries = RANGES || ADDED == ADDS_GRID64 ? span{0, a.T} : queries_of(a, s0, KEYS);
    const int begin = RANGES ? next_meeting<QUERIES>(a, b, 0, s0, KEYS) : queries.begin / QUERIES * QUERIES;
    const bool any = begin < queries.end, one_row = s0 / a.width == (min(s0 + KEYS, a.S) - 1) / a.width;
    const float factor = a.scale * LOG2E;

    copy_tile<T, D, KEYS>(k, row_at<T>(a.k, b, 0, g), a.k, s0, a.S);
    if (OF != ONLY_DV) copy_tile<T, D, KEYS>(v, row_at<T>(a.v, b, 0, g), a.v, s0, a.S);
    const unsigned own_k = k + own * 2 * D + ldmatrix_left<D>(lane), own_v = own_k + (v - k);
    unsigned held_k[KEPT ? D / 16 : 1][M][4], held_v[KEPT ? D / 16 : 1][M][4];
    key_info of;
    if (!FREE) of = own_key_info(a, b, s0);
    if (ADDED == ADDS_BIAS) /* here a group is one head */
        for (int i = threadIdx.x; i < a.T; i += FAST_BLOCK) rel[i] = a.bias[g * a.T + i];
    if constexpr (KEPT) {
        copy_commit();
        copy_wait<0>();
        __syncthreads();
        load_held<D, M>(held_k, own_k), load_held<D, M>(held_v, own_v);
        __syncthreads();
    }
    if (any) fetch<T, D, ADDED>(q, dout, with, with + 2 * STATS * 4, a, b, g * group, begin, s0, stride);
    copy_commit();

    float dk[M][D / 8][4], dv[M][D / 8][4];
    clear(dk), clear(dv);
    int slot = 0, h = 0, t0 = begin; /* over heads, then tiles */
    while (any && h < group) {
        const int after = RANGES ? next_meeting<QUERIES>(a, b, t0 + QUERIES, s0, KEYS) : t0 + QUERIES;
        const int next = after < queries.end ? after : begin, next_h = next == begin ? h + 1 : h,
                  other = slot ^ (SLOTS - 1);
        copy_wait<0>();
        __syncthreads(); /* this tile has arrived, the previous one is no longer read */
        const auto fetch_next = [&] {
            if (next_h < group)
                fetch<T, D, ADDED>(q + other * TILE, dout + other * TILE, with + other * STATS * 4,
                                   with + (2 * STATS + other * room) * 4, a, b, g * group + next_h, next, s0, stride);
            copy_commit();
        };
        if (SLOTS == 2) fetch_next();
        const unsigned here_q = q + slot * TILE, here_dout = dout + slot * TILE;
        float p[M][N][4], ds[M][N][4];
        if constexpr (KEPT) {
            multiply_held<T, D, M, N>(p, held_k, here_q + ldmatrix_right<D>(lane));
            multiply_held<T, D, M, N>(ds, held_v, here_dout + ldmatrix_right<D>(lane));
        } else {
            multiply<T, D, M, N>(p, own_k, here_q + ldmatrix_right<D>(lane));
            if constexpr (OF == ONLY_DV) clear(ds);
            else multiply<T, D, M, N>(ds, own_v, here_dout + ldmatrix_right<D>(lane));
        }
        if constexpr (ADDED == ADDS_CAP) cap_scores(p, a);
        if (!FREE) add_score_bias<ADDED>(p[0], a, of, stats + slot * STATS, rel + slot * room, stride, one_row);
        if (!RANGES && ADDED != ADDS_GRID64 && (s0 + KEYS > a.S || !all_seen(a, t0, QUERIES, s0, KEYS)))
            mask_scores<true, M, N>(p, a, s0 + own, t0);
        compute_p_ds<ADDED>(p, ds, a, stats + slot * STATS, own + lane / 4, factor);
        if constexpr (RANGES) {
            const range_tile bounds = bounds_at(a, b, t0); /* of 64, maybe more than QUERIES */
            if (!sees_all(bounds, s0, KEYS)) clear_unseen(p, ds, a, b, s0 + own, t0, stats + slot * STATS + QUERIES);
            if (is_mixed(bounds, s0, KEYS)) {
                __syncthreads(); /* the scores are computed */
                clean_tile<T, D, QUERIES>(reinterpret_cast<char *>(shared) + tiles_begin<D, ADDED, RANGES> +
                                              slot * TILE,
                                          nullptr);
                clean_tile<T, D, QUERIES>(reinterpret_cast<char *>(shared) + tiles_begin<D, ADDED, RANGES> +
                                              (SLOTS + slot) * TILE,
                                          nullptr);
                __syncthreads();
            }
        }
        if constexpr (OF != ONLY_DK) multiply_add<T, D, M, N>(dv, p, here_dout + ldmatrix_left<D>(lane));
        if constexpr (OF != ONLY_DV) multiply_add<T, D, M, N>(dk, ds, here_q + ldmatrix_left<D>(lane));
        if (SLOTS == 1) {
            __syncthreads(); /* this tile is no longer read */
            fetch_next();
        }
        slot = other, h = next_h, t0 = next;
    }
    copy_wait<0>();
    each<M>([&](int m) {
        if (OF != ONLY_DV) store_rows<T, D>(a.dk, b, g, s0 + own + 16 * m, a.S, dk[m], a.scale, a.scale);
        if (OF != ONLY_DK) store_rows<T, D>(a.dv, b, g, s0 + own + 16 * m, a.S, dv[m], 1.0f, 1.0f);
    });
}

extern "C" cudaError_t cuda_attention_dkv(const struct attention *a, enum score_terms added, cudaStream_t stream)
{
    return by_kind(a, added, [&](auto t, auto d, auto terms, auto ranges) {
        constexpr score_terms ADDED = terms;
        constexpr bool FIXED = is_bare<ADDED> || ADDED == ADDS_GRID64, RANGES = ranges;
        constexpr int D = d, KEYS = WARPS * 16 * sixteens<D, ADDED, RANGES>;
        constexpr size_t fixed = tiles_begin<D, ADDED, RANGES> +
                                 2 * slots_of<D> * queries_to_tile<D, ADDED> * D * sizeof t +
                                 2 * stats_of<D, ADDED> * sizeof(float);
        static_assert(!FIXED || fixed <= (D <= ATTENTION_SMALL ? ATTENTION_SHARED_SM75 : ATTENTION_SHARED), "it fits");
        static_assert(FIXED || fast_dkv_bytes(D, ADDED, position_stride(ATTENTION_GRID + 3), ATTENTION_BIASES) <=
                                   ATTENTION_SHARED,
                      "it fits");
        const int stride = position_stride(dkv_columns(a->height, a->width) + a->width);
        const auto start = [&](auto *kernel) {
            return start_kernel(kernel, (int64_t)a->B * a->G * ((a->S + KEYS - 1) / KEYS), FAST_BLOCK,
                                FIXED ? fixed : fast_dkv_bytes(D, ADDED, stride, a->T), stream, *a, stride);
        };
        if constexpr (D <= 128) {
            return start(tiles_dkv<decltype(t), D, ADDED, RANGES, BOTH>);
        } else {
            const cudaError_t rc = start(tiles_dkv<decltype(t), D, ADDED, RANGES, ONLY_DV>);
            return rc == cudaSuccess ? start(tiles_dkv<decltype(t), D, ADDED, RANGES, ONLY_DK>) : rc;
        }
    });
}

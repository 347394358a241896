/*
 * window_bwd.cu: the gradient of windowed attention on tensor cores, bf16 and f16, within
 * the 99 KiB of shared memory that a block may have on every GPU from 8.0 on or, with smaller
 * parts, within the 64 KiB of 7.5. Two kernels; in both a block has one window of a head:
 *
 *     dq     a warp has 16 queries and their do in registers. Keys and values are loaded in parts
 *            of the window's rows:
 *                p = 2^(q k^T + positions - lse)     ds = p (do v^T - delta)     dq += ds k
 *            The gradients of the position terms are sums of ds: over a row of keys, which
 *            overwrites the row's position term as soon as that is read, and over a column of keys,
 *            which stays in registers, since a row of the window begins at a fragment's first
 *            column. g [16][64] has them at the tables' rows, so that
 *                dq = scale dq + g tables
 *            and, over all warps' queries in order, dtables = g^T q.
 *     dkv    a warp has a row of keys, with their values, in registers, also in parts. All warps
 *            traverse the queries, 32 at a time:
 *                dv += p^T do     dk += ds^T q
 *
 * Together these are 7 products per pair of query and key. One kernel would need 5, but has to pass
 * ds between its warps and hold everything at once: 209 KiB with heads of 80. Nothing is added
 * across blocks: the gradients of tables and pad are written to the workspace window by window
 * (cuda_window_sums).
 */
#include "cuda/attention/window_mma.cuh"

/* Queries per tile of dkv, and per warp of dq. */
constexpr int TILE = 32, MINE = 16, QUERIES = (WINDOW_FAST * WINDOW_FAST + TILE - 1) / TILE * TILE;
constexpr int REL_ROW = QUERIES + 8; /* each row is shifted by 8 banks */
static_assert(REL_ROW % 32 == 8, "few bank conflicts");

/* The shared-memory layout, as byte offsets in order. */
template <int D, int ROWS> struct dq_layout : part_layout<D, ROWS> {
    using part = part_layout<D, ROWS>;
    /* queries that fit the memory of keys, values and tables */
    static constexpr int chunk = part::own / part::ROW / MINE * MINE;
    /* all of them fit without overwriting the tables */
    static constexpr bool apart = TILES * MINE * part::ROW <= part::tables;
};
template <int D, int ROWS> struct dkv_layout {
    /* k, v and later q, dout share this memory, */
    static constexpr int ROW = (D + 8) * 2, k = 0, v = ROWS * SIDE * ROW, q = 0, dout = 2 * TILE * ROW;
    /* as do chunks of queries before them */
    static constexpr int chunk = ROWS == PART ? TILES * MINE : D <= 64 ? 128 : 80, tables = chunk * ROW;
    static constexpr int rel = tables + BOTH * ROW, lse = rel + 4 * (WINDOW_FAST + SIDE) * REL_ROW,
                         delta = lse + 4 * QUERIES;
    static constexpr int token = delta + 4 * QUERIES, pads = token + 4 * QUERIES,
                         total = pads + 4 * WINDOW_FAST * 2 * D;
    static_assert(2 * v <= rel && 2 * dout <= rel, "nothing overlaps the positions");
};

/* --- dq and the tables ------------------------------------------------------------------------ */

/* rowsum(do * o) of the thread's two queries. */
template <typename T, int D>
static __device__ void make_delta(float (&delta)[2], const unsigned (&dout)[D / 16][4], const window_block &s,
                                  const head_rows &x, const int (&token)[2])
{
    unsigned o[D / 16][4];
    load_tokens<T, D>(o, s, x, token);
    each<2>([&](int half) {
        float sum = 0;
        each<D / 8>([&](int i) {
            const pack<T, 2> left = *reinterpret_cast<const pack<T, 2> *>(&dout[i / 2][half + i % 2 * 2]),
                             right = *reinterpret_cast<const pack<T, 2> *>(&o[i / 2][half + i % 2 * 2]);
            sum += to_float(left.at[0]) * to_float(right.at[0]) + to_float(left.at[1]) * to_float(right.at[1]);
        });
        delta[half] = quad_sum(sum);
    });
}

/* The state of the thread's two queries, in rows row and row + 8 of the warp's tile, while they
 * traverse the keys. */
struct query_state {
    float across[2][4];  /* column terms minus lse */
    float delta[2];
    float columns[2][4]; /* sums of ds by column, in fragment layout */
};

/* Processes a row of keys, row y of the window, at k and v. */
template <typename T, int D>
static __device__ void attend_key_row(float (&dq)[D / 8][4], query_state &m, float *rel, const unsigned (&q)[D / 16][4],
                                      const unsigned (&dout)[D / 16][4], const T *k, const T *v, int y, float factor)
{
    const int lane = threadIdx.x % 32, row = lane / 4;
    float p[2][4], ds[2][4], down[2];
    each<2>([&](int half) { down[half] = rel[(row + 8 * half) * REL + y]; });
    product_held<T, D, 2>(p, q, k);
    product_held<T, D, 2>(ds, dout, v);
    each<8>([&](int i) {
        const int n = i / 4, half = i / 2 % 2;
        const float x = exp2f(p[n][i % 4] * factor + (m.across[half][2 * n + i % 2] + down[half]));
        ds[n][i % 4] = x * (ds[n][i % 4] - m.delta[half]);
        m.columns[n][i % 4] += ds[n][i % 4];
    });
    each<2>([&](int half) {
        float sum = ds[0][2 * half] + ds[0][2 * half + 1] + ds[1][2 * half] + ds[1][2 * half + 1];
        sum = quad_sum(sum);
        __syncwarp(); /* all four lanes have read it */
        if (lane % 4 == 0) rel[(row + 8 * half) * REL + y] = sum;
    });
    product_add<T, D, 2>(dq, ds, k);
}

/* Returns g of a query at row j of both tables; the query's sums are at rel. */
static __device__ float gathered(const attention &a, const float *rel, int y, int x, int j)
{
    const int c = position_of(a, y, x, j);
    return c >= 0 ? rel[c] : 0.0f;
}

/* dq += g tables, for the warp's 16 queries from r0 on. */
template <typename T, int D>
static __device__ void add_positions(float (&dq)[D / 8][4], const attention &a, const window_block &s, const float *rel,
                                     const T *tables, int r0)
{
    const int row = threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
    const T *right = lane_across<T, D + 8>(tables);
    each<BOTH / 16>([&](int j) {
        unsigned x[4];
        each<4>([&](int i) {
            const int r = row + i % 2 * 8, y = query_y(a, s, r0 + r), c = query_x(s, r0 + r),
                      first = 16 * j + column + i / 2 * 8;
            x[i] = both(gathered(a, rel + r * REL, y, c, first), gathered(a, rel + r * REL, y, c, first + 1), T());
        });
        add_across<T, D>(dq, x, right + j * 16 * (D + 8));
    });
}

/* c += rows 16 m .., elements 16 n .. of the tables' gradients: g^T q over queries first .. end,
 * which are at q; their sums are at rel. */
template <typename T, int D>
static __device__ void add_tables(float (&c)[2][4], const attention &a, const window_block &s, const float *rel,
                                  const T *q, int first, int end, int m, int n)
{
    constexpr int ROW = D + 8;
    const int lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
    const T *right = lane_across<T, ROW>(q) + n * 16;
    for (int r0 = first; r0 < end; r0 += MINE) {
        unsigned x[4], b[4];
        each<4>([&](int i) {
            const int r = r0 + column + i / 2 * 8, j = m * 16 + row + i % 2 * 8;
            x[i] = both(gathered(a, rel + r * REL, query_y(a, s, r), query_x(s, r), j),
                        gathered(a, rel + (r + 1) * REL, query_y(a, s, r + 1), query_x(s, r + 1), j), T());
        });
        load4_transposed(b, right + (r0 - first) * ROW);
        mma(c[0], x, b[0], b[1], T());
        mma(c[1], x, b[2], b[3], T());
    }
}

template <int D>
static __device__ void store_tables(float *to, const attention &a, const float (&c)[2][4], int m, int n)
{
    const int lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
    each<4>([&](int i) {
        const int j = m * 16 + row + i % 2 * 8;
        if (j < 2 * (2 * a.window - 1))
            *reinterpret_cast<float2 *>(to + j * D + n * 16 + i / 2 * 8 + column) =
                make_float2(c[i / 2][i % 2 * 2], c[i / 2][i % 2 * 2 + 1]);
    });
}

template <typename T, int D, int ROWS> __global__ void __launch_bounds__(TILES * 32, 1) window_dq(const attention a)
{
    if (!multiplies<T>()) return;
    extern __shared__ uint4 shared_pieces[];
    constexpr int ROW = D + 8;
    char *shared = reinterpret_cast<char *>(shared_pieces);
    const window_block s = window_block_of(a, (int)blockIdx.x);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2,
              queries = s.rows * s.columns, r0 = warp * MINE;
    using at = dq_layout<D, ROWS>;
    T *k = reinterpret_cast<T *>(shared + at::k), *v = reinterpret_cast<T *>(shared + at::v),
      *tables = reinterpret_cast<T *>(shared + at::tables);
    float *all = reinterpret_cast<float *>(shared + at::own), *rel = all + r0 * REL;

    copy_tables<T, D>(tables, a);
    copy_part<T, D>(k, v, a, s, 0, min(ROWS, a.window));
    int token[2];
    tokens_from(token, a, s, r0);
    unsigned q[D / 16][4], dout[D / 16][4];
    query_state m = {};
    load_tokens<T, D>(q, s, a.q, token);
    load_tokens<T, D>(dout, s, a.dout, token);
    make_delta<T, D>(m.delta, dout, s, a.o, token);
    copy_wait<0>();
    __syncthreads();
    tile_positions<T, D>(rel, q, tables, a, s, r0);
    each<2>([&](int half) {
        /* a query beyond the last gets probabilities 0 */
        const float lse = token[half] >= 0 ? *lse_at(a, s.b, s.h, token[half]) * LOG2E : CUDART_INF_F;
        each<4>([&](int i) {
            const int c = i / 2 * 8 + column + i % 2;
            m.across[half][i] = c < a.window ? rel[(row + 8 * half) * REL + SIDE + c] - lse : -CUDART_INF_F;
        });
    });
    float dq[D / 8][4] = {};
    by_parts<T, D, ROWS>(k, v, a, s, [&](int y0, int rows) {
#pragma unroll 1
        for (int y = 0; y < rows && r0 < queries; y++)
            attend_key_row<T, D>(dq, m, rel, q, dout, k + y * SIDE * ROW, v + y * SIDE * ROW, y0 + y, a.scale * LOG2E);
    });
    constexpr int UNITS = BOTH / 16 * (D / 16), EACH = (UNITS + TILES - 1) / TILES, CHUNK = at::chunk;
    constexpr bool APART = at::apart;
    if (APART) {
        __syncthreads();
        copy_queries<T, D>(k, a, s, a.q, 0, TILES * MINE, threadIdx.x, blockDim.x);
        copy_commit();
    }
    each<8>([&](int i) {
        const int c = i / 4 * 8 + column + i % 2;
        if (c < a.window) rel[(row + i / 2 % 2 * 8) * REL + SIDE + c] = m.columns[i / 4][i % 4];
    });
    __syncwarp();
    each<D / 8 * 4>([&](int i) { dq[i / 4][i % 4] *= a.scale; });
    if (r0 < queries) add_positions<T, D>(dq, a, s, rel, tables, r0);
    each<2>([&](int half) {
        if (token[half] >= 0) store_half(row_at<T>(a.dq, s.b, token[half], s.h), dq, half, 1.0f);
    });
    float c[EACH][2][4] = {};
    for (int first = 0; first < queries; first += CHUNK) {
        if (!APART) {
            __syncthreads();
            copy_queries<T, D>(k, a, s, a.q, first, min(CHUNK, TILES * MINE - first), threadIdx.x, blockDim.x);
            copy_commit();
        }
        copy_wait<0>();
        __syncthreads();
        each<EACH>([&](int i) {
            const int unit = warp + i * TILES;
            if (unit < UNITS)
                add_tables<T, D>(c[i], a, s, all, k, first, min(queries, first + CHUNK), unit / (D / 16),
                                 unit % (D / 16));
        });
    }
    float *to = a.tables + (int64_t)s.index * 2 * (2 * a.window - 1) * D;
    each<EACH>([&](int i) {
        const int unit = warp + i * TILES;
        if (unit < UNITS) store_tables<D>(to, a, c[i], unit / (D / 16), unit % (D / 16));
    });
}

/* --- dk and dv -------------------------------------------------------------------------------- */

/* Copies 32 queries and their do. */
template <typename T, int D>
static __device__ void copy_tile(T *q, T *dout, const attention &a, const window_block &s, const int *token)
{
    constexpr int CHUNKS = D / 8;
    for (int i = threadIdx.x; i < TILE * CHUNKS; i += blockDim.x) {
        const int r = i / CHUNKS, d = i % CHUNKS * 8, t = token[r];
        copy16(q + r * (D + 8) + d, row_at<T>(a.q, s.b, max(t, 0), s.h) + d, t >= 0);
        copy16(dout + r * (D + 8) + d, row_at<T>(a.dout, s.b, max(t, 0), s.h) + d, t >= 0);
    }
}

/* The position terms of queries first .. first+count, which are at q, [WINDOW_FAST + 16][queries]:
 * by row, then by column. */
template <typename T, int D>
static __device__ void make_positions(float *rel, const T *q, const T *tables, const attention &a,
                                      const window_block &s, int first, int count)
{
    const int lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2, queries = s.rows * s.columns;
    for (int r0 = first + threadIdx.x / 32 * 16; r0 < first + count; r0 += blockDim.x / 32 * 16) {
        float g[BOTH / 8][4] = {};
        if (r0 < queries) product_rows<T, D, BOTH / 8>(g, q + (r0 - first) * (D + 8), tables);
        each<BOTH / 8, 4>([&](int n, int i) {
            const int r = r0 + row + i / 2 * 8,
                      c = position_of(a, query_y(a, s, r), query_x(s, r), 8 * n + column + i % 2);
            if (c >= 0) rel[(c < SIDE ? c : WINDOW_FAST + c - SIDE) * REL_ROW + r] = g[n][i] * LOG2E;
        });
    }
}

/* The contribution of 32 queries from t0 on, at q and dout, to a row of keys, row y of the window,
 * with keys k and values v. */
template <typename T, int D, int ROWS>
static __device__ void attend_queries(float (&dk)[D / 8][4], float (&dv)[D / 8][4], const unsigned (&k)[D / 16][4],
                                      const unsigned (&v)[D / 16][4], const attention &a, char *shared, const T *q,
                                      const T *dout, int t0, int y)
{
    constexpr int N = TILE / 8;
    const int lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
    using at = dkv_layout<D, ROWS>;
    const float *rel = reinterpret_cast<const float *>(shared + at::rel) + t0 + column;
    const float *lse = reinterpret_cast<const float *>(shared + at::lse) + t0 + column,
                *delta = reinterpret_cast<const float *>(shared + at::delta) + t0 + column;
    const float factor = a.scale * LOG2E;
    float p[N][4];
    product_held<T, D, N>(p, k, q);
    each<N>([&](int n) {
        const float2 down = pair_at(rel + y * REL_ROW + 8 * n), last = pair_at(lse + 8 * n);
        each<2>([&](int half) {
            const float2 across = pair_at(rel + (WINDOW_FAST + row + 8 * half) * REL_ROW + 8 * n);
            p[n][2 * half] = exp2f(p[n][2 * half] * factor + (across.x + (down.x - last.x)));
            p[n][2 * half + 1] = exp2f(p[n][2 * half + 1] * factor + (across.y + (down.y - last.y)));
        });
    });
    product_add<T, D, N>(dv, p, dout);
    float ds[N][4];
    product_held<T, D, N>(ds, v, dout);
    each<N>([&](int n) {
        const float2 mean = pair_at(delta + 8 * n);
        each<4>([&](int i) { ds[n][i] = p[n][i] * (ds[n][i] - (i % 2 ? mean.y : mean.x)); });
    });
    product_add<T, D, N>(dk, ds, q);
}

/* The warp's row y of dk or dv: keys on the grid are stored, those outside are summed in `pads`
 * [D]. */
template <typename T, int D>
static __device__ void store_keys(const attention &a, const window_block &s, const head_rows &to, int y,
                                  const float (&sum)[D / 8][4], float factor, float *pads)
{
    float take[2];
    each<2>([&](int half) {
        const int x = threadIdx.x % 32 / 4 + 8 * half;
        const bool is_there = y < s.rows && x < s.columns;
        take[half] = !is_there && x < a.window ? factor : 0.0f;
        if (is_there) store_half(row_at<T>(to, s.b, token_at(a, s, y, x), s.h), sum, half, factor);
    });
    if (s.rows != a.window || s.columns != a.window) sum_beyond(pads, sum, take);
}

template <typename T, int D, int ROWS> __global__ void __launch_bounds__(ROWS * 32, 1) window_dkv(const attention a)
{
    if (!multiplies<T>()) return;
    extern __shared__ uint4 shared_pieces[];
    constexpr int ROW = D + 8;
    char *shared = reinterpret_cast<char *>(shared_pieces);
    const window_block s = window_block_of(a, (int)blockIdx.x);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, queries = s.rows * s.columns;
    using at = dkv_layout<D, ROWS>;
    T *tables = reinterpret_cast<T *>(shared + at::tables), *k = reinterpret_cast<T *>(shared + at::k),
      *v = reinterpret_cast<T *>(shared + at::v);
    T *q = reinterpret_cast<T *>(shared + at::q), *dout = reinterpret_cast<T *>(shared + at::dout);
    int *token = reinterpret_cast<int *>(shared + at::token);
    /* pads: [rows][2][D] */
    float *rel = reinterpret_cast<float *>(shared + at::rel), *pads = reinterpret_cast<float *>(shared + at::pads);
    float *lse = reinterpret_cast<float *>(shared + at::lse), *delta = reinterpret_cast<float *>(shared + at::delta);

    constexpr int CHUNK = at::chunk;
    copy_tables<T, D>(tables, a);
    for (int first = 0; first < QUERIES; first += CHUNK) {
        if (first) __syncthreads();
        if (first < queries) copy_queries<T, D>(q, a, s, a.q, first, CHUNK, threadIdx.x, blockDim.x);
        copy_commit();
        if (!first)
            load_row_stats<T, D, QUERIES>(lse, delta, token, a, s, blockDim.x,
                                          [&](int r) { return query_at(a, s, r); });
        copy_wait<0>();
        __syncthreads();
        make_positions<T, D>(rel, q, tables, a, s, first, min(CHUNK, QUERIES - first));
    }
    for (int i = threadIdx.x; i < (SIDE - a.window) * QUERIES; i += blockDim.x) /* beyond the window */
        rel[(WINDOW_FAST + a.window + i / QUERIES) * REL_ROW + i % QUERIES] = -CUDART_INF_F;
    for (int y0 = 0; y0 < a.window; y0 += ROWS) {
        const int rows = min(ROWS, a.window - y0);
        unsigned keys[D / 16][4] = {}, values[D / 16][4] = {};
        __syncthreads();
        copy_part<T, D>(k, v, a, s, y0, rows);
        copy_wait<0>();
        __syncthreads();
#pragma unroll
        for (int i = 0; i < D / 16 && warp < rows; i++) {
            const int at = (warp * SIDE + lane % 16) * ROW + lane / 16 * 8 + 16 * i;
            load4(keys[i], k + at);
            load4(values[i], v + at);
        }
        __syncthreads();
        copy_tile<T, D>(q, dout, a, s, token);
        copy_commit();
        float dk[D / 8][4] = {}, dv[D / 8][4] = {};
        for (int t0 = 0; t0 < queries; t0 += TILE) {
            const int stage = t0 / TILE % 2 * TILE, next = TILE - stage;
            copy_wait<0>();
            __syncthreads(); /* the other stage is no longer read */
            if (t0 + TILE < queries) copy_tile<T, D>(q + next * ROW, dout + next * ROW, a, s, token + t0 + TILE);
            copy_commit();
            if (warp < rows)
                attend_queries<T, D, ROWS>(dk, dv, keys, values, a, shared, q + stage * ROW, dout + stage * ROW, t0,
                                           y0 + warp);
        }
        if (warp >= rows) continue;
        store_keys<T, D>(a, s, a.dk, y0 + warp, dk, a.scale, pads + (y0 + warp) * 2 * D);
        store_keys<T, D>(a, s, a.dv, y0 + warp, dv, 1.0f, pads + ((y0 + warp) * 2 + 1) * D);
    }
    __syncthreads();
    store_pads<D>(a, s, pads, a.window, threadIdx.x, blockDim.x);
}

/* --- launching -------------------------------------------------------------------------------- */

template <int ROWS, typename T, int D> static cudaError_t start(const attention *a, cudaStream_t stream)
{
    constexpr size_t dq = dq_layout<D, ROWS>::total, dkv = dkv_layout<D, ROWS>::total;
    static_assert(dq <= part_shared_limit<ROWS> && dkv <= part_shared_limit<ROWS>, "it fits");
    const cudaError_t rc = start_kernel(window_dq<T, D, ROWS>, windows_of(a), TILES * 32, dq, stream, *a);
    return rc == cudaSuccess ? start_kernel(window_dkv<T, D, ROWS>, windows_of(a), ROWS * 32, dkv, stream, *a) : rc;
}

extern "C" cudaError_t cuda_window_fast_bwd(const struct attention *a, cudaStream_t stream)
{
    return by_type_and_length<32, 64, 80>(a, [&](auto t, auto d) {
        return start<PART, decltype(t), decltype(d)::value>(a, stream);
    });
}

extern "C" cudaError_t cuda_window_small_bwd(const struct attention *a, cudaStream_t stream)
{
    return by_length<__half, 32, 64, 80>(a, [&](auto t, auto d) {
        return start<small_part<decltype(d)::value>, decltype(t), decltype(d)::value>(a, stream);
    });
}

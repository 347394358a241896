/*
 * attention_window_bwd.cu: the gradient of attention within squares on tensor cores, bf16 and f16,
 * in one kernel: five products for a pair of query and key, where separate kernels for dq and for dk
 * and dv take seven.
 *
 * A block has a square of a head, each warp one row of its places: their keys, values, and the sums dk and
 * dv. All warps walk the queries together, 32 at a time:
 *
 *     each warp    p^T = 2^(k q^T + positions - lse)     dv += p^T do
 *                  ds^T = p^T (v do^T - delta)           dk += ds^T q
 *                  ds to shared memory; its sums over the row's places, by query, to g
 *     barrier      sums of ds over the square's rows, by query and column, to g
 *     barrier      tiles of dq = scale ds k + g tables, and of the tables' gradients += g^T q, go round the warps
 *
 * g [32][64] has what a query's positions gather in the places of the tables' rows they were made with, so
 * both products are ordinary ones. It lies behind ds, and the tables behind the keys: dq is one product.
 * Nothing is added across blocks: the gradients of tables and pad are left square by square in the
 * workspace (cuda_window_sums).
 */
#include "cuda/attention_window_mma.cuh"

constexpr int TILE = 32, STAGES = 3, QUERIES = (WINDOW_FAST * WINDOW_FAST + TILE - 1) / TILE * TILE, THREADS = WINDOW_FAST * 32;

/* Distances of rows: of ds an odd number of 16 bytes; of positions 8 banks. */
constexpr int DS_ROW = PLACES + BOTH + 8, REL_ROW = QUERIES + 8;
static_assert(DS_ROW / 8 % 2 == 1 && REL_ROW % 32 == 8, "few rows meet in a bank");

/* Shared memory, in order: bytes from its beginning. */
template <int D> struct layout {
    static constexpr int ROW = (D + 8) * 2, k = 0, v = (PLACES + BOTH) * ROW, q = v + PLACES * ROW, dout = q + STAGES * TILE * ROW;
    static constexpr int ds = dout + STAGES * TILE * ROW, rel = ds + 2 * TILE * DS_ROW * 2, tables = rel + 4 * (WINDOW_FAST + SIDE) * REL_ROW;
    static constexpr int lse = tables + 4 * BOTH * D, delta = lse + 4 * QUERIES, place = delta + 4 * QUERIES;
    static constexpr int token = place + 4 * QUERIES, total = token + 4 * QUERIES;
    static_assert((WINDOW_FAST * WINDOW_FAST + 15) / 16 * 16 * ROW <= 2 * TILE * DS_ROW * 2, "all queries fit where ds will be");
};

#if HAS_MMA

/* lse in powers of two, delta, place, token: two threads to a query. One beyond the last has lse = inf: its
 * probabilities are 0. */
template <typename T, int D>
static __device__ void note_queries(float *lse, float *delta, int *place, int *token, const window_attention &a, const square &s)
{
    const int queries = s.rows * s.columns;
    for (int first = 0; first < QUERIES; first += blockDim.x / 2) {
        const int r = first + threadIdx.x / 2;
        const int t = query_at(a, s, r < queries ? r : 0);
        float sum = 0;
        if (r < queries)
            for (int d = threadIdx.x % 2 * 8; d < D; d += 16) sum += dot8(row_at<T>(a.dout, s.b, t, s.h) + d, row_at<T>(a.o, s.b, t, s.h) + d);
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        if (r >= QUERIES || threadIdx.x % 2) continue;
        lse[r] = r < queries ? *window_lse_at(a, s, t) * LOG2E : CUDART_INF_F;
        delta[r] = sum;
        place[r] = query_y(a, s, r) << 8 | query_x(s, r);
        token[r] = r < queries ? t : -1;
    }
}

/* 32 queries and their do. */
template <typename T, int D> static __device__ void copy_tile(T *q, T *dout, const window_attention &a, const square &s, const int *token)
{
    constexpr int PIECES = D / 8;
    for (int i = threadIdx.x; i < TILE * PIECES; i += blockDim.x) {
        const int r = i / PIECES, d = i % PIECES * 8, t = token[r];
        copy16(q + r * (D + 8) + d, row_at<T>(a.q, s.b, max(t, 0), s.h) + d, t >= 0);
        copy16(dout + r * (D + 8) + d, row_at<T>(a.dout, s.b, max(t, 0), s.h) + d, t >= 0);
    }
}

/* Positions of all queries, [WINDOW_FAST + 16][queries]: by row, then by column; -inf beyond the square. */
template <typename T, int D>
static __device__ void make_positions(float *rel, const T *q, const T *tables, const window_attention &a, const square &s)
{
    const int lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2, queries = s.rows * s.columns;
    for (int r0 = threadIdx.x / 32 * 16; r0 < QUERIES; r0 += blockDim.x / 32 * 16) {
        float g[BOTH / 8][4] = {};
        if (r0 < queries) product_rows<T, D, BOTH / 8>(g, q + r0 * (D + 8), tables);
#pragma unroll
        for (int n = 0; n < BOTH / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int r = r0 + row + i / 2 * 8, c = position_of(a, query_y(a, s, r), query_x(s, r), 8 * n + column + i % 2);
                if (c >= 0) rel[(c < SIDE ? c : WINDOW_FAST + c - SIDE) * REL_ROW + r] = g[n][i] * LOG2E;
            }
    }
    for (int i = threadIdx.x; i < (SIDE - a.window) * QUERIES; i += blockDim.x)
        rel[(WINDOW_FAST + a.window + i / QUERIES) * REL_ROW + i % QUERIES] = -CUDART_INF_F;
}

/* Queries that a warp takes at once: longer rows leave fewer registers. */
template <int D> constexpr int at_once = D <= 64 ? 32 : 16;

/* What the warp's row of places does with so many queries, from t0 on, which lie `from` on in their stage. */
template <typename T, int D>
static __device__ void take_queries(float (&dk)[D / 8][4], float (&dv)[D / 8][4], const window_attention &a, char *shared,
                                    int t0, int from, T *ds)
{
    constexpr int ROW = D + 8, N = at_once<D> / 8;
    const int lane = threadIdx.x % 32, y = threadIdx.x / 32, row = lane / 4, column = lane % 4 * 2;
    const T *k = reinterpret_cast<const T *>(shared + layout<D>::k) + y * SIDE * ROW, *v = reinterpret_cast<const T *>(shared + layout<D>::v) + y * SIDE * ROW;
    const T *q = reinterpret_cast<const T *>(shared + layout<D>::q) + from * ROW, *dout = reinterpret_cast<const T *>(shared + layout<D>::dout) + from * ROW;
    const float *rel = reinterpret_cast<const float *>(shared + layout<D>::rel) + t0 + column;
    const float *lse = reinterpret_cast<const float *>(shared + layout<D>::lse) + t0 + column, *delta = reinterpret_cast<const float *>(shared + layout<D>::delta) + t0 + column;
    const int *place = reinterpret_cast<const int *>(shared + layout<D>::place) + t0 + column;
    const float factor = a.scale * LOG2E;

    float x[N][4];
    product_rows<T, D, N>(x, k, q);
#pragma unroll
    for (int n = 0; n < N; n++) {
        const float2 down = *reinterpret_cast<const float2 *>(rel + y * REL_ROW + 8 * n), last = *reinterpret_cast<const float2 *>(lse + 8 * n);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float2 across = *reinterpret_cast<const float2 *>(rel + (WINDOW_FAST + row + 8 * half) * REL_ROW + 8 * n);
            x[n][2 * half] = exp2f(x[n][2 * half] * factor + (across.x + (down.x - last.x)));
            x[n][2 * half + 1] = exp2f(x[n][2 * half + 1] * factor + (across.y + (down.y - last.y)));
        }
    }
    product_add<T, D, N>(dv, x, dout);
    float e[N][4];
    product_rows<T, D, N>(e, v, dout);
#pragma unroll
    for (int n = 0; n < N; n++) {
        const float2 mean = *reinterpret_cast<const float2 *>(delta + 8 * n);
#pragma unroll
        for (int i = 0; i < 4; i++) e[n][i] = x[n][i] * (e[n][i] - (i % 2 ? mean.y : mean.x));
    }
    product_add<T, D, N>(dk, e, q);
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            T *to = ds + (8 * n + column + i) * DS_ROW;
            to[y * SIDE + row] = from_float<T>(e[n][i]);
            to[y * SIDE + row + 8] = from_float<T>(e[n][2 + i]);
            float sum = e[n][i] + e[n][2 + i];
            for (int m = 4; m < 32; m *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, m);
            if (row == 0) to[PLACES + (place[8 * n + i] >> 8) - y + a.window - 1] = from_float<T>(sum);
        }
}

/* By columns: a thread to two of them of a query. And the other buffer's g is zeroed. */
template <typename T, int D>
static __device__ void gather_columns(const window_attention &a, const int *place, T *ds, T *other)
{
    for (int i = threadIdx.x; i < TILE * SIDE / 2; i += blockDim.x) {
        const int r = i / (SIDE / 2), c = i % (SIDE / 2) * 2;
        T *from = ds + r * DS_ROW;
        float sum[2] = {0, 0};
        for (int y = 0; y < a.window; y++) {
            const pack<T, 2> two = *reinterpret_cast<const pack<T, 2> *>(from + y * SIDE + c);
            sum[0] += to_float(two.at[0]), sum[1] += to_float(two.at[1]);
        }
        T *to = from + PLACES + 2 * a.window - 1 + (place[r] & 0xff) + a.window - 1 - c;
        if (c < a.window) to[0] = from_float<T>(sum[0]);
        if (c + 1 < a.window) to[-1] = from_float<T>(sum[1]);
    }
    for (int i = threadIdx.x; i < TILE * BOTH / 8; i += blockDim.x)
        *reinterpret_cast<uint4 *>(other + i / (BOTH / 8) * DS_ROW + PLACES + i % (BOTH / 8) * 8) = uint4{0, 0, 0, 0};
}

/* Queries 16 m .. of the tile, elements 16 n .. of dq. */
template <typename T, int D>
static __device__ void make_dq(const window_attention &a, const square &s, const T *k, const T *ds, const int *token, int m, int n)
{
    constexpr int ROW = D + 8;
    const int lane = threadIdx.x % 32;
    const T *left = ds + (m * 16 + lane % 16) * DS_ROW + lane / 16 * 8, *right = k + lane % 16 * ROW + lane / 16 * 8 + n * 16;
    float c[2][4] = {};
    unsigned x[4], y[4];
#pragma unroll 4
    for (int key = 0; key < a.window * SIDE; key += 16) {
        load4(x, left + key);
        load4_across(y, right + key * ROW);
        mma(c[0], x, y[0], y[1], T());
        mma(c[1], x, y[2], y[3], T());
    }
#pragma unroll
    for (int i = 0; i < 8; i++) c[i / 4][i % 4] *= a.scale;
#pragma unroll
    for (int j = 0; j < BOTH; j += 16) {
        load4(x, left + PLACES + j);
        load4_across(y, right + (PLACES + j) * ROW);
        mma(c[0], x, y[0], y[1], T());
        mma(c[1], x, y[2], y[3], T());
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int t = token[m * 16 + lane / 4 + 8 * half];
        if (t < 0) continue;
        T *to = row_at<T>(a.dq, s.b, t, s.h) + n * 16 + lane % 4 * 2;
        *reinterpret_cast<unsigned *>(to) = both(c[0][2 * half], c[0][2 * half + 1], T());
        *reinterpret_cast<unsigned *>(to + 8) = both(c[1][2 * half], c[1][2 * half + 1], T());
    }
}

/* Rows 16 m .. of the tables' gradients += g^T q, over the tile's first 16 queries or all. */
template <typename T, int D> static __device__ void add_tables(float *tables, const T *ds, const T *q, int m, bool both_halves)
{
    constexpr int ROW = D + 8;
    const int lane = threadIdx.x % 32;
    const T *left = ds + (lane / 16 * 8 + lane % 8) * DS_ROW + PLACES + m * 16 + lane / 8 % 2 * 8, *right = q + lane % 16 * ROW + lane / 16 * 8;
    unsigned x[2][4], y[4];
    load4_across(x[0], left);
    load4_across(x[1], left + 16 * DS_ROW);
    float *to = tables + (m * 16 + lane / 4) * D + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
        float c[2][4];
#pragma unroll
        for (int i = 0; i < 8; i++) c[i / 4][i % 4] = to[i / 2 % 2 * 8 * D + (n + i / 4) * 8 + i % 2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (half && !both_halves) continue;
            load4_across(y, right + half * 16 * ROW + n * 8);
            mma(c[0], x[half], y[0], y[1], T());
            mma(c[1], x[half], y[2], y[3], T());
        }
#pragma unroll
        for (int i = 0; i < 8; i++) to[i / 2 % 2 * 8 * D + (n + i / 4) * 8 + i % 2] = c[i / 4][i % 4];
    }
}

/* The warp's row of dk or dv: places on the grid are stored, those beyond it add up in `pads` [D]. */
template <typename T, int D>
static __device__ void store_places(const window_attention &a, const square &s, const head_rows &to, const float (&sum)[D / 8][4], float factor, float *pads)
{
    const int lane = threadIdx.x % 32, y = threadIdx.x / 32, row = lane / 4, column = lane % 4 * 2;
    float take[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int x = row + 8 * half;
        const bool is_there = y < s.rows && x < s.columns;
        take[half] = !is_there && x < a.window ? factor : 0.0f;
        if (!is_there) continue;
        T *at = row_at<T>(to, s.b, token_at(a, s, y, x), s.h) + column;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            *reinterpret_cast<unsigned *>(at + 8 * n) = both(sum[n][2 * half] * factor, sum[n][2 * half + 1] * factor, T());
    }
    if (s.rows == a.window && s.columns == a.window) return;
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float total = sum[n][i] * take[0] + sum[n][2 + i] * take[1];
            for (int m = 4; m < 32; m *= 2) total += __shfl_xor_sync(0xffffffffu, total, m);
            if (row == 0) pads[8 * n + column + i] = total;
        }
}

#endif

template <typename T, int D> __global__ void __launch_bounds__(THREADS, 1) window_backward(const window_attention a)
{
#if HAS_MMA
    extern __shared__ uint4 shared_pieces[];
    constexpr int ROW = D + 8;
    char *shared = reinterpret_cast<char *>(shared_pieces);
    const square s = square_of(a, (int)blockIdx.x);
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32, queries = s.rows * s.columns;
    T *k = reinterpret_cast<T *>(shared + layout<D>::k), *q = reinterpret_cast<T *>(shared + layout<D>::q), *dout = reinterpret_cast<T *>(shared + layout<D>::dout);
    T *ds = reinterpret_cast<T *>(shared + layout<D>::ds);
    float *tables = reinterpret_cast<float *>(shared + layout<D>::tables);
    int *place = reinterpret_cast<int *>(shared + layout<D>::place), *token = reinterpret_cast<int *>(shared + layout<D>::token);

    /* Before the first tile all queries stand where ds will. Positions are made while keys are on their way. */
    copy_queries<T, D>(ds, a, s, a.q, 0, (queries + 15) / 16 * 16, threadIdx.x, blockDim.x);
    copy_tables<T, D>(k + PLACES * ROW, a);
    copy_commit();
    copy_places<T, D>(k, a, s, a.k, 0);
    copy_places<T, D>(reinterpret_cast<T *>(shared + layout<D>::v), a, s, a.v, 1);
    copy_queries<T, D>(q, a, s, a.q, 0, TILE, threadIdx.x, blockDim.x);
    copy_queries<T, D>(dout, a, s, a.dout, 0, TILE, threadIdx.x, blockDim.x);
    copy_commit();
    note_queries<T, D>(reinterpret_cast<float *>(shared + layout<D>::lse), reinterpret_cast<float *>(shared + layout<D>::delta), place, token, a, s);
    for (int i = threadIdx.x; i < BOTH * D; i += blockDim.x) tables[i] = 0;
    copy_wait<1>();
    __syncthreads();
    make_positions<T, D>(reinterpret_cast<float *>(shared + layout<D>::rel), ds, k + PLACES * ROW, a, s);
    __syncthreads();
    for (int i = threadIdx.x; i < TILE * BOTH / 8; i += blockDim.x)
        *reinterpret_cast<uint4 *>(ds + i / (BOTH / 8) * DS_ROW + PLACES + i % (BOTH / 8) * 8) = uint4{0, 0, 0, 0};
    copy_wait<0>();
    __syncthreads();

    float dk[D / 8][4] = {}, dv[D / 8][4] = {};
    for (int tile = 0; tile * TILE < queries; tile++) {
        const int t0 = tile * TILE, stage = tile % STAGES, next = (tile + 1) % STAGES;
        T *here = ds + tile % 2 * TILE * DS_ROW, *other = ds + (tile + 1) % 2 * TILE * DS_ROW;
        /* The stage after this one: nobody reads it. The one before may still be read for the tables. */
        if (t0 + TILE < queries) copy_tile<T, D>(q + next * TILE * ROW, dout + next * TILE * ROW, a, s, token + t0 + TILE);
        copy_commit();
#pragma unroll 1
        for (int r = 0; r < TILE; r += at_once<D>)
            if (t0 + r < queries) take_queries<T, D>(dk, dv, a, shared, t0 + r, stage * TILE + r, here + r * DS_ROW);
        __syncthreads();
        gather_columns<T, D>(a, place + t0, here, other);
        copy_wait<0>();
        __syncthreads();
        for (int unit = warp; unit < 2 * (D / 16) + BOTH / 16; unit += warps) {
            const int m = unit / (D / 16);
            if (m >= 2) add_tables<T, D>(tables, here, q + stage * TILE * ROW, unit - 2 * (D / 16), t0 + 16 < queries);
            else if (t0 + m * 16 < queries) make_dq<T, D>(a, s, k, here, token + t0, m, unit % (D / 16));
        }
    }
    __syncthreads();
    float *pads = reinterpret_cast<float *>(ds); /* [warps][2][D] */
    store_places<T, D>(a, s, a.dk, dk, a.scale, pads + warp * 2 * D);
    store_places<T, D>(a, s, a.dv, dv, 1.0f, pads + (warp * 2 + 1) * D);
    __syncthreads();
    const bool is_whole = s.rows == a.window && s.columns == a.window;
    for (int i = threadIdx.x; i < 2 * D; i += blockDim.x) {
        float sum = 0;
        for (int w = 0; w < warps && !is_whole; w++) sum += pads[w * 2 * D + i];
        a.pads[(int64_t)s.index * 2 * D + i] = sum;
    }
    const int numbers = 2 * (2 * a.window - 1) * D;
    for (int i = threadIdx.x; i < numbers; i += blockDim.x) a.tables[(int64_t)s.index * numbers + i] = tables[i];
#endif
}

template <typename T, int D> static cudaError_t start(const window_attention *a, cudaStream_t stream)
{
    const size_t bytes = layout<D>::total;
    const cudaError_t rc = allow_shared(window_backward<T, D>, bytes);
    if (rc != cudaSuccess) return rc;
    window_backward<T, D><<<(unsigned)((int64_t)a->B * a->across * a->down * a->H), (unsigned)a->window * 32, bytes, stream>>>(*a);
    return cudaGetLastError();
}

template <typename T> static cudaError_t run(const window_attention *a, cudaStream_t stream)
{
    switch (a->D) {
    case 32: return start<T, 32>(a, stream);
    case 64: return start<T, 64>(a, stream);
    case 80: return start<T, 80>(a, stream);
    }
    return cudaErrorInvalidValue;
}

extern "C" cudaError_t cuda_window_fast_bwd(const struct window_attention *a, cudaStream_t stream)
{
    return a->type == STORE_BF16 ? run<__nv_bfloat16>(a, stream) : run<__half>(a, stream);
}

size_t window_forward_shared(const window_attention *a);

extern "C" size_t cuda_window_shared(const struct window_attention *a, int backward)
{
    if (!backward) return window_forward_shared(a);
    return a->D == 32 ? layout<32>::total : a->D == 64 ? layout<64>::total : layout<80>::total;
}

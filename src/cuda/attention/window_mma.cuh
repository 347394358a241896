/*
 * window_mma.cuh: a window in shared memory, for the mma.sync kernels; the Hopper kernels
 * use its slot numbers.
 *
 * Keys and values have 16 slots per row of the window, for any window size: one product takes a row
 * of the window, and a key's column is its column in the fragment. Slots beyond the window are
 * zeros, and their column terms are -inf.
 *
 * Both tables are stored one after the other, 2 (2 window - 1) rows padded to 64: one product of 16
 * queries with them computes all position terms, each at its table row,
 *
 *     g[j] = q . table_h[j]                 is position  y - j + window-1  of a query in row y
 *     g[2 window - 1 + j] = q . table_w[j]               x - j + window-1  of one in column x
 */
#pragma once

#include "cuda/attention/mma.cuh"

/* --- the window of a block -------------------------------------------------------------------- */

/* The window of a block, and the addresses of its tokens. */

/* A window of a sample and a head: its first position, and how many of its rows and columns are on
 * the grid. Those positions, row by row, are its queries. */
struct window_block {
    int b, h, index;
    int y, x, rows, columns;
};

__device__ inline window_block window_block_of(const attention &a, int index)
{
    const int place = index / a.H, in = place % (a.across * a.down);
    window_block s;
    s.index = index, s.h = index % a.H, s.b = place / (a.across * a.down);
    s.y = in / a.across * a.window, s.x = in % a.across * a.window;
    s.rows = min(a.window, a.height - s.y), s.columns = min(a.window, a.width - s.x);
    return s;
}

__device__ inline int token_at(const attention &a, const window_block &s, int y, int x)
{
    return (s.y + y) * a.width + s.x + x;
}
/* Returns the token of query r. */
__device__ inline int query_at(const attention &a, const window_block &s, int r)
{
    return token_at(a, s, r / s.columns, r % s.columns);
}

/* Returns the number of blocks of a kernel with one window of a head each. */
static inline int64_t windows_of(const attention *a) { return (int64_t)a->B * a->across * a->down * a->H; }

/* --- a window in shared memory ---------------------------------------------------------------- */


/* Slots per row; slots per window, for any window size; rows for both tables; pitch in floats of
 * the queries' position terms; tiles of 16 queries. */
constexpr int SIDE = 16, KEY_SLOTS = WINDOW_FAST * SIDE, BOTH = 64, REL = 33,
              TILES = (WINDOW_FAST * WINDOW_FAST + 15) / 16;

/* Rows of the window whose keys and values are in shared memory at once: as the 99 KiB per block
 * from 8.0 on allow, and as the 64 KiB of 7.5 do. */
constexpr int PART = WINDOW_FAST / 2;
template <int D> constexpr int small_part = D <= 64 ? 5 : 4;
static_assert(small_part<64> < PART && small_part<80> < PART, "the number of rows identifies the variant");
template <int ROWS> constexpr size_t part_shared_limit = ROWS == PART ? ATTENTION_SHARED : ATTENTION_SHARED_SM75;

/* The shared-memory layout with 16 queries per warp, as byte offsets in order; own: [16][REL]
 * floats per warp. */
template <int D, int ROWS> struct part_layout {
    static constexpr int ROW = (D + 8) * 2, k = 0, v = ROWS * SIDE * ROW, tables = 2 * v, own = tables + BOTH * ROW,
                         total = own + TILES * 16 * REL * 4;
};

static_assert(WINDOW_FAST <= SIDE && 2 * (2 * WINDOW_FAST - 1) <= BOTH, "a window and its tables fit");

template <typename T> __device__ inline float dot8(const T *x, const T *y)
{
    const pack<T, 8> a = *reinterpret_cast<const pack<T, 8> *>(x), b = *reinterpret_cast<const pack<T, 8> *>(y);
    float sum = 0;
    each<8>([&](int i) { sum += to_float(a.at[i]) * to_float(b.at[i]); });
    return sum;
}

/* Copies rows y0 .. y0+rows of the window from x, [rows][16][D + 8]; which: pad's row. */
template <typename T, int D>
__device__ inline void copy_keys(T *to, const attention &a, const window_block &s, const head_rows &x, int which,
                                 int y0, int rows)
{
    constexpr int CHUNKS = D / 8;
    const T *pad = static_cast<const T *>(a.pad) + which * a.pad_which + s.h * a.pad_head;
    for (int i = threadIdx.x; i < rows * SIDE * CHUNKS; i += blockDim.x) {
        const int r = i / CHUNKS, d = i % CHUNKS * 8, y = y0 + r / SIDE, c = r % SIDE;
        const bool is_there = y < s.rows && c < s.columns;
        const T *from = is_there || !a.pad ? row_at<T>(x, s.b, is_there ? token_at(a, s, y, c) : 0, s.h) : pad;
        copy16(to + r * (D + 8) + d, from + d, is_there || (a.pad && c < a.window));
    }
}

/* Copies the keys and values of `rows` rows; the previous ones must no longer be read. */
template <typename T, int D>
__device__ inline void copy_part(T *k, T *v, const attention &a, const window_block &s, int y0, int rows)
{
    copy_keys<T, D>(k, a, s, a.k, 0, y0, rows);
    copy_keys<T, D>(v, a, s, a.v, 1, y0, rows);
    copy_commit();
}

/* Calls f(y0, rows) for each part of ROWS rows of the window, when its keys and values are there;
 * those of the first part have arrived. */
template <typename T, int D, int ROWS, typename F>
__device__ inline void by_parts(T *k, T *v, const attention &a, const window_block &s, F f)
{
    for (int y0 = 0; y0 < a.window; y0 += ROWS) {
        const int rows = min(ROWS, a.window - y0);
        if (y0) {
            __syncthreads();
            copy_part<T, D>(k, v, a, s, y0, rows);
            copy_wait<0>();
            __syncthreads();
        }
        f(y0, rows);
    }
}

template <typename T, int D> __device__ inline void copy_tables(T *to, const attention &a)
{
    constexpr int CHUNKS = D / 8;
    const int rows = 2 * a.window - 1;
    for (int i = threadIdx.x; i < BOTH * CHUNKS; i += blockDim.x) {
        const int j = i / CHUNKS, d = i % CHUNKS * 8, axis = j >= rows, row = axis ? j - rows : j;
        const bool is_there = row < rows;
        copy16(to + j * (D + 8) + d,
               static_cast<const T *>(a.table[axis].data) + (is_there ? row : 0) * a.table[axis].row + d, is_there);
    }
}

/* Copies queries first .. first+count of x; zeros beyond the last. `step` threads take part,
 * numbered from `thread`. */
template <typename T, int D>
__device__ inline void copy_queries(T *to, const attention &a, const window_block &s, const head_rows &x, int first,
                                    int count, int thread, int step)
{
    constexpr int CHUNKS = D / 8;
    const int queries = s.rows * s.columns;
    for (int i = thread; i < count * CHUNKS; i += step) {
        const int r = i / CHUNKS, d = i % CHUNKS * 8;
        const bool is_there = first + r < queries;
        copy16(to + r * (D + 8) + d, row_at<T>(x, s.b, query_at(a, s, is_there ? first + r : 0), s.h) + d, is_there);
    }
}

/* Returns a query's row, query_x its column; a query beyond the last uses the window's last row, so
 * that all its position terms are written. */
__device__ inline int query_y(const attention &a, const window_block &s, int r)
{
    return min(r / s.columns, a.window - 1);
}
__device__ inline int query_x(const window_block &s, int r) { return r % s.columns; }

/* Returns the position term of a query at (y,x) that row j of both tables gives: c < 16 is a row
 * term, from 16 on a column term; -1: none. Rows beyond the tables' last have none: x + window-1 is
 * less than the length of one table. */
__device__ inline int position_of(const attention &a, int y, int x, int j)
{
    const int rows = 2 * a.window - 1;
    const bool by_row = j < rows;
    const int c = (by_row ? y : x + rows) + a.window - 1 - j;
    return (unsigned)c < (unsigned)a.window ? c + (by_row ? 0 : SIDE) : -1;
}

/* Computes the position terms of 16 queries from r0 on, in base 2, to [16][REL]: by row, from SIDE
 * on by column. */
template <typename T, int D>
__device__ inline void tile_positions(float *rel, const unsigned (&q)[D / 16][4], const T *tables, const attention &a,
                                      const window_block &s, int r0)
{
    const int lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
    const T *right = lane_along<T, D>(tables);
    int y[2], x[2];
    each<2>([&](int half) { y[half] = query_y(a, s, r0 + row + 8 * half), x[half] = query_x(s, r0 + row + 8 * half); });
    each<BOTH / 16>([&](int n) {
        float g[2][4] = {};
        each<D / 16>([&](int i) { add_along<T, D>(g, q[i], right + n * 16 * (D + 8) + 16 * i); });
        each<8>([&](int i) {
            const int half = i / 2 % 2, c = position_of(a, y[half], x[half], 16 * n + i / 4 * 8 + column + i % 2);
            if (c >= 0) rel[(row + 8 * half) * REL + c] = g[i / 4][i % 4] * LOG2E;
        });
    });
    __syncwarp();
}

/* Finds the tokens of the thread's two queries of the 16 from r0 on; -1 beyond the last. */
__device__ inline void tokens_from(int (&token)[2], const attention &a, const window_block &s, int r0)
{
    each<2>([&](int half) {
        const int r = r0 + threadIdx.x % 32 / 4 + 8 * half;
        token[half] = r < s.rows * s.columns ? query_at(a, s, r) : -1;
    });
}

/* Loads the warp's 16 rows of x at these tokens as an operand; zeros where a token is -1. */
template <typename T, int D>
__device__ inline void load_tokens(unsigned (&to)[D / 16][4], const window_block &s, const head_rows &x,
                                   const int (&token)[2])
{
    each<2>([&](int half) {
        const T *from = row_at<T>(x, s.b, max(token[half], 0), s.h) + threadIdx.x % 4 * 2;
        each<D / 8>([&](int i) {
            const unsigned two = *reinterpret_cast<const unsigned *>(from + 8 * i);
            to[i / 2][half + i % 2 * 2] = token[half] < 0 ? 0 : two;
        });
    });
}

/* c [16][8N] = the warp's rows x, in registers, times 8N rows of y. */
template <typename T, int D, int N>
__device__ inline void product_held(float (&c)[N][4], const unsigned (&x)[D / 16][4], const T *y)
{
    const T *right = lane_along<T, D>(y);
    each<N>([&](int n) { c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0; });
    each<D / 16>([&](int i) { add_along<T, D>(c, x[i], right + 16 * i); });
}

/* lse in base 2, delta and token of the first COUNT queries, of which query r has token_of(r): two
 * of the block's threads per query. A query beyond the last has lse = inf: its probabilities are
 * 0. */
template <typename T, int D, int COUNT, typename F>
__device__ inline void load_row_stats(float *lse, float *delta, int *token, const attention &a, const window_block &s,
                                      int threads, F token_of)
{
    const int queries = s.rows * s.columns;
    for (int first = 0; first < COUNT; first += threads / 2) {
        const int r = first + threadIdx.x / 2, t = token_of(r < queries ? r : 0);
        float sum = 0;
        if (r < queries)
            each<D / 16>([&](int i) {
                const int d = 16 * i + threadIdx.x % 2 * 8;
                sum += dot8(row_at<T>(a.dout, s.b, t, s.h) + d, row_at<T>(a.o, s.b, t, s.h) + d);
            });
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        if (r >= COUNT || threadIdx.x % 2) continue;
        lse[r] = r < queries ? *lse_at(a, s.b, s.h, t) * LOG2E : CUDART_INF_F;
        delta[r] = sum;
        token[r] = r < queries ? t : -1;
    }
}

/* The sums over a row of keys of those outside the grid, of which `take` is the factor, to `pads`
 * [D]. */
template <int N> __device__ inline void sum_beyond(float *pads, const float (&sum)[N][4], const float (&take)[2])
{
    const int lane = threadIdx.x % 32;
    each<N, 2>([&](int n, int i) {
        float total = sum[n][i] * take[0] + sum[n][2 + i] * take[1];
        for (int m = 4; m < 32; m *= 2) total += __shfl_xor_sync(0xffffffffu, total, m);
        if (lane / 4 == 0) pads[8 * n + lane % 4 * 2 + i] = total;
    });
}

/* The gradient of pad of a window of `window` rows: the sums of its rows, in order. `threads`
 * threads take part, numbered from `thread`. */
template <int D>
__device__ inline void store_pads(const attention &a, const window_block &s, const float *pads, int window, int thread,
                                  int threads)
{
    const bool is_whole = s.rows == window && s.columns == window;
    for (int i = thread; i < 2 * D; i += threads) {
        float sum = 0;
        for (int y = 0; y < window && !is_whole; y++) sum += pads[y * 2 * D + i];
        a.pads[(int64_t)s.index * 2 * D + i] = sum;
    }
}

/*
 * window_hopper.cuh: a 14 x 14 window in shared memory, for the Hopper kernels: tiles of
 * cores.
 *
 * Keys and values have 16 slots per row of the window (window_mma.cuh), 224 in total, so
 * that eight columns of a product of queries with keys are half of one row of the window, and the
 * 16 rows that a warp has of a product of keys with queries are one whole row. Queries are
 * consecutive: those of the window that are on the grid, then zeros up to 208.
 */
#pragma once

#include "cuda/attention/window_mma.cuh"
#include "cuda/attention/wgmma_hopper.cuh"

/* --- products of cores ------------------------------------------------------------------------ */

/* Products of a warpgroup (wgmma_hopper.cuh) from tiles whose rows have any
 * multiple of 8 columns.
 *
 * A tile of R rows is split into core matrices of 8 rows of 8 16-bit numbers, 128 contiguous bytes;
 * a column of cores is R rows of 16 bytes, and the columns follow each other. There is no swizzle
 * and no padding: 80 columns are 160 bytes, where panels of 64 take 256. A core is an operand along
 * its rows and across them, and the part of an accumulator that covers a core is, by warp, its 128
 * bytes in order. TMA has no mode for this layout: rows are loaded by copy16, a core by eight
 * threads.
 *
 *     along     16 columns further: two columns of cores    8 rows further: 128 bytes
 *     across    16 rows further: 256 bytes                  8 columns further: next column */

/* The offset in bytes of row r and column c in a tile of R rows. */
template <int R> __host__ __device__ constexpr int core_at(int r, int c)
{
    return c / 8 * (R * 16) + r * 16 + c % 8 * 2;
}

/* Lets products read, after the next barrier, what ordinary stores have written. */
__device__ inline void fence_shared_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* Returns the descriptor of an operand in a tile of R rows, from p on. */
__device__ inline uint64_t core_operand(const void *p, int leading, int stride)
{
    return (uint64_t)((shared_address(p) & 0x3ffff) >> 4) | (uint64_t)(leading >> 4) << 16 |
           (uint64_t)(stride >> 4) << 32;
}
template <int R> __device__ inline uint64_t cores_along(const void *p) { return core_operand(p, R * 16, 128); }
template <int R> __device__ inline uint64_t cores_across(const void *p) { return core_operand(p, 128, R * 16); }
/* The step to the next 16 of either. */
template <int R> constexpr int along_step = R * 32 >> 4;
constexpr int across_step = 256 >> 4;

/* d (+)= x y^T over D columns: 64 rows of a tile of XR rows, and as many rows of a tile of YR rows
 * as d has columns. */
template <typename T, int D, int XR, int YR, int N>
__device__ inline void cores_product(float (&d)[N], uint64_t x, uint64_t y, int add)
{
    each<D / 16>([&](int k) { multiply<0, 0>(d, x + k * along_step<XR>, y + k * along_step<YR>, add || k, T()); });
}
/* d (+)= p y: p in registers, 64 x 16 K; y has 16 K rows, and as many columns as d. Until the wait
 * p must not be overwritten, not even through a copy: ptxas (13.0) merges the copy with p and
 * writes registers that a product still reads. */
template <typename T, int K, int N>
__device__ inline void cores_add(float (&d)[N], const unsigned (&p)[4 * K], uint64_t y, int add)
{
    each<K>([&](int k) { multiply<1>(d, p + 4 * k, y + k * across_step, add || k, T()); });
}

/* --- a window in shared memory ---------------------------------------------------------------- */

constexpr int WINDOW = WINDOW_FAST, KEYS = KEY_SLOTS, QUERIES = (WINDOW * WINDOW + 15) / 16 * 16, ROWS = 2 * WINDOW - 1;

/* Row and column of a query number: division by the columns of a window, exact below 4096. */
struct numbering {
    int columns, inverse;
};
__device__ inline numbering numbering_of(const window_block &s) { return {s.columns, 65536 / s.columns + 1}; }
__device__ inline int row_of(const numbering &n, int r) { return r * n.inverse >> 16; }
__device__ inline int column_of(const numbering &n, int r) { return r - row_of(n, r) * n.columns; }
__device__ inline int token_of(const attention &a, const window_block &s, const numbering &n, int r)
{
    return token_at(a, s, row_of(n, r), column_of(n, r));
}

/* How a block's threads copy a tile of D columns: eight adjacent rows fill a core, and a thread
 * keeps its column of cores. A round is 16 rows by 64 columns for 128 threads; columns from 64 on
 * are copied in rounds of 16 rows per warp. f(row, column, rows further). */
template <int D, int THREADS, typename F> __device__ inline void by_rounds(F f)
{
    static_assert(D == 64 || D == 80, "the rest of a row is two chunks");
    const int t = threadIdx.x % 128, lane = threadIdx.x % 32;
    f(threadIdx.x / 128 * 16 + t / 64 * 8 + t % 8, t / 8 % 8 * 8, THREADS / 8);
    if (D > 64) f(threadIdx.x / 32 * 16 + lane / 16 * 8 + lane % 8, 64 + lane / 8 % 2 * 8, THREADS / 2);
}

/* Copies all rows of x in the window, [224][D]; which: pad's row. A thread keeps its column of the
 * window. */
template <typename T, int D, int THREADS>
__device__ inline void stage_keys(char *to, const attention &a, const window_block &s, const head_rows &x, int which)
{
    const T *pad = static_cast<const T *>(a.pad) + which * a.pad_which + s.h * a.pad_head;
    by_rounds<D, THREADS>([&](int first, int d, int step) {
        const int c = first % SIDE;
        const bool is_on = c < s.columns, is_padded = a.pad && c < WINDOW;
        const int64_t down = x.token * a.width;
        const T *row = row_at<T>(x, s.b, token_at(a, s, first / SIDE, is_on ? c : 0), s.h) + d;
        char *core = to + core_at<KEYS>(first, d);
#pragma unroll 2
        for (int y = first / SIDE; y < WINDOW; y += step / SIDE, row += step / SIDE * down, core += step * 16) {
            const bool is_there = is_on && y < s.rows;
            copy16(core, is_there || !a.pad ? row : pad + d, is_there || is_padded);
        }
    });
}

/* Copies both tables, one after the other, [64][D]. */
template <typename T, int D, int THREADS> __device__ inline void stage_tables(char *to, const attention &a)
{
    by_rounds<D, THREADS>([&](int first, int d, int step) {
        for (int r = first; r < BOTH; r += step) {
            const int axis = r >= ROWS, row = axis ? r - ROWS : r;
            const bool is_there = row < ROWS;
            copy16(to + core_at<BOTH>(r, d),
                   static_cast<const T *>(a.table[axis].data) + (is_there ? row : 0) * a.table[axis].row + d, is_there);
        }
    });
}

/* Copies the window's queries of x from t0 on, [R][D]; zeros beyond the last. */
template <typename T, int D, int R, int THREADS>
__device__ inline void stage_queries(char *to, const attention &a, const window_block &s, const numbering &n,
                                     const head_rows &x, int t0)
{
    const int queries = s.rows * s.columns;
    by_rounds<D, THREADS>([&](int first, int d, int step) {
        for (int r = first; r < R; r += step) {
            const bool is_there = t0 + r < queries;
            copy16(to + core_at<R>(r, d), row_at<T>(x, s.b, token_of(a, s, n, is_there ? t0 + r : 0), s.h) + d,
                   is_there);
        }
    });
}

/* Writes the position terms of 64 queries, from their products with both tables, in base 2: rel [14
 * rows, 16 columns][DISTANCE], the first query in column 0; the row terms minus `less` of the
 * thread's two queries. Queries from `end` on are skipped. */
template <int DISTANCE>
__device__ inline void stage_positions(float *rel, const float (&g)[BOTH / 2], const float (&less)[2],
                                       const numbering &n, int t0, int end)
{
    const int lane = threadIdx.x % 32, own = threadIdx.x % GROUP / 32 * 16 + lane / 4, column = lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int r = own + 8 * half;
        if (t0 + r >= end) continue;
        /* Row j of the tables is row term y + 13 - j of a query in row y, or column term x + 27 +
         * 13 - j of a query in column x, if there is one; a query beyond the last uses the window's
         * last row, so that all its position terms are written. */
        const int down = min(row_of(n, t0 + r), WINDOW - 1) + WINDOW - 1 - column,
                  right = column_of(n, t0 + r) + ROWS + WINDOW - 1 - column;
        float *to = rel + down * DISTANCE + r, *then = rel + (WINDOW + right) * DISTANCE + r;
        each<BOTH / 4>([&](int i) {
            const int j = i / 2 * 8 + i % 2;
            const float x = g[i / 2 * 4 + 2 * half + i % 2];
            if (j + 6 < ROWS || (j < ROWS && j + column < ROWS)) {
                if ((unsigned)(down - j) < (unsigned)WINDOW) to[-j * DISTANCE] = fmaf(x, LOG2E, -less[half]);
            } else {
                if ((unsigned)(right - j) < (unsigned)WINDOW) then[-j * DISTANCE] = x * LOG2E;
            }
        });
    }
}

/* Stores a quad's part of a row of an accumulator, times `factor`: 32 bytes at a time, 8 per
 * thread, so that no 32-byte sector is written in halves. All threads of the warp call this; those
 * that are not `there` store nothing. */
template <typename T, int N>
__device__ inline void store_row(T *row, const float (&d)[N], int half, float factor, bool there)
{
    const int lane = threadIdx.x % 32, odd = lane % 2;
    row += 8 * odd + lane % 4 / 2 * 4;
#pragma unroll
    for (int n = 0; n < N / 4; n += 2) {
        const unsigned left = both(d[4 * n + 2 * half] * factor, d[4 * n + 2 * half + 1] * factor, T());
        const unsigned right = both(d[4 * n + 4 + 2 * half] * factor, d[4 * n + 5 + 2 * half] * factor, T());
        const unsigned other = __shfl_xor_sync(0xffffffffu, odd ? left : right, 1);
        if (there) *reinterpret_cast<uint2 *>(row + 8 * n) = odd ? uint2{other, right} : uint2{left, other};
    }
}

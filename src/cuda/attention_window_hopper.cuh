/*
 * attention_window_hopper.cuh: a square of 14 x 14 in shared memory, for the kernels of Hopper: tiles of cores (wgmma_cores.cuh).
 *
 * Keys and values lie 16 to a row of the square (attention_window_mma.cuh): 224 of them, so that eight columns of a
 * product of queries with keys are half of one row of the square, and the 16 rows that a warp has of a product of keys
 * with queries all of it. Queries lie one after the other, those of the square that are on the grid, zeros up to 208.
 */
#ifndef ATTENTION_WINDOW_HOPPER_CUH
#define ATTENTION_WINDOW_HOPPER_CUH

#include "cuda/attention_window_mma.cuh"
#include "cuda/wgmma_cores.cuh"

constexpr int WINDOW = WINDOW_FAST, KEYS = KEY_SLOTS, QUERIES = (WINDOW * WINDOW + 15) / 16 * 16, ROWS = 2 * WINDOW - 1;

#if HAS_WGMMA

/* Queries by number: division by the columns of a square, exact below 4096. */
struct numbering {
    int columns, inverse;
};
__device__ inline numbering numbering_of(const window_block &s) { return {s.columns, 65536 / s.columns + 1}; }
__device__ inline int row_of(const numbering &n, int r) { return r * n.inverse >> 16; }
__device__ inline int column_of(const numbering &n, int r) { return r - row_of(n, r) * n.columns; }
__device__ inline int token_of(const window_attention &a, const window_block &s, const numbering &n, int r)
{
    return token_at(a, s, row_of(n, r), column_of(n, r));
}

/* How a block's threads copy a tile of D columns: eight rows side by side fill a core, whose column of cores is the thread's own. A
 * round is 16 rows by 64 columns to 128 threads; columns from 64 on come in rounds of 16 rows to a warp. f(row, column, rows further). */
template <int D, int THREADS, typename F> __device__ inline void by_rounds(F f)
{
    static_assert(D == 64 || D == 80, "what is left of a row are two pieces");
    const int t = threadIdx.x % 128, lane = threadIdx.x % 32;
    f(threadIdx.x / 128 * 16 + t / 64 * 8 + t % 8, t / 8 % 8 * 8, THREADS / 8);
    if (D > 64) f(threadIdx.x / 32 * 16 + lane / 16 * 8 + lane % 8, 64 + lane / 8 % 2 * 8, THREADS / 2);
}

/* All rows of x that the square shows, [224][D]; which: pad's row. A thread stays in its column of the square. */
template <typename T, int D, int THREADS>
__device__ inline void copy_keys(char *to, const window_attention &a, const window_block &s, const head_rows &x, int which)
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

/* Both tables, one behind the other, [64][D]. */
template <typename T, int D, int THREADS> __device__ inline void lay_tables(char *to, const window_attention &a)
{
    by_rounds<D, THREADS>([&](int first, int d, int step) {
        for (int r = first; r < BOTH; r += step) {
            const int axis = r >= ROWS, row = axis ? r - ROWS : r;
            const bool is_there = row < ROWS;
            copy16(to + core_at<BOTH>(r, d), static_cast<const T *>(a.table[axis].data) + (is_there ? row : 0) * a.table[axis].row + d, is_there);
        }
    });
}

/* The square's queries of x from t0 on, [R][D]; zeros beyond the last. */
template <typename T, int D, int R, int THREADS>
__device__ inline void lay_queries(char *to, const window_attention &a, const window_block &s, const numbering &n, const head_rows &x, int t0)
{
    const int queries = s.rows * s.columns;
    by_rounds<D, THREADS>([&](int first, int d, int step) {
        for (int r = first; r < R; r += step) {
            const bool is_there = t0 + r < queries;
            copy16(to + core_at<R>(r, d), row_at<T>(x, s.b, token_of(a, s, n, is_there ? t0 + r : 0), s.h) + d, is_there);
        }
    });
}

/* Positions of 64 queries out of their products with both tables, in powers of two: rel [14 rows, 16 columns][DISTANCE], the first
 * query's in column 0; those of rows less what the thread's two queries are `less`. Queries from `end` on have no place in it. */
template <int DISTANCE>
__device__ inline void lay_positions(float *rel, const float (&g)[BOTH / 2], const float (&less)[2], const numbering &n, int t0, int end)
{
    const int lane = threadIdx.x % 32, own = threadIdx.x % GROUP / 32 * 16 + lane / 4, column = lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int r = own + 8 * half;
        if (t0 + r >= end) continue;
        /* Row j of the tables is position y + 13 - j of a query in row y, or x + 27 + 13 - j of one in column x, if there is such a one; one
         * beyond the last has the square's last row, so that all its positions are written. */
        const int down = min(row_of(n, t0 + r), WINDOW - 1) + WINDOW - 1 - column, right = column_of(n, t0 + r) + ROWS + WINDOW - 1 - column;
        float *to = rel + down * DISTANCE + r, *then = rel + (WINDOW + right) * DISTANCE + r;
#pragma unroll
        for (int i = 0; i < BOTH / 4; i++) {
            const int j = i / 2 * 8 + i % 2;
            const float x = g[i / 2 * 4 + 2 * half + i % 2];
            if (j + 6 < ROWS || (j < ROWS && j + column < ROWS)) {
                if ((unsigned)(down - j) < (unsigned)WINDOW) to[-j * DISTANCE] = fmaf(x, LOG2E, -less[half]);
            } else {
                if ((unsigned)(right - j) < (unsigned)WINDOW) then[-j * DISTANCE] = x * LOG2E;
            }
        }
    }
}

/* What the quad's threads have of a row of an accumulator, times `factor`: 32 bytes at a time, 8 to a thread, so that no piece of
 * memory is written by halves. All threads of the warp come here; those that are not `there` store nothing. */
template <typename T, int N> __device__ inline void store_row(T *row, const float (&d)[N], int half, float factor, bool there)
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

#endif
#endif

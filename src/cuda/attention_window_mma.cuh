/*
 * attention_window_mma.cuh: a square in shared memory, for the kernels by mma.sync; Hopper's have its numbers of places.
 *
 * Keys and values lie 16 to a row of the square, whatever its side is: a row of it is what one
 * product takes, and a key's column is its column in the fragment. Places beyond the square are
 * zeros, and their columns' positions -inf.
 *
 * Both tables lie one after the other, 2 (2 window - 1) rows filled up to 64: one product of 16 queries
 * with them has all positions, each of them in the place of a table's row,
 *
 *     g[j] = q . table_h[j]                 is position  y - j + window-1  of a query in row y
 *     g[2 window - 1 + j] = q . table_w[j]               x - j + window-1  of one in column x
 */
#ifndef ATTENTION_WINDOW_MMA_CUH
#define ATTENTION_WINDOW_MMA_CUH

#include "cuda/attention_window.cuh"

/* Places to a row; to a square, of whatever side; rows for both tables; floats from a query's positions to the next one's. */
constexpr int SIDE = 16, PLACES = WINDOW_FAST * SIDE, BOTH = 64, REL = 33;
static_assert(WINDOW_FAST <= SIDE && 2 * (2 * WINDOW_FAST - 1) <= BOTH, "a square and its tables fit");

#if HAS_MMA

template <typename T> __device__ inline float dot8(const T *x, const T *y)
{
    const pack<T, 8> a = *reinterpret_cast<const pack<T, 8> *>(x), b = *reinterpret_cast<const pack<T, 8> *>(y);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) sum += to_float(a.at[i]) * to_float(b.at[i]);
    return sum;
}

/* Rows y0 .. y0+rows of the square, as x shows them, [rows][16][D + 8]; which: pad's row. */
template <typename T, int D>
__device__ inline void copy_places(T *to, const window_attention &a, const square &s, const head_rows &x, int which, int y0, int rows)
{
    constexpr int PIECES = D / 8;
    const T *pad = static_cast<const T *>(a.pad) + which * a.pad_which + s.h * a.pad_head;
    for (int i = threadIdx.x; i < rows * SIDE * PIECES; i += blockDim.x) {
        const int r = i / PIECES, d = i % PIECES * 8, y = y0 + r / SIDE, c = r % SIDE;
        const bool is_there = y < s.rows && c < s.columns;
        const T *from = is_there || !a.pad ? row_at<T>(x, s.b, is_there ? token_at(a, s, y, c) : 0, s.h) : pad;
        copy16(to + r * (D + 8) + d, from + d, is_there || (a.pad && c < a.window));
    }
}

template <typename T, int D> __device__ inline void copy_tables(T *to, const window_attention &a)
{
    constexpr int PIECES = D / 8;
    const int rows = 2 * a.window - 1;
    for (int i = threadIdx.x; i < BOTH * PIECES; i += blockDim.x) {
        const int j = i / PIECES, d = i % PIECES * 8, axis = j >= rows, row = axis ? j - rows : j;
        const bool is_there = row < rows;
        copy16(to + j * (D + 8) + d, static_cast<const T *>(a.table[axis].data) + (is_there ? row : 0) * a.table[axis].row + d, is_there);
    }
}

/* Queries first .. first+count of x; zeros beyond the last. The threads are `step` from `thread` on. */
template <typename T, int D>
__device__ inline void copy_queries(T *to, const window_attention &a, const square &s, const head_rows &x, int first, int count, int thread, int step)
{
    constexpr int PIECES = D / 8;
    const int queries = s.rows * s.columns;
    for (int i = thread; i < count * PIECES; i += step) {
        const int r = i / PIECES, d = i % PIECES * 8;
        const bool is_there = first + r < queries;
        copy16(to + r * (D + 8) + d, row_at<T>(x, s.b, query_at(a, s, is_there ? first + r : 0), s.h) + d, is_there);
    }
}

/* A query's row and column; one beyond the last has the square's last row, so that all its positions are written. */
__device__ inline int query_y(const window_attention &a, const square &s, int r) { return min(r / s.columns, a.window - 1); }
__device__ inline int query_x(const square &s, int r) { return r % s.columns; }

/* Which position of a query at (y,x) has row j of both tables: c < 16 counts rows, from 16 on columns; -1: none.
 * Rows behind the tables' last have none: x + window-1 is less than the length of one. */
__device__ inline int position_of(const window_attention &a, int y, int x, int j)
{
    const int rows = 2 * a.window - 1;
    const bool by_row = j < rows;
    const int c = (by_row ? y : x + rows) + a.window - 1 - j;
    return (unsigned)c < (unsigned)a.window ? c + (by_row ? 0 : SIDE) : -1;
}

/* Positions of 16 queries from r0 on, in powers of two, to [16][REL]: by row, from SIDE on by column. */
template <typename T, int D>
__device__ inline void tile_positions(float *rel, const unsigned (&q)[D / 16][4], const T *tables, const window_attention &a, const square &s, int r0)
{
    constexpr int ROW = D + 8;
    const int lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
    const T *right = tables + (lane / 16 * 8 + lane % 8) * ROW + lane / 8 % 2 * 8;
    int y[2], x[2];
#pragma unroll
    for (int half = 0; half < 2; half++) y[half] = query_y(a, s, r0 + row + 8 * half), x[half] = query_x(s, r0 + row + 8 * half);
#pragma unroll
    for (int n = 0; n < BOTH / 8; n += 2) {
        float g[2][4] = {};
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            unsigned b[4];
            load4(b, right + n * 8 * ROW + 16 * i);
            mma(g[0], q[i], b[0], b[1], T());
            mma(g[1], q[i], b[2], b[3], T());
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int half = i / 2 % 2, c = position_of(a, y[half], x[half], 8 * (n + i / 4) + column + i % 2);
            if (c >= 0) rel[(row + 8 * half) * REL + c] = g[i / 4][i % 4] * LOG2E;
        }
    }
    __syncwarp();
}

#endif

#endif

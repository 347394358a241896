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

constexpr int WINDOW = WINDOW_FAST, KEYS = PLACES, QUERIES = (WINDOW * WINDOW + 15) / 16 * 16, ROWS = 2 * WINDOW - 1;

#if HAS_WGMMA

/* Queries by number: division by the columns of a square, exact below 4096. */
struct numbering {
    int columns, inverse;
};
__device__ inline numbering numbering_of(const square &s) { return {s.columns, 65536 / s.columns + 1}; }
__device__ inline int row_of(const numbering &n, int r) { return r * n.inverse >> 16; }
__device__ inline int column_of(const numbering &n, int r) { return r - row_of(n, r) * n.columns; }
__device__ inline int token_of(const window_attention &a, const square &s, const numbering &n, int r)
{
    return token_at(a, s, row_of(n, r), column_of(n, r));
}

/* Row and column of piece i of a tile with so many columns of cores: eight pieces to a core. */
struct piece {
    int r, d;
};
template <int PIECES> __device__ inline piece piece_of(int i) { return {i / (8 * PIECES) * 8 + i % 8, i / 8 % PIECES * 8}; }

/* All rows of x that the square shows, [224][D]; which: pad's row. */
template <typename T, int D> __device__ inline void lay_places(char *to, const window_attention &a, const square &s, const head_rows &x, int which)
{
    const T *pad = static_cast<const T *>(a.pad) + which * a.pad_which + s.h * a.pad_head;
    for (int i = threadIdx.x; i < KEYS * (D / 8); i += blockDim.x) {
        const piece p = piece_of<D / 8>(i);
        const int y = p.r / SIDE, c = p.r % SIDE;
        const bool is_there = y < s.rows && c < s.columns;
        const T *from = is_there || !a.pad ? row_at<T>(x, s.b, is_there ? token_at(a, s, y, c) : 0, s.h) : pad;
        copy16(to + core_at<KEYS>(p.r, p.d), from + p.d, is_there || (a.pad && c < WINDOW));
    }
}

/* Both tables, one behind the other, [64][D]. */
template <typename T, int D> __device__ inline void lay_tables(char *to, const window_attention &a)
{
    for (int i = threadIdx.x; i < BOTH * (D / 8); i += blockDim.x) {
        const piece p = piece_of<D / 8>(i);
        const int axis = p.r >= ROWS, row = axis ? p.r - ROWS : p.r;
        const bool is_there = row < ROWS;
        copy16(to + core_at<BOTH>(p.r, p.d), static_cast<const T *>(a.table[axis].data) + (is_there ? row : 0) * a.table[axis].row + p.d, is_there);
    }
}

/* The square's queries of x, [208][D]. */
template <typename T, int D>
__device__ inline void lay_queries(char *to, const window_attention &a, const square &s, const numbering &n, const head_rows &x)
{
    const int queries = s.rows * s.columns;
    for (int i = threadIdx.x; i < QUERIES * (D / 8); i += blockDim.x) {
        const piece p = piece_of<D / 8>(i);
        const bool is_there = p.r < queries;
        copy16(to + core_at<QUERIES>(p.r, p.d), row_at<T>(x, s.b, token_of(a, s, n, is_there ? p.r : 0), s.h) + p.d, is_there);
    }
}

/* Positions of 64 queries out of their products with both tables, in powers of two: rel [14 rows, 16 columns][distance], the first
 * query's in column 0. Queries from `end` on have no place in it. */
__device__ inline void lay_positions(float *rel, int distance, const float (&g)[BOTH / 2], const window_attention &a, const numbering &n,
                                     int t0, int end)
{
    const int lane = threadIdx.x % 32, own = threadIdx.x % GROUP / 32 * 16 + lane / 4, column = lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int r = own + 8 * half;
        if (t0 + r >= end) continue;
        /* one beyond the last has the square's last row, so that all its positions are written */
        const int y = min(row_of(n, t0 + r), WINDOW - 1), x = column_of(n, t0 + r);
#pragma unroll
        for (int i = 0; i < BOTH / 4; i++) {
            const int c = position_of(a, y, x, i / 2 * 8 + column + i % 2);
            if (c >= 0) rel[(c < SIDE ? c : WINDOW + c - SIDE) * distance + r] = g[i / 2 * 4 + 2 * half + i % 2] * LOG2E;
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

/*
 * grouped.cuh: which tile of which expert's product a block computes (grouped.h), for grouped.cu
 * and grouped_tiles.cu.
 *
 * Both ops are c = a b^T for each expert, where element (i,d) of a factor is at i wide + d deep: i
 * is a row or column of the result, and d is summed over.
 */
#ifndef CUDA_GROUPED_CUH
#define CUDA_GROUPED_CUH

#include "cuda/device/kernel.cuh"

extern "C" {
#include "cuda/products/grouped.h"
}

struct factor {
    int64_t wide, deep, expert; /* strides in elements; `expert`: between the experts' matrices */
};

struct grouped {
    const int32_t *offsets;
    int experts;
    int64_t rows, columns, depth; /* M, N, K of GROUPED_LINEAR; N, K and all rows of GROUPED_DW */
    factor a, b;
    int64_t c_row, c_expert;
    int down, across;             /* the tiles of the grid */
    bool add;                     /* c is added to */
};

/* A block's tile: where it begins in a, b and c, and what is left of the matrices from there on. */
struct tile {
    int64_t a, b, c;
    int rows, columns, depth;
};

/* Finds the `n`-th tile of ROWS rows, which are counted expert by expert: the expert, the tile's
 * first row and the end of the expert's. All lanes of a warp call it; false: there are fewer. */
template <int ROWS>
static __device__ inline bool find_rows(const int32_t *offsets, int experts, int n, int &expert, int &first, int &end)
{
    const int lane = threadIdx.x % WARP;
    for (int e0 = 0; e0 < experts; e0 += WARP) {
        const int e = min(e0 + lane, experts), here = offsets[e], next = offsets[min(e + 1, experts)];
        const int own = (next - here + ROWS - 1) / ROWS;
        int sum = own; /* of the tiles up to this expert's */
        for (int far = 1; far < WARP; far *= 2) {
            const int before = __shfl_up_sync(ALL_LANES, sum, far);
            if (lane >= far) sum += before;
        }
        const unsigned found = __ballot_sync(ALL_LANES, n < sum && n >= sum - own);
        if (found) {
            const int from = __ffs((int)found) - 1;
            expert = e0 + from;
            first = __shfl_sync(ALL_LANES, here + (n - (sum - own)) * ROWS, from);
            end = __shfl_sync(ALL_LANES, next, from);
            return true;
        }
        n -= __shfl_sync(ALL_LANES, sum, WARP - 1);
    }
    return false;
}

/* Finds the block's tile; false: it has none. DW: the depth is divided among the experts. Tiles are
 * visited in groups of some below each other, then those beside them, because they share a and b in
 * the cache. */
template <bool DW, int ROWS, int COLUMNS> static __device__ inline bool find_tile(tile &t, const grouped &g)
{
    constexpr int GROUP = 8;
    const int group = (int)blockIdx.x / (GROUP * g.across), in = (int)blockIdx.x % (GROUP * g.across),
              high = min(GROUP, g.down - group * GROUP);
    const int64_t j = (int64_t)(in / high) * COLUMNS;
    const int down = group * GROUP + in % high;
    int expert, first, end;
    t.columns = (int)(g.columns - j);
    if constexpr (DW) {
        const int each = g.down / g.experts;
        const int64_t i = (int64_t)(down % each) * ROWS;
        expert = down / each, first = g.offsets[expert], end = g.offsets[expert + 1];
        t.rows = (int)(g.rows - i);
        t.depth = end - first;
        t.a = first * g.a.deep + i * g.a.wide;
        t.b = first * g.b.deep + j * g.b.wide;
        t.c = expert * g.c_expert + i * g.c_row + j;
        return t.depth > 0 || !g.add;
    } else {
        if (!find_rows<ROWS>(g.offsets, g.experts, down, expert, first, end)) return false;
        t.rows = end - first;
        t.depth = (int)g.depth;
        t.a = first * g.a.wide;
        t.b = expert * g.b.expert + j * g.b.wide;
        t.c = first * g.c_row + j;
        return true;
    }
}

/* --- the host's side ------------------------------------------------------------------ */

static inline grouped grouped_linear(const struct launch *l, int down, int across)
{
    const struct operand *x = &l->in[0], *w = &l->in[1];
    const int64_t M = x->dim[0], E = w->dim[0], N = w->dim[1], K = w->dim[2];
    return {(const int32_t *)l->in[2].data,
            (int)E,
            M,
            N,
            K,
            {K, 1, 0},
            {w->stride[1], w->stride[2], w->stride[0]},
            N,
            0,
            (int)grouped_tiles(M, E, down),
            (int)((N + across - 1) / across),
            false};
}

static inline grouped grouped_dw(const struct launch *l, int down, int across)
{
    const int64_t E = l->out[0].dim[0], N = l->out[0].dim[1], K = l->out[0].dim[2];
    return {(const int32_t *)l->in[2].data,
            (int)E,
            N,
            K,
            l->in[0].dim[0],
            {1, N, 0},
            {1, K, 0},
            K,
            N * K,
            (int)(E * ((N + down - 1) / down)),
            (int)((K + across - 1) / across),
            has(l, 3)};
}

/* Returns the number of blocks; 0: it is more than a grid has. */
static inline unsigned grouped_grid(const grouped &g)
{
    const int64_t blocks = (int64_t)g.down * g.across;
    return blocks > INT32_MAX ? 0 : (unsigned)blocks;
}

#endif

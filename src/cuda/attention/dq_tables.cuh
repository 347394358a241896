/*
 * dq_tables.cuh: the contribution of a grid's position terms to dq, for
 * fast_dq.cu and grid64_dq.cu:
 *
 *     dq += g tables      g [queries][table rows], 64 table rows at a time
 *
 * where g has a query's drel at the table rows that its position terms are computed with. A product
 * on tensor cores, in the shared memory of the tiles; the row pitch there is D + 8 elements
 * (mma.cuh).
 */
#ifndef ATTENTION_DQ_TABLES_CUH
#define ATTENTION_DQ_TABLES_CUH

#include "cuda/attention/mma.cuh"

constexpr int TABLE_TILE = 64, TABLE_TILE_PITCH = TABLE_TILE + 8;

/* Bytes of shared memory needed in addition to drel. */
template <int D> constexpr int dq_tables_bytes = (HELD * TABLE_TILE_PITCH + TABLE_TILE * (D + 8)) * 2;

/* drel [HELD][stride]: the terms of the grid's rows, then those of its columns. */
template <typename T, int D>
__device__ inline void add_tables(float (&dq)[D / 8][4], const attention &a, const float *drel, int stride, T *scratch, int t0)
{
    constexpr int ROW = D + 8;
    const int J = table_rows(a), split = 2 * a.height - 1;
    T *g = scratch, *rows = g + HELD * TABLE_TILE_PITCH;
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
            g[r * TABLE_TILE_PITCH + i % TABLE_TILE] = from_float<T>(there ? drel[r * stride + (j < split ? c : a.height + c)] : 0.0f);
        }
        __syncthreads();
        product_add<T, D, TABLE_TILE, TABLE_TILE_PITCH>(dq, g, threadIdx.x / 32 * 16, rows);
    }
}

#endif

/*
 * attention_spread.cuh: the part of dq that comes back through a grid's positions, for attention_fast_dq.cu and
 * attention_level_dq.cu:
 *
 *     dq += g tables      g [queries][table rows], 64 table rows at a time
 *
 * where g has a query's drel in the places of the table rows that its positions were made with. A product on tensor
 * cores, in shared memory where the tiles were; rows there lie D + 8 elements apart (attention_mma.cuh).
 */
#ifndef ATTENTION_SPREAD_CUH
#define ATTENTION_SPREAD_CUH

#include "cuda/attention_mma.cuh"

constexpr int SPREAD = 64, SPREAD_ROW = SPREAD + 8;

/* Bytes of shared memory that it needs beside drel. */
template <int D> constexpr int spread_bytes = (HELD * SPREAD_ROW + SPREAD * (D + 8)) * 2;

/* drel [HELD][stride]: rows' numbers, then columns'. */
template <typename T, int D>
__device__ inline void add_tables(float (&dq)[D / 8][4], const attention &a, const float *drel, int stride, T *room, int t0)
{
    constexpr int ROW = D + 8;
    const int J = table_rows(a), split = 2 * a.height - 1;
    T *g = room, *rows = g + HELD * SPREAD_ROW;
    for (int j0 = 0; j0 < J; j0 += SPREAD) {
        __syncthreads();
        for (int i = threadIdx.x; i < SPREAD * D; i += FAST_BLOCK) {
            const int j = i / D, d = i % D;
            rows[j * ROW + d] = from_float<T>(j0 + j < J ? a.tables[(int64_t)(j0 + j) * a.D + d] : 0.0f);
        }
        for (int i = threadIdx.x; i < HELD * SPREAD; i += FAST_BLOCK) {
            const int r = i / SPREAD, j = j0 + i % SPREAD, t = t0 + r;
            const int side = j < split ? a.height : a.width;
            const int c = j < split ? t / a.width - j + side - 1 : t % a.width - (j - split) + side - 1;
            const bool there = t < a.T && j < J && c >= 0 && c < side;
            g[r * SPREAD_ROW + i % SPREAD] = from_float<T>(there ? drel[r * stride + (j < split ? c : a.height + c)] : 0.0f);
        }
        __syncthreads();
        product_add<T, D, SPREAD, SPREAD_ROW>(dq, g, threadIdx.x / 32 * 16, rows);
    }
}

#endif

/*
 * streams.cuh: grids for streaming kernels, which read and write each element once.
 *
 * A load takes most of a microsecond, and in that time the memory of a large GPU moves 4 MB. So 32
 * KB per SM have to be in flight at any time: a thread reads several packs before it uses the
 * first, and the number of threads follows from that.
 */
#ifndef STREAMS_CUH
#define STREAMS_CUH

#include "cuda/device/device.cuh"

/* The packs that a thread of a streaming kernel reads before it writes any: thread t of block b has
 * pack b * BLOCK * TURN + t and every BLOCK-th one after it. */
constexpr int TURN = 4;

/* Blocks for `packs` packs, TURN per thread, without a cap; a grid has at most 2^31 - 1 blocks. */
inline unsigned grid_of_packs(int64_t packs)
{
    const int64_t blocks = (packs + BLOCK * TURN - 1) / (BLOCK * TURN);
    return (unsigned)(blocks < 1 ? 1 : blocks);
}
inline bool is_one_grid(int64_t packs) { return packs / (BLOCK * TURN) < INT32_MAX; }

#endif

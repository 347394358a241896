/*
 * streams.cuh: kernels that read and write each element once: how many packs are on their way.
 *
 * A load takes most of a microsecond, in which a large GPU's memory moves 4 MB: 32 KB for each of
 * its processors have to be on their way at any time. So a thread reads several packs before it
 * uses the first, and there are as many threads as that leaves packs.
 */
#ifndef STREAMS_CUH
#define STREAMS_CUH

#include "cuda/device.cuh"

/* Packs that a thread of a streaming kernel reads before it writes any: thread t of block b has
 * b * BLOCK * TURN + t and every BLOCK-th one behind it. */
constexpr int TURN = 4;

/* Blocks for so many packs, TURN to a thread, without a cap; a grid has 2^31 - 1 at most. */
inline unsigned grid_of_packs(int64_t packs)
{
    const int64_t blocks = (packs + BLOCK * TURN - 1) / (BLOCK * TURN);
    return (unsigned)(blocks < 1 ? 1 : blocks);
}
inline bool is_one_grid(int64_t packs) { return packs / (BLOCK * TURN) < INT32_MAX; }

#endif

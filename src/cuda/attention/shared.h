/*
 * shared.h: the shared memory per block of the tensor-core kernels that add a term to the scores
 * (forward.cu, dkv.cu, dq.cu), in bytes. The kernels use it to launch, the plan to see whether
 * a GPU of compute capability 7.5 has as much.
 */
#ifndef ATTENTION_SHARED_H
#define ATTENTION_SHARED_H

#include <stddef.h>

#include "cuda/attention/work.h"

#ifdef __cplusplus
#define SHARED_BYTES static constexpr size_t __host__ __device__
#define SHARED_COUNT static constexpr int __host__ __device__
#else
#define SHARED_BYTES static inline size_t
#define SHARED_COUNT static inline int
#endif

/* Rows that a block holds; the tiles by which it traverses the other side. */
enum {
    FAST_WARPS = 4,
    FAST_HELD = 16 * FAST_WARPS,
    FAST_KEYS = 64,
    FAST_DKV_QUERIES = 32,
    FAST_DKV_STATS = 3 * FAST_DKV_QUERIES
};

/* The pitch in floats of a tile of position terms: accesses by pairs cause few bank conflicts. */
SHARED_COUNT position_stride(int numbers) { return (numbers + 11) / 16 * 16 + 4; }

/* Where the columns of a grid begin behind its rows: in the forward, and in the dk/dv kernel, which
 * holds the rows of the grid that its keys are in. */
SHARED_COUNT forward_columns(int height) { return (height + 1) / 2 * 2; }
SHARED_COUNT dkv_key_rows(int height, int width)
{
    return (FAST_HELD - 1) / width + 2 < height ? (FAST_HELD - 1) / width + 2 : height;
}
SHARED_COUNT dkv_columns(int height, int width) { return (dkv_key_rows(height, width) + 3) / 4 * 4; }

SHARED_COUNT dq_keys(int D) { return D <= 80 ? 64 : 32; }
SHARED_COUNT dq_slots(enum score_terms added) { return added == ADDS_TABLES ? 1 : 2; }
SHARED_BYTES dq_tile_bytes(int D, enum score_terms added)
{
    return (size_t)(2 * FAST_HELD + 2 * dq_slots(added) * dq_keys(D)) * D * 2;
}

/* `stride`: of the positions; `biases`: the number of positions, for ADDS_BIAS. */
SHARED_BYTES fast_bytes(int D, enum score_terms added, int stride, int biases)
{
    return (size_t)(FAST_HELD + 2 * FAST_KEYS) * D * 2 + (size_t)(FAST_KEYS + (added == ADDS_TABLES ? FAST_HELD * stride
                                                                               : added == ADDS_BIAS ? biases
                                                                                                    : 0)) *
                                                             sizeof(float);
}
SHARED_BYTES fast_dq_bytes(int D, enum score_terms added, int stride, int biases)
{
    return dq_tile_bytes(D, added) +
           (size_t)(dq_slots(added) * dq_keys(D) +
                    (added == ADDS_MASK
                         ? 0
                         : FAST_HELD * (dq_keys(D) + 4) +
                               (added == ADDS_TABLES ? FAST_HELD * stride : (FAST_WARPS + 1) * biases))) *
               sizeof(float);
}
SHARED_BYTES fast_dkv_bytes(int D, enum score_terms added, int stride, int biases)
{
    return (size_t)4 * FAST_DKV_QUERIES * D * 2 +
           (size_t)(2 * FAST_DKV_STATS + (added == ADDS_TABLES ? 2 * FAST_DKV_QUERIES * stride
                                          : added == ADDS_BIAS ? biases
                                                               : 0)) *
               sizeof(float);
}

#endif

/*
 * shard.h: how a weight is divided among ranks.
 *
 *     weight   [ cell | cell | cell | cell | cel ]          n elements, in cells of 256, of 16384 from 2^20 elements on
 *     shards   [     rank 0  |     rank 1  |   rank 2 ...]  whole cells, c elements on every rank
 *
 * All shards of a weight have the same size; beyond the end of the weight they are zeros, and stay
 * so. A cell is a whole number of blocks of 8-bit state and of aligned bytes in every dtype, so
 * that a shard is updated as the same elements of the whole are, to the bit. A storage of bytes
 * without elements (4-bit weights) is divided in the same way, by bytes.
 *
 * A storage with `shard` set holds this rank's part. The tensor of the weight, or of its state,
 * which then no node reads, has the shape of the whole: loading and saving count the whole's
 * elements (folder/transfer.c).
 */
#pragma once

#include "graph/graph.h"
#include "graph/sizes.h"

/* Returns the elements of a shard of n elements on each of `ranks`. */
static inline int64_t shard_part(int64_t n, int ranks)
{
    const int64_t cell = weight_cell(n);
    return ceil_div(n, ranks * cell) * cell;
}

/* Bytes of a shard of a storage that is divided by bytes. */
enum { SHARD_ALIGN = 256 };
static inline uint64_t shard_bytes(uint64_t bytes, int ranks)
{
    return align_up((bytes + (uint64_t)ranks - 1) / (uint64_t)ranks, SHARD_ALIGN);
}

/*
 * expert_blocks.h: how the choices of EXPERT_ROWS are split into blocks, for both halves of the
 * family. Plain C.
 *
 * A block has `each` choices, one after the other, and each of its warps an equal part of them. It
 * counts those of each expert: [blocks, experts] in the workspace.
 */
#pragma once

#include <stdint.h>

enum {
    EXPERTS_MOST = 1024, /* a block's counts, by warp, are in shared memory */
    EXPERT_THREADS = 256,
    EXPERT_LEAST = 8 * EXPERT_THREADS, /* choices of a block */
    EXPERT_BLOCKS = 256                /* at most: each block adds the counts of all */
};

static inline int64_t expert_each(int64_t choices)
{
    const int64_t each = (choices + EXPERT_BLOCKS - 1) / EXPERT_BLOCKS;
    if (each < EXPERT_LEAST) return EXPERT_LEAST;
    return (each + EXPERT_THREADS - 1) / EXPERT_THREADS * EXPERT_THREADS;
}
static inline int64_t expert_blocks(int64_t choices)
{
    const int64_t each = expert_each(choices);
    return (choices + each - 1) / each;
}

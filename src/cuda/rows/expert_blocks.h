/*
 * expert_blocks.h: how the choices of EXPERT_ROWS and the rows of EXPERT_LOAD are split into
 * blocks, for both halves of the family. Plain C.
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

enum {
    LOAD_WARPS = 4,      /* of a block: each has sums of all experts in shared memory */
    LOAD_LEAST = 128,    /* rows of a part of a group */
    LOAD_PARTS = 128,    /* of a group, at most */
    GROUPS_MOST = 65535  /* a dimension of a CUDA grid */
};

static inline int64_t load_each(int64_t rows)
{
    const int64_t each = (rows + LOAD_PARTS - 1) / LOAD_PARTS;
    if (each < LOAD_LEAST) return LOAD_LEAST;
    return each;
}
static inline int64_t load_parts(int64_t rows) { return (rows + load_each(rows) - 1) / load_each(rows); }
/* Returns the bytes of the sums of all parts. */
static inline uint64_t load_work(int64_t all_rows, int64_t rows, int64_t experts)
{
    return (uint64_t)(all_rows / rows * load_parts(rows) * 2 * experts) * sizeof(float);
}

/*
 * norm_blocks.h: the number of partial sums of a sum over rows, and the forms of the kernels. They
 * are functions of the shape; the planning half (workspaces, forms), the launchers (grids)
 * and so the order of every sum follow them.
 */
#pragma once

#include <stdint.h>

/* Threads per block for rows of `packs` 16-byte packs (norm_packs.cu). Longer rows, and rows that
 * are not whole packs, use norms.cu. */
enum { NORM_PACKS = 1024 };
static inline int norm_threads(int64_t packs) { return packs <= 32 ? 256 : (int)((packs + 31) / 32 * 32); }
static inline int norm_in_packs(int64_t C, int size) { return C * size % 16 == 0 && C * size / 16 <= NORM_PACKS; }

/* A group of up to 32 lanes has a row, or a block of up to NORM_MOST threads with all the registers
 * that they need, or one of more threads with half of them and half the rows at once. */
enum { NORM_MOST = 512 };
enum norm_packs_form { NORM_LANES, NORM_BLOCK, NORM_WIDE_BLOCK };
static inline enum norm_packs_form norm_packs_form(int64_t packs)
{
    return packs <= 32 ? NORM_LANES : norm_threads(packs) <= NORM_MOST ? NORM_BLOCK : NORM_WIDE_BLOCK;
}

/* Returns the number of threads per row of `packs` packs. */
static inline int group_size(int64_t packs, int most)
{
    int size = 4;
    while (size < packs && size < most) size *= 2;
    return size;
}

/* The gradients of norms.cu: the `sums` column sums of a block's groups of threads are in shared
 * memory, or, where they do not fit, in the workspace; then a block is one group. */
enum { NORM_BWD_BLOCK = 512, NORM_SHARED_MAX = 47 * 1024 };
enum norm_bwd_form { NORM_BWD_SHARED, NORM_BWD_WORKSPACE };
static inline int64_t norm_bwd_shared(int64_t C, int V, int sums)
{
    return NORM_BWD_BLOCK / group_size(C / V, NORM_BWD_BLOCK) * sums * C * (int64_t)sizeof(float);
}
static inline enum norm_bwd_form norm_bwd_form(int64_t C, int V, int sums)
{
    return norm_bwd_shared(C, V, sums) <= NORM_SHARED_MAX ? NORM_BWD_SHARED : NORM_BWD_WORKSPACE;
}

/* Returns the number of blocks of a weight gradient, for the 132 SMs of a large GPU: as many as
 * give 512 threads per SM, at least one block each; for norms.cu two blocks of 512 threads per
 * SM. */
static inline int64_t norm_blocks(int64_t rows, int64_t C, int size)
{
    const int64_t threads = norm_in_packs(C, size) ? norm_threads(C * size / 16) : 256,
                  blocks = 132 * (threads < 512 ? 512 / threads : 1);
    return rows < 1 ? 1 : rows < blocks ? rows : blocks;
}
/* Returns the number of floats of `sums` sums of C columns per block. */
static inline int64_t norm_partial(int64_t rows, int64_t C, int size, int sums)
{
    return norm_blocks(rows, C, size) * C * sums;
}

enum { ROPE_WIDEST = 12288 }; /* D: its sines and cosines are in shared memory */

/* Returns the lanes per head of RMSNORM_ROPE (norm_rope.cu), which have a pack of each half of it;
 * 0: the halves are no packs whose number is a power of two, or they are too many. */
static inline int head_lanes(int64_t D, int size)
{
    const int64_t lanes = D * size / 32;
    return D * size % 32 == 0 && lanes && lanes <= 32 && !(lanes & (lanes - 1)) ? (int)lanes : 0;
}
/* Returns the number of tokens that a block has at a time: all its threads have work, and the
 * cosines and sines are at most 32 KiB. */
enum { HEAD_THREADS = 256, HEAD_ROWS = 4 };
static inline int64_t head_tokens(int64_t H, int64_t D, int lanes)
{
    int64_t each = HEAD_THREADS / lanes * HEAD_ROWS / H;
    if (each > 8192 / D) each = 8192 / D;
    return each < 1 ? 1 : each;
}
/* Returns the number of blocks of the gradient, for the 132 SMs of a large GPU. */
static inline int64_t head_blocks(int64_t tokens, int64_t each)
{
    const int64_t blocks = (tokens + each - 1) / each;
    return blocks < 1 ? 1 : blocks < 264 ? blocks : 264;
}

/* Returns the number of chunks per group of n rows: at least 64 rows each, and few if channels or
 * groups are many. */
static inline int64_t batch_chunks(int64_t G, int64_t n, int64_t C)
{
    int64_t most = 65536 / (C < 64 ? 64 : C) / G, chunks = (n + 63) / 64;
    if (most < 1) most = 1;
    return chunks < 1 ? 1 : chunks < most ? chunks : most;
}
static inline int64_t batch_each(int64_t G, int64_t n, int64_t C)
{
    const int64_t chunks = batch_chunks(G, n, C);
    return (n + chunks - 1) / chunks;
}
static inline int64_t batch_partial(int64_t G, int64_t n, int64_t C) { return G * batch_chunks(G, n, C) * 2 * C; }

/*
 * conv_tiles.h: the shapes of conv_tiles.cu and its partial sums, for the plan and the launchers.
 */
#ifndef CONV_TILES_H
#define CONV_TILES_H

#include <stdbool.h>
#include <stdint.h>

/* The fine map has P tiles of two runs of K / 2 elements each; a row of the map has W2 tiles. */
struct conv_tiles {
    int64_t P;
    int O, K, W2;
};

/* The two shapes that have kernels, and their shared memory per block in bytes. */
enum { CONV_TILES_SMALL = 104 * 1024, CONV_TILES_LARGE = 198 * 1024, CONV_TILES_GRID = 264 };
enum conv_tiles_form { CONV_TILES_64_128, CONV_TILES_256_256, CONV_TILES_NONE };
static inline enum conv_tiles_form conv_tiles_form(const struct conv_tiles *n)
{
    return n->O == 64 && n->K == 128    ? CONV_TILES_64_128
           : n->O == 256 && n->K == 256 ? CONV_TILES_256_256
                                        : CONV_TILES_NONE;
}

/* The number of partial sums of dw, of O K floats each, that fit `bytes` bytes; 0: none fits. */
static inline int64_t conv_tiles_parts(const struct conv_tiles *n, uint64_t bytes)
{
    const int64_t room = (int64_t)(bytes / ((uint64_t)n->O * (uint64_t)n->K * sizeof(float))), steps = (n->P + 63) / 64;
    const int64_t parts = CONV_TILES_GRID / (conv_tiles_form(n) == CONV_TILES_64_128 ? 1 : 4),
                  most = room < steps ? room : steps;
    return most < parts ? most : parts;
}

#endif

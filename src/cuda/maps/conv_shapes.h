/*
 * conv_shapes.h: the shapes of the kernels of conv.cu and conv_tiles.cu, for the plan and the
 * launchers. Functions of shapes only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* --- the matrix of patches (im2col) that conv.cu copies, and its forms ------------------------ */

/* A sweep over a map [B,H,W,C] (graph/sweep.h): where the patch of result (i,j) begins. */
struct conv_patches {
    int64_t H, W, C, ny, nx, step, y0, x0, ky, kx;
};

/* A patch is copied tap by tap, or a line of it, kx pixels, at a time. */
enum patch_form { PATCH_TAPS, PATCH_LINES };

/* Reports whether patches are inside the map and their lines are whole 16-byte words: then a line
 * is one tap of many channels. The three channels of an image are no such word. */
static inline bool patch_lines_fit(const struct conv_patches *g, int size)
{
    return g->x0 == 0 && g->y0 == 0 && (g->nx - 1) * g->step + g->kx <= g->W && (g->ny - 1) * g->step + g->ky <= g->H &&
           g->W * g->C * size % 16 == 0 && g->step * g->C * size % 16 == 0 && g->kx * g->C * size % 16 == 0;
}

/* --- 2 x 2 tiles (conv_tiles.cu) and their partial sums --------------------------------------- */

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

/* Returns the number of partial sums of dw, of O K floats each, that fit `bytes` bytes; 0: none
 * fits. */
static inline int64_t conv_tiles_parts(const struct conv_tiles *n, uint64_t bytes)
{
    const int64_t room = (int64_t)(bytes / ((uint64_t)n->O * (uint64_t)n->K * sizeof(float))), steps = (n->P + 63) / 64;
    const int64_t parts = CONV_TILES_GRID / (conv_tiles_form(n) == CONV_TILES_64_128 ? 1 : 4),
                  most = room < steps ? room : steps;
    return most < parts ? most : parts;
}

/*
 * patches.h: the matrix of patches (im2col) that conv.cu copies, and its forms, for the plan and
 * the launchers. A function of shapes alone.
 */
#ifndef PATCHES_H
#define PATCHES_H

#include <stdbool.h>
#include <stdint.h>

/* A sweep over a map [B,H,W,C] (graph/sweep.h): where the patch of result (i,j) begins. */
struct patch_grid {
    int64_t H, W, C, ny, nx, step, y0, x0, ky, kx;
};

/* A patch is copied tap by tap, or a line of it, kx pixels, at a time. */
enum patch_form { PATCH_TAPS, PATCH_LINES };

/* Whether patches are inside the map and their lines are whole 16-byte words: then a line is one
 * tap of many channels. The three channels of an image alone are no such word. */
static inline bool patch_lines_fit(const struct patch_grid *g, int size)
{
    return g->x0 == 0 && g->y0 == 0 && (g->nx - 1) * g->step + g->kx <= g->W && (g->ny - 1) * g->step + g->ky <= g->H &&
           g->W * g->C * size % 16 == 0 && g->step * g->C * size % 16 == 0 && g->kx * g->C * size % 16 == 0;
}

#endif

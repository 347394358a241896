/*
 * plan_conv.h: the algorithm of a convolution on the GPU and the layout of its workspace, shared by
 * the two halves of the family (plan_conv.c, conv.c).
 *
 *     plain      1x1, stride 1, no padding: the maps are matrices; nothing is copied
 *     patches    CONV, CONV_DW: the matrix of patches [results, taps C] (im2col) is written, so
 *                many rows at a time, and multiplied; the library reads it from the cache
 *     tiles      CONV_DX of patches that neither overlap nor leave gaps: one matmul whose rows
 *                are whole patches, which are then copied to their pixels; with a small stride,
 *                written there directly, line by line (conv.c, lines)
 *     phases     CONV_DX otherwise: stride x stride sweeps (graph/sweep.h), each a matmul of
 *                patches of dy; with a stride above 1, results are copied to their pixels
 *     depthwise  each channel has its own filter: direct sums
 *
 * 2 x 2 tiles in 16 bits have kernels without patches (conv_tiles.cu), if the GPU has the shared
 * memory for them; the workspace is the same then, and mostly unused. Each algorithm is a row of
 * conv.def.
 *
 *     work: [the library's | weights by tap | patches | stage], each at a multiple of 256
 */
#pragma once

#include "graph/sweep.h"
#include "cuda/maps/conv_shapes.h"
#include "graph/ops.h"

enum conv_algo { CONV_PLAIN, CONV_PATCHES, CONV_TILES, CONV_PHASES, CONV_DEPTHWISE };

struct conv_layout {
    struct conv n;
    enum conv_algo algo;
    int64_t rows;                      /* patch rows at a time; depthwise CONV_DW: pixels per partial sum */
    uint64_t library;                  /* bytes of the library's workspace, which comes first */
    uint64_t weights, patches, stage;  /* offsets in bytes */
    uint64_t bytes;                    /* in total */
};

/* Returns the layout of CONV, CONV_DX or CONV_DW, from the dimensions of x, y and w. */
struct conv_layout conv_layout(enum op op, const union attr *attr, const int64_t *x, const int64_t *y, const int64_t *w,
                               enum dtype type, uint64_t library);

/* Returns how many of `results` patch rows, of `bytes` each, are processed at a time. */
int64_t conv_rows_at_once(int64_t results, int64_t bytes);

/* Reports whether patches cover x without gaps or overlap. */
static inline bool conv_is_tiling(const struct conv *n)
{
    return n->kh == n->stride && n->kw == n->stride && n->pad == 0 && n->H == n->H2 * n->stride &&
           n->W == n->W2 * n->stride;
}

/* Tiles line by line: the stride up to which it pays off, pixels of a line, rows of tiles. */
enum { CONV_LINES_SIDE = 2, CONV_LINES_PIXELS = 32, CONV_LINES_BATCH = 65535 };
static inline bool conv_is_lines(const struct conv *n)
{
    return n->stride <= CONV_LINES_SIDE && n->W2 >= CONV_LINES_PIXELS && n->B * n->H2 <= CONV_LINES_BATCH;
}

static inline int64_t conv_taps(const struct conv *n) { return n->kh * n->kw; }
static inline int64_t conv_results(const struct conv *n) { return n->B * n->H2 * n->W2; }
static inline struct conv_tiles conv_tiles_of(const struct conv *n)
{
    return (struct conv_tiles){.P = conv_results(n), .O = (int)n->O, .K = (int)(conv_taps(n) * n->C), .W2 = (int)n->W2};
}
static inline struct conv_patches patch_grid_of(const struct sweep *s, int64_t C)
{
    return (struct conv_patches){.H = s->H, .W = s->W, .C = C, .ny = s->ny, .nx = s->nx, .step = s->step, .y0 = s->y0,
                               .x0 = s->x0, .ky = s->ky, .kx = s->kx};
}
static inline int64_t sweep_results(const struct sweep *s) { return s->B * s->ny * s->nx; }

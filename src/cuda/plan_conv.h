/*
 * plan_conv.h: how a convolution is made on the GPU, and what lies where in its workspace:
 * what the two halves of the family (plan_conv.c, conv.c) agree upon.
 *
 *     plain      1x1, stride 1, no border: the maps are matrices; nothing is copied
 *     patches    CONV, CONV_DW: the matrix of patches [results, taps C] is laid out, so many
 *                rows at a time, and multiplied; the library reads it out of the cache
 *     tiles      CONV_DX of patches that neither overlap nor leave gaps: one product whose rows
 *                are whole patches, then dealt out to their pixels; or straight to them, where
 *                the library takes it (conv.c, lines)
 *     phases     CONV_DX otherwise: stride x stride sweeps (cpu/conv.h), each a product of patches
 *                of dy; with a stride, results are dealt out to their pixels
 *     depthwise  a kernel of its own for every channel: direct sums
 *
 * Tiles of 2 x 2 in 16 bits have kernels without patches (conv_tiles.cu), where the GPU has room for them; the
 * workspace is the same then, and mostly idle.
 *
 *     work: [the library's | weights by tap | patches | stage], each at a multiple of 256
 */
#ifndef PLAN_CONV_H
#define PLAN_CONV_H

#include "cpu/conv.h"

enum conv_algo { CONV_PLAIN, CONV_PATCHES, CONV_TILES, CONV_PHASES, CONV_DEPTHWISE };

struct conv_layout {
    struct conv n;
    enum conv_algo algo;
    int64_t rows;                      /* of patches at a time; depthwise CONV_DW: pixels in a partial sum */
    uint64_t library;                  /* bytes; it lies first */
    uint64_t weights, patches, stage;  /* where they begin */
    uint64_t bytes;                    /* of it all */
};

/* Of CONV, CONV_DX or CONV_DW, from the dimensions of its x, y and w sides. */
struct conv_layout conv_layout(enum op op, const union attr *attr, const int64_t *x, const int64_t *y, const int64_t *w,
                               enum dtype type, uint64_t library);

/* Patches cover x without gaps or overlap. */
static inline bool conv_is_tiling(const struct conv *n)
{
    return n->kh == n->stride && n->kw == n->stride && n->pad == 0 && n->H == n->H2 * n->stride && n->W == n->W2 * n->stride;
}

static inline int64_t conv_taps(const struct conv *n) { return n->kh * n->kw; }
static inline int64_t conv_results(const struct conv *n) { return n->B * n->H2 * n->W2; }
static inline int64_t sweep_results(const struct sweep *s) { return s->B * s->ny * s->nx; }

#endif

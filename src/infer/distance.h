/*
 * distance.h: the exact Euclidean distance transform of an image or a volume, in linear time.
 *
 *     features     . . X . .        distance    2 1 0 1 2
 *                  . . . . .                    .. 1 ..        sqrt of the sum of squares, in mm
 *
 * A box of w x h x d cells lies row by row, x fastest. Cells have a spacing along each axis, in mm,
 * so that slices may be thicker than pixels.
 */
#ifndef DISTANCE_H
#define DISTANCE_H

#include "base/base.h"

struct cell_box {
    uint32_t w, h, d;  /* d 1: an image */
    double spacing[3]; /* along x, y and z; above 0 */
};
static inline size_t box_cells(const struct cell_box *b) { return (size_t)b->w * b->h * b->d; }

/* Bytes of scratch: a line of the longest side. */
size_t distance_scratch(const struct cell_box *b);
/* On entry to[i] is 0 at features and INFINITY elsewhere; then it is the squared distance to the
 * nearest feature, INFINITY without any. */
void distance_squared(const struct cell_box *b, double *to, void *scratch);

#endif

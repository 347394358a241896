/*
 * surface.h: distances between the surfaces of a predicted mask and its target: HD95 and NSD.
 *
 *     HD95   the 95th percentile of the distances from each surface to the other, the larger of
 *            both directions, in mm (robust Hausdorff distance)
 *     NSD    normalised surface Dice: the share of both surfaces that lies within a tolerance,
 *            in mm, of the other
 *
 * A surface cell is a cell of the mask with a neighbour along an axis that is outside of it; what
 * is beyond the image's border is outside. Both are defined as in MONAI: a percentile interpolates
 * linearly; if one mask is empty, HD95 is NaN and NSD 0; if both are, both are NaN.
 *
 * Memory: 9 bytes for each cell of the box around both masks, 8 for each cell of the larger
 * surface, and a line.
 */
#pragma once

#include "base/base.h"

struct cell_box {
    uint32_t w, h, d;  /* d 1: an image */
    double spacing[3]; /* along x, y and z; above 0 */
};
static inline size_t box_cells(const struct cell_box *b) { return (size_t)b->w * b->h * b->d; }

/* Returns the bytes of scratch: a line of the longest side. */
size_t distance_scratch(const struct cell_box *b);
/* Computes squared distances. On entry to[i] is 0 at features and INFINITY elsewhere; then it is
 * the squared distance to the nearest feature, INFINITY without any. */
void distance_squared(const struct cell_box *b, double *to, void *scratch);

struct surface_scores {
    double hd95, nsd;
};
/* Compares masks of box_cells bytes; nonzero is inside. Uses the heap. */
struct surface_scores surface_compare(const struct cell_box *b, const uint8_t *predicted, const uint8_t *target,
                                      double tolerance);

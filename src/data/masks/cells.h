/*
 * cells.h: masks that are stored already sampled, SHAPE_BITS of mask.h: bits of a packed store,
 * or bytes of a memory map.
 */
#ifndef CELLS_H
#define CELLS_H

#include "data/masks/grid.h"
#include "data/masks/mask.h"

/* Resamples the mask to the bits of another grid. If the grid is the one that the cells were
 * sampled with, they are copied; otherwise a cell of the grid takes the stored cell under its
 * source pixel. Bits outside of the image are 0, even if stored cells there are not. */
void cells_raster(const struct shape *s, const struct grid *g, void *bits);
/* Computes area, box and runs down the columns, in cells. */
void cells_measure(const struct shape *s, struct rle_facts *f);

#endif

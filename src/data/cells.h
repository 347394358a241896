/*
 * cells.h: masks that were sampled before, SHAPE_BITS of mask.h: bits of a packed store, bytes of
 * a memory map.
 */
#ifndef CELLS_H
#define CELLS_H

#include "data/grid.h"
#include "data/mask.h"

/* The mask as bits of another grid. Where the grid is the one that the cells were sampled by,
 * they are copied; elsewhere a cell of the grid takes the stored cell under its source pixel. Bits
 * outside of the image are 0, whatever is stored there. */
void cells_raster(const struct shape *s, const struct grid *g, void *bits);
/* Area, box and runs down the columns, in cells. */
void cells_measure(const struct shape *s, struct rle_facts *f);

#endif

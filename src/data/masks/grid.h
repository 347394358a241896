/*
 * grid.h: rasterises a mask of the image's size directly to the bits that the loss reads.
 *
 *     source image          canvas (the model's input)         grid (the loss's targets)
 *     +--------------+        +----------------+                 +------+
 *     |  +-------+   |  crop, |resized|        |  gh x gw cells  |##|...|
 *     |  | crop  |   |  ====> |  crop | padding|  ============>  |##|...|
 *     |  +-------+   |  flip  +-------+        |  cover the      |......|
 *     +--------------+  scale |________________|  canvas         +------+
 *
 * A cell takes the source pixel under its centre (nearest sampling); cells whose centre is in
 * the padding are 0. Crop, scale and flip only change two lookup tables: the source column of each
 * grid column, and the source row of each grid row. The result equals full decoding and sampling,
 * bit for bit, at a cost that depends on the number of runs and not of pixels.
 *
 * Bits are stored in rows: cell (x, y) is bit x % 8 of byte y * stride + x / 8, least significant
 * first, stride a multiple of 8.
 */
#pragma once

#include "data/masks/rle.h"
#include "data/masks/mask.h"

struct grid_geometry {
    uint32_t h, w;                         /* the source image */
    uint32_t crop_x, crop_y, crop_w, crop_h; /* the window of it that is used; crop_w 0: all */
    uint32_t resized_w, resized_h;         /* the window's size on the canvas; its corner is at 0, 0 */
    uint32_t canvas_w, canvas_h;
    uint32_t gw, gh;                       /* cells over the canvas */
    bool flip;                             /* mirror the window horizontally */
};

struct grid {
    struct grid_geometry at;
    uint32_t stride;           /* bytes per row */
    uint32_t valid_w, valid_h; /* cells with a source pixel: columns 0..valid_w, rows 0..valid_h */
    uint32_t *column;          /* [valid_w]: source column */
    uint32_t *row;             /* [valid_h]: source row, ascending */
    struct grid_span *columns; /* [w + 1]: which cells a source column fills */
    uint16_t *above;           /* [h + 1]: rows of the grid whose source row is above y */
    uint32_t max_side, max_cells;
};

enum { GRID_MAX_CELLS = 32768 };

/* Returns the bytes of a grid, which is created once, for images and grids up to the given sides,
 * in memory of grid_bytes, and set for each sample. */
size_t grid_bytes(uint32_t max_side, uint32_t max_cells);
void grid_init(struct grid *g, void *memory, uint32_t max_side, uint32_t max_cells);
/* Returns PL_USAGE when the geometry is invalid or exceeds the limits of grid_init. */
int grid_set(struct grid *g, const struct grid_geometry *at, struct error *e);

static inline size_t grid_stride(uint32_t gw) { return align_up(gw, 64) / 8; }
static inline size_t grid_mask_bytes(uint32_t gw, uint32_t gh) { return grid_stride(gw) * gh; }

/* Rasterises the mask into gh * stride bytes, 8-byte aligned. RLE_BAD_SIZE when the mask's size is
 * not the source's. After a fault the bits are undefined. */
enum rle_status grid_raster(const struct grid *g, const struct rle *m, void *bits);
/* Rasterises the pixels of a label image that are equal to `id`. Rows of `stride` bytes, 1 or 2
 * bytes per pixel, in the machine's byte order. */
void grid_raster_label(const struct grid *g, const void *pixels, size_t stride, int pixel_bytes, uint32_t id,
                       void *bits);
/* Returns the number of set bits. */
uint64_t grid_count(const struct grid *g, const void *bits);

/* ---- Cells ----
 *
 * masks that are stored already sampled, SHAPE_BITS of mask.h: bits of a packed store,
 * or bytes of a memory map.
 */

/* Resamples the mask to the bits of another grid. If the grid is the one that the cells were
 * sampled with, they are copied; otherwise a cell of the grid takes the stored cell under its
 * source pixel. Bits outside of the image are 0, even if stored cells there are not. */
void cells_raster(const struct shape *s, const struct grid *g, void *bits);
/* Computes area, box and runs down the columns, in cells. */
void cells_measure(const struct shape *s, struct rle_facts *f);

/*
 * grid.h: from a mask of the image's size straight to the bits that the loss reads.
 *
 *     source image          canvas (what the model sees)       grid (what the loss sees)
 *     +--------------+        +----------------+                 +------+
 *     |  +-------+   |  crop, |resized|        |  gh x gw cells  |##|...|
 *     |  | crop  |   |  ====> |  crop | padding|  ============>  |##|...|
 *     |  +-------+   |  flip  +-------+        |  cover the      |......|
 *     +--------------+  scale |________________|  canvas         +------+
 *
 * A cell takes the source pixel under its centre (nearest sampling); cells whose centre is in
 * the padding are 0. Crop, scale and flip only change two lookup tables: source column per
 * column of the grid, source row per row. The result equals full decoding and sampling, bit
 * for bit, at a cost in the number of runs and not of pixels.
 *
 * Bits are in rows: cell (x, y) is bit x % 8 of byte y * stride + x / 8, least significant
 * first, stride a multiple of 8.
 */
#ifndef GRID_H
#define GRID_H

#include "data/rle.h"

struct grid_geometry {
    uint32_t h, w;                         /* the source image */
    uint32_t crop_x, crop_y, crop_w, crop_h; /* the window taken of it; crop_w 0: all */
    uint32_t resized_w, resized_h;         /* the window's size on the canvas; placed at 0, 0 */
    uint32_t canvas_w, canvas_h;
    uint32_t gw, gh;                       /* cells over the canvas */
    bool flip;                             /* left and right of the window change places */
};

struct grid {
    struct grid_geometry at;
    uint32_t stride;           /* bytes of a row */
    uint32_t valid_w, valid_h; /* cells with a source pixel: columns 0..valid_w, rows 0..valid_h */
    uint32_t *column;          /* [valid_w]: source column */
    uint32_t *row;             /* [valid_h]: source row, ascending */
    struct grid_span *columns; /* [w + 1]: which cells a source column fills */
    uint16_t *above;           /* [h + 1]: rows of the grid whose source row is above y */
    uint32_t max_side, max_cells;
};

enum { GRID_MAX_CELLS = 32768 };

/* Memory of a grid for images and grids up to the given sides, and the grid in it: made
 * once, set for each sample. */
size_t grid_bytes(uint32_t max_side, uint32_t max_cells);
void grid_init(struct grid *g, void *memory, uint32_t max_side, uint32_t max_cells);
/* PL_USAGE when the geometry makes no sense or is larger than grid_init was told. */
int grid_set(struct grid *g, const struct grid_geometry *at, struct error *e);

static inline size_t grid_stride(uint32_t gw) { return align_up(gw, 64) / 8; }
static inline size_t grid_mask_bytes(uint32_t gw, uint32_t gh) { return grid_stride(gw) * gh; }

/* The mask as bits, into gh * stride bytes, 8-byte aligned. RLE_BAD_SIZE when it is of another
 * size than the source. After a fault the bits mean nothing. */
enum rle_status grid_raster(const struct grid *g, const struct rle *m, void *bits);
/* The same of a label image: the pixels equal to `id`. Rows of `stride` bytes, 1 or 2 bytes
 * a pixel, in the machine's byte order. */
void grid_raster_label(const struct grid *g, const void *pixels, size_t stride, int pixel_bytes, uint32_t id,
                       void *bits);
/* Bits that are set. */
uint64_t grid_count(const struct grid *g, const void *bits);

#endif

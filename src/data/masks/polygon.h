/*
 * polygon.h: COCO polygons as masks.
 *
 * Which pixels at the edge of a polygon count as inside is a convention. This file follows COCO's
 * own tools exactly, because annotations and published scores use them.
 */
#pragma once

#include "data/masks/rle.h"

/* Three buffers of runs: the union so far, the next polygon, the new union. */
struct polygon_scratch {
    uint32_t *runs[3];
    uint32_t room; /* runs in each buffer */
};
/* Returns the memory for `room` runs each: twice the sum of the polygons' heights is enough. */
static inline size_t polygon_bytes(uint32_t room) { return 3 * (size_t)room * sizeof(uint32_t); }
void polygon_init(struct polygon_scratch *p, void *memory, uint32_t room);

/* Rasterises the union of a JSON list of polygons [[x, y, ...], ...] to runs in the scratch. A
 * polygon of fewer than three corners has no pixels. RLE_BAD_CHAR when the text is malformed. */
enum rle_status polygons_union(const char *json, size_t n, uint32_t h, uint32_t w, struct polygon_scratch *p,
                               struct rle *out);

/*
 * polygon.h: COCO's polygons as masks.
 *
 * Which pixels lie inside a polygon is a convention at its edge; the one that counts is that of
 * COCO's own tools, which every annotation and every published score was made with. The
 * runs are theirs, exactly.
 */
#ifndef POLYGON_H
#define POLYGON_H

#include "data/rle.h"

/* Three buffers of runs: what was merged so far, the next polygon, the two merged. */
struct polygon_scratch {
    uint32_t *runs[3];
    uint32_t room; /* of each */
};
/* Memory for `room` runs each: twice the sum of the heights that polygons cross is plenty. */
static inline size_t polygon_bytes(uint32_t room) { return 3 * (size_t)room * sizeof(uint32_t); }
void polygon_init(struct polygon_scratch *p, void *memory, uint32_t room);

/* One polygon of `points` corners x, y, x, y, ... */
enum rle_status polygon_runs(const double *xy, uint32_t points, uint32_t h, uint32_t w, uint32_t *runs, uint32_t room,
                             uint32_t *n);
/* The union of a JSON list of polygons [[x, y, ...], ...], as runs in the scratch. A polygon of
 * fewer than three corners has no pixels. RLE_BAD_CHAR when it is no such list. */
enum rle_status polygons_union(const char *json, size_t n, uint32_t h, uint32_t w, struct polygon_scratch *p,
                               struct rle *out);

#endif

/*
 * annotation.h: parses the annotation files of SA-1B, and single annotations of COCO.
 *
 * One file per image: {"image": {...}, "annotations": [{...}, ...]}. Keys may be in any order,
 * unknown keys are skipped, and numbers may have a decimal point.
 */
#pragma once

#include "data/masks/mask.h"
#include "data/formats/scan.h"
#include "base/base.h"

struct annotation {
    int64_t id;
    uint32_t w, h;
    const char *file_name; /* in the text, not terminated */
    size_t file_name_n;
    uint32_t masks; /* masks returned */
    uint32_t empty; /* masks of area 0, dropped */
};

/* Parses a whole file into masks[room]; shapes point into the text. Every mask has a shape of the
 * image's size and an area above 0. Returns FAULT_NONE, or a fault with its position in `e`. */
enum data_fault annotation_read(const char *text, size_t n, struct annotation *a, struct mask *masks, uint32_t room,
                                struct error *e);

/* Parses one {...} of a list of annotations; missing keys get default values. */
bool annotation_scan_mask(struct scan *s, struct mask *m);

/* ---- Writing ----
 *
 * writes SA-1B annotation files, with SA-1B's keys in its order, and computes
 * the run lengths of a mask of pixels.
 */

/* A region's runs down the columns, as in rle.h. Reset n to reuse it. */
struct traced {
    VEC(uint32_t) runs;
    uint32_t area, x0, y0, x1, y1; /* the tight box, both ends included; undefined for area 0 */
    uint32_t point[2];             /* x, y in the middle of the longest run, inside the mask */
};
/* Reports whether pixel (x, y) belongs to the region. */
typedef bool trace_set(const void *of, uint32_t x, uint32_t y);
/* Traces a region; tests only columns x0..x1 and rows y0..y1, both ends included; other pixels
 * are 0. */
void trace_runs(struct traced *t, uint32_t h, uint32_t w, uint32_t x0, uint32_t y0, uint32_t x1, uint32_t y1,
                trace_set *set, const void *of);
/* Traces a mask of one byte per pixel, [h][w]. */
void trace_bytes(struct traced *t, const uint8_t *mask, uint32_t w, uint32_t h);
void trace_free(struct traced *t);
/* Puts "size": [h, w] and "counts" of COCO's run lengths, or the bounding box "bbox" and "area",
 * into the open map. */
struct json_writer;
void trace_put_runs(const struct traced *t, uint32_t w, uint32_t h, struct json_writer *to);
void trace_put_box(const struct traced *t, struct json_writer *to);

struct annotation_mask {
    const struct traced *shape;
    double predicted_iou, stability;
    double point[2];
    double crop_box[4];
    int64_t id;
};
/* Writes {"image": ..., "annotations": [   then masks, then   ]}. `number` counts the masks from
 * 0. bbox is one pixel short in width and height, as in SA-1B. */
void annotation_write_begin(struct text *out, int64_t image_id, uint32_t w, uint32_t h, const char *file_name);
void annotation_write_mask(struct text *out, uint32_t number, uint32_t w, uint32_t h, const struct annotation_mask *m);
void annotation_write_end(struct text *out);

/*
 * annotation.h: the annotation files of SA-1B, and one annotation of COCO's.
 *
 * One file per image: {"image": {...}, "annotations": [{...}, ...]}. Keys in any order,
 * unknown ones skipped, numbers with or without a point.
 */
#ifndef ANNOTATION_H
#define ANNOTATION_H

#include "data/mask.h"
#include "data/scan.h"

struct annotation {
    int64_t id;
    uint32_t w, h;
    const char *file_name; /* in the text, not terminated */
    size_t file_name_n;
    uint32_t masks; /* given */
    uint32_t empty; /* masks of area 0, left out */
};

/* Reads a whole file into masks[room]; shapes point into the text. Every mask has a shape of
 * the image's size and an area above 0. FAULT_NONE, or a fault with its place in `e`. */
enum data_fault annotation_read(const char *text, size_t n, struct annotation *a, struct mask *masks, uint32_t room,
                                struct error *e);

/* One {...} of a list of annotations, with defaults for what it does not say. */
bool annotation_scan_mask(struct scan *s, struct mask *m);

#endif

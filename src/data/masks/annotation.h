/*
 * annotation.h: parses the annotation files of SA-1B, and single annotations of COCO.
 *
 * One file per image: {"image": {...}, "annotations": [{...}, ...]}. Keys may be in any order,
 * unknown keys are skipped, and numbers may have a decimal point.
 */
#ifndef ANNOTATION_H
#define ANNOTATION_H

#include "data/masks/mask.h"
#include "data/formats/scan.h"

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

#endif

/*
 * label.h: masks from a PNG label image: a binary mask, classes or instances, 8 or 16 bits.
 */
#ifndef LABEL_H
#define LABEL_H

#include "data/dataset.h"

struct label_options {
    enum label_kind kind;
    int ignore;            /* a value that is not a mask, besides 0; below 1: none */
    const int64_t *values; /* only these values; none: all */
    uint32_t n_values;
};

/* Reads all masks of a PNG file, one per value, in the order of first appearance by rows. With
 * LABELS_BINARY there is one mask, of all pixels above half of the largest value. The pixels
 * stay at the front of the scratch, and the masks point to them. */
enum data_fault label_read(const char *path, const struct label_options *o, void *scratch, size_t n,
                           struct mask *masks, uint32_t room, struct dataset_masks *out, struct error *e);
/* Finds the masks of pixels in memory, which LABELS_BINARY changes to 0 and 1. `map` is scratch
 * for 65536 numbers. */
enum data_fault label_masks(void *pixels, uint32_t h, uint32_t w, int bytes, const struct label_options *o,
                            uint16_t *map, struct mask *masks, uint32_t room, struct dataset_masks *out,
                            struct error *e);

#endif

/*
 * image_list.h: the images of a list, prepared for a vision tower by threads, in order.
 *
 *     ring (ring.h) ─ threads: read an image (image_reader.h) ─ reader_next
 *
 * An image that is missing or broken is replaced by another one of the list, drawn by seed and
 * position, so that no other position changes. A source with `once` (validation) returns it as
 * broken, without weight.
 *
 * All memory is one block of reader_bytes from the caller, plus the allocations of the image
 * libraries (image_reader.h).
 */
#pragma once

#include "data/formats/labelled.h"
#include "data/images/image_reader.h"
#include "data/reader.h"

/* The options that determine the memory. */
struct image_list_options {
    uint32_t threads, slots;   /* at least 2 slots: the caller holds one */
    struct image_reader_options reader;
};

/* Where images come from, and in which order. The caller owns it and must not change it while they
 * are read. Only the consumer changes the counts. */
struct image_list_source {
    struct sample_order order;
    const struct labelled *set;
    struct image_files *files;
};

struct list_image {
    uint64_t position;
    uint64_t sample;       /* in the list */
    const float *pixels;   /* [3][side][side]; zeros: it is broken */
    bool broken;
};

/* Readers of images: of struct image_list_options and image_list_source; a slot begins with a
 * struct list_image. */
extern const struct reader_kind image_list_kind;

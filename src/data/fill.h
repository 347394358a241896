/*
 * fill.h: fills one slot with one sample: the work of a loader thread (loader.c).
 *
 *     annotations ─ sampler ─ chosen masks ─ bits ┐
 *     image ─ decoded row by row ─ resized ─────┴─ slot
 *
 * A filler owns all memory for this. Per sample only libjpeg and libpng allocate. The files of a
 * sample pass through one buffer, annotations first: most faults are found there, before an
 * image is decoded.
 */
#pragma once

#include "data/loader.h"

/* A sample in the loader's ring. */
struct slot {
    struct loader_sample out;
    uint8_t *image, *bits;  /* image: or the embedding */
    struct loader_mask *masks;
    uint32_t bad_masks, lost_masks;
    int rc;                 /* not PL_OK: no substitute could be used either; `why` has the reason */
    struct slot_fault why;  /* of the broken sample */
};

struct filler;

/* Places a slot's buffers in the block at `at` (NULL: only counts); returns its bytes. */
uint64_t slot_layout(struct slot *s, const struct loader_options *o, char *at);
uint64_t filler_size(const struct loader_options *o);

/* Creates a filler in filler_size bytes at `at`. Only filler_new uses the heap. */
struct filler *filler_new(const struct loader_options *o, char *at);
void filler_free(struct filler *f);

/* Counts a slot for the consumer, and fails as reader_next does (loader.c). */
int slot_count(struct loader_source *s, const struct slot *slot, struct error *e);
/* Fills a slot with the sample of a position. The slot has the filler's options. */
void fill_slot(struct filler *f, const struct loader_source *source, uint64_t position, struct slot *s);
/* Reads a sample without sampling and augmentation, to store what a loader would produce: first
 * all masks, then the bits of each mask, then the image, which overwrites the memory that the
 * masks point to. Stretched: the grid covers exactly the image, of any aspect ratio. */
struct fill_facts {
    const struct mask *records; /* [n] valid until the image is filled; the filler owns their shapes */
    uint32_t n, empty;
    uint32_t h, w;              /* of the stored image */
    uint32_t rows, columns;     /* of the canvas that the image covers */
};
enum data_fault fill_records(struct filler *f, const struct dataset *set, uint64_t sample, bool stretched,
                             struct fill_facts *out, struct error *e);
enum data_fault fill_bits(struct filler *f, uint32_t k, void *bits, struct error *e);
/* Adds area and box of bits of the grid to a mask's facts. */
void fill_measure(const struct filler *f, const void *bits, struct loader_mask *m);
enum data_fault fill_sample_image(struct filler *f, const struct dataset *set, uint64_t sample, uint8_t *to,
                                  struct error *e);

/* Returns the sample at a position. */
uint64_t source_sample(const struct loader_source *source, uint64_t position);

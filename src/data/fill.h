/*
 * fill.h: one sample into one slot: the work of a loader thread (loader.c).
 *
 *     annotations ─ sampler ─ chosen masks ─ bits ┐
 *     image ─ decoded row by row ─ resized ─────┴─ slot
 *
 * A filler has the memory that this takes, once; nothing is allocated per sample but what
 * libjpeg and libpng take for themselves. The files of a sample pass through one buffer,
 * annotations first: most faults show there, before an image is decoded.
 */
#ifndef FILL_H
#define FILL_H

#include "data/loader.h"

/* A place for a sample: what the ring holds. */
struct slot {
    struct loader_sample out;
    uint8_t *image, *bits;  /* image: or the embedding */
    struct loader_mask *masks;
    uint32_t bad_masks, lost_masks;
    int rc;                 /* not PL_OK: not even a substitute could be had; `text` says why */
    bool ready;
    char name[256], text[512]; /* of the sample that was broken, and how */
};

struct filler;

/* Lays a slot out in the block from `at` on (NULL: only counts); returns its bytes. */
uint64_t slot_lay(struct slot *s, const struct loader_options *o, char *at);
uint64_t filler_size(const struct loader_options *o);

/* A filler in filler_size bytes at `at`; the heap is used here and nowhere else. */
struct filler *filler_new(const struct loader_options *o, char *at);
void filler_free(struct filler *f);

/* The sample of a position into the slot; any slot of the filler's options. */
void fill_slot(struct filler *f, const struct loader_source *source, uint64_t position, struct slot *s);
/* A sample without choice and chance, for those who store what a loader would make of it: all
 * masks, then the bits of each, then the image, which takes the place of what masks point to.
 * Stretched: the grid lies over the image alone, whatever its sides. */
struct fill_facts {
    const struct mask *records; /* [n] until the image is filled; their shapes are the filler's */
    uint32_t n, empty;
    uint32_t h, w;              /* of the stored image */
    uint32_t rows, columns;     /* of the canvas that are its */
};
enum data_fault fill_records(struct filler *f, const struct dataset *set, uint64_t sample, bool stretched, struct fill_facts *out, struct error *e);
enum data_fault fill_bits(struct filler *f, uint32_t k, void *bits, struct error *e);
enum data_fault fill_sample_image(struct filler *f, const struct dataset *set, uint64_t sample, uint8_t *to, struct error *e);

/* The sample that belongs at a position. */
uint64_t source_sample(const struct loader_source *source, uint64_t position);

#endif

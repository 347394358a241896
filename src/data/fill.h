/*
 * fill.h: one sample into one slot: the work of a loader thread (loader.c).
 *
 *     annotations ─ sampler ─ chosen masks ─ bits ┐
 *     picture ─ decoded row by row ─ resized ─────┴─ slot
 *
 * A filler has the memory that this takes, once; nothing is allocated per sample but what
 * libjpeg and libpng take for themselves. The files of a sample pass through one buffer,
 * annotations first: most faults show there, before a picture is decoded.
 */
#ifndef FILL_H
#define FILL_H

#include "data/loader.h"

/* A place for a sample: what the ring holds. */
struct slot {
    struct loader_sample out;
    uint8_t *image, *bits;
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
/* The sample that belongs at a position. */
uint64_t source_sample(const struct loader_source *source, uint64_t position);

#endif

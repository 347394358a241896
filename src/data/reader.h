/*
 * reader.h: the samples of a source, prepared by threads, in the order of positions.
 *
 *     source ─ ring (ring.h) ─ threads: fill a slot ─ reader_next: the slot, counted
 *
 * One reader serves all kinds of samples: images with masks (loader.h), rows of conversations with
 * images, questions about images and lists of images (image_rows.h).
 * A kind says how a slot is filled and how the consumer counts it.
 */
#pragma once

#include "data/faults.h"
#include "data/ring.h"

/* In which order samples are read, and what becomes of broken ones: the first member of a source.
 * Only the consumer changes the counts. */
struct sample_order {
    uint64_t seed;
    bool shuffle;
    bool once;             /* one pass, in the source's order, and no sample is replaced */
    bool quiet;            /* broken samples are counted and not logged */
    double max_bad;        /* largest share of broken samples */
    uint64_t each, every;  /* of `every` samples only the first `each` are read (ring_part); 0: all */
    struct loader_counts counts;
};

struct reader_kind {
    struct ring_kind ring;
    size_t options;            /* bytes of the kind's options... */
    size_t threads, slots;     /* ...and where they have the uint32_t of ring_options */
    uint64_t (*count)(const void *source); /* positions of a source that is read once */
    /* Counts a slot for the consumer. PL_FAIL when more samples are broken than the order allows:
     * checked from FAULTS_FIRST broken samples on, and at the end of each epoch. PL_USAGE when no
     * sample so far could be used. */
    int (*take)(void *source, const void *slot, struct error *e);
    /* Returns the samples before a position: counts.seen of a resumed run. NULL: one at each
     * position. */
    uint64_t (*seen)(const void *source, uint64_t position);
};

struct reader;
/* Returns the bytes of a reader's memory, which depend only on the options. */
uint64_t reader_bytes(const struct reader_kind *k, const void *options);
/* Opens a reader in `memory`, which has reader_bytes, aligned to 64, and outlives it. The options
 * are copied. */
int reader_open(struct reader **out, const struct reader_kind *k, const void *options, void *memory, struct error *e);
/* Joins the threads. NULL is allowed. */
void reader_close(struct reader *r);
/* Continues at a position of a source, and drops what was read ahead. The source must stay valid
 * and unchanged. Allocates nothing. */
void reader_seek(struct reader *r, void *source, uint64_t position);
/* Reports whether reader_next returns this position of this source. */
bool reader_at(const struct reader *r, const void *source, uint64_t position);
/* Returns the slot of the next position, valid until the next call; NULL: it fails as `take`
 * does. */
const void *reader_next(struct reader *r, struct error *e);

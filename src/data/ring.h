/*
 * ring.h: threads that fill slots in the order of positions, for one consumer.
 *
 *     positions  p  p+1  p+2 ...         each a pure function of (source, position)
 *        │ tickets                        in ascending order
 *     thread 0 ... thread T-1             ring_kind.fill
 *        │
 *     ring of slots                       position p fills slot p % slots
 *        │
 *     ring_next                           ascending positions, filled by any thread
 *
 * What a slot holds is a kind's own: an image with its masks (loader.h), a row of conversations
 * with its images (image_rows.h). A slot depends only on source and position, so a resumed run
 * needs one number.
 *
 * A sample of several parts has a kind whose slot and whose thread hold those of the parts, one
 * after the other in the block, and whose fill calls theirs. The parts that there are: token rows
 * (token_row_place and conversations_fill of conversations.h), images for a tower (image_reader.h),
 * an image with masks on its grid (fill.h); faults.h has what becomes of a sample whose part cannot
 * be filled.
 */
#pragma once

#include "base/base.h"

struct ring_kind {
    size_t slot;    /* bytes of a slot's struct */
    /* Places a slot's buffers in the block at `at` (NULL: only counts); returns their bytes. */
    uint64_t (*slot_layout)(void *slot, const void *options, char *at);
    /* Bytes of a thread's scratch; its state in that memory, which only here may use the heap. */
    uint64_t (*thread_bytes)(const void *options);
    void *(*thread_new)(const void *options, char *at);
    void (*thread_free)(void *thread);
    void (*fill)(void *thread, const void *source, uint64_t position, void *slot);
    /* announces a position that will be filled soon; NULL: nothing to do */
    void (*prefetch)(const void *source, uint64_t position);
};

struct ring_options {
    const struct ring_kind *kind;
    const void *options;       /* the kind's; must stay valid */
    uint32_t threads, slots;   /* at least 2 slots: the consumer holds one */
};

/* Returns the bytes of the block; depends only on the options. */
uint64_t ring_bytes(const struct ring_options *o);

struct ring;
/* Opens a ring in `memory`, which has ring_bytes, aligned to 64, and outlives the ring. Starts the
 * threads, which wait for a seek. */
int ring_open(struct ring **out, const struct ring_options *o, void *memory, struct error *e);
/* Joins the threads. NULL is allowed. */
void ring_close(struct ring *r);
/* Positions of a source: `each` of them from `first` on, then `each` from first + every on, and so
 * forth; what one rank has of every step. each 0: all from `first` on. */
struct ring_part {
    uint64_t first, each, every;
};
/* Continues at the first of these positions of a source, whose positions end at `end`, and drops
 * what was read ahead. The source must stay valid and unchanged. Allocates nothing. */
void ring_seek_part(struct ring *r, const void *source, struct ring_part part, uint64_t end);
/* Reports whether the next call of ring_next returns this position of this source. */
bool ring_at(const struct ring *r, const void *source, uint64_t position);
/* Returns the slot of the next position, valid until the next call. */
void *ring_next(struct ring *r);

/* Takes `bytes` from a block and rounds them up to 64; with at = NULL it only counts. */
void *ring_carve(char *at, uint64_t *used, uint64_t bytes);

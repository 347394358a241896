/*
 * question_rows.h: samples of PRS-Med, prepared by threads, in order: an image with its mask, and
 * its question and answer as tokens, with the same image for the language model's tower.
 *
 *     ring (ring.h) ─ threads ─┬─ image and mask on a canvas (fill.h)
 *                              ├─ the row of tokens (conversations.h)
 *                              └─ the tower's pixel values (image_reader.h)
 *
 * Image and mask decide which sample a position has: one that cannot be used is replaced, as in
 * loader.h, and the texts are those of the sample that takes its place. If the tower's reader finds
 * the image broken after all, the sample has neither a mask nor labels.
 */
#pragma once

#include "data/text/conversations.h"
#include "data/images/image_reader.h"
#include "data/loader.h"

/* The options that determine the memory. */
struct question_rows_options {
    struct loader_options masks; /* of one mask; its threads and slots are the ring's */
    struct image_reader_options reader;
    uint32_t sequence;
};

/* Where samples come from. The caller owns it and must not change it while samples are read from
 * it. */
struct question_rows_source {
    struct loader_source masks;       /* its order and counts are those of all */
    const struct conversations *set;  /* one conversation a row */
    const uint32_t *row_of;           /* by sample of masks.set: the conversation, an index into set->used */
    struct image_files *files;
    bool reads_answers;               /* the mask is read from the answer too */
};

struct question_row {
    struct token_row tokens;
    int32_t question[2];              /* the tokens that the mask is read from: the first, and one past the last */
    const float *pixels;              /* [3][side][side] */
    const struct loader_sample *image;
};

/* Readers of such samples: of struct question_rows_options and question_rows_source; a slot begins
 * with a struct question_row. */
extern const struct reader_kind question_rows_kind;

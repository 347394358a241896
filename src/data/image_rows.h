/*
 * image_rows.h: rows of conversations with their images, prepared by threads, in order.
 *
 *     ring (ring.h) ─ threads: read the images of a row (image_reader.h), then its tokens
 *     (conversations.h) ─ reader_next
 *
 * Or, instead of pixels, what a vision tower made of the images before: embeddings of a packed
 * store (image_files.h). Rows, faults and substitutes are the same.
 *
 * An image that is missing or broken is a fault of its conversation. Another one that has room in
 * the row replaces it, drawn by seed and position, so that nothing else changes; if none that is
 * drawn has room, the row is shorter. A source with `once` (validation) leaves it out. A frame of a
 * video that cannot be decoded is replaced by one beside it (video.h), and counted.
 *
 * All memory is one block of reader_bytes from the caller, plus the allocations of the image
 * libraries (image_reader.h).
 */
#pragma once

#include "data/formats/labelled.h"
#include "data/images/image_reader.h"
#include "data/loader.h"
#include "data/reader.h"
#include "data/text/conversations.h"
#include "models/contents.h"

/* The options that determine the memory. */
struct image_rows_options {
    /* room of a row; with reader.patches `images` counts features, merge^2 patches each, or where
     * every image has as many tokens (most_patches) images */
    uint32_t sequence, images, frames, volumes; /* volumes: of each of reader.modalities */
    uint32_t most_patches;     /* of an image; 0: as many as it has tokens for */
    uint32_t threads, slots;   /* at least 2 slots: the caller holds one */
    struct image_reader_options reader;
    /* bytes of an image's embedding in the sources' store; 0: pixels, which the reader reads */
    uint64_t embedding;
};

/* Where rows come from, and in which order. The caller owns it and must not change it while rows
 * are read from it. Only the consumer changes the counts: of conversations. */
struct image_rows_source {
    struct sample_order order;
    const struct conversations *set;
    struct image_files *files;
    uint64_t replaced;     /* frames of videos that could not be decoded */
};

struct image_row {
    uint64_t position;
    struct token_row tokens;
    /* u8 [options.images + options.frames][3][side][side], or embeddings: images, then frames of
     * videos; zeros after the last of each */
    const void *pixels;
    uint32_t images, frames;
    /* f32 [options.volumes][modality_floats] of each modality; zeros after the last */
    const float *volumes[MODALITIES];
    uint32_t n_volumes[MODALITIES];
    /* [n_grids] the images, where they have any size: then `pixels` are patches */
    const struct image_grid *grids;
    uint32_t n_grids;
    /* [n_media] the tokens of videos and volumes, ascending: these take frames and volumes, and
     * other image tokens images */
    const struct row_media {
        uint32_t begin, end;
        int modality; /* of a volume; below 0: a video */
    } *media;
    uint32_t n_media;
};

/* Returns how many videos and volumes a row has at most. */
uint32_t image_rows_media(const struct image_rows_options *o);
/* Readers of such rows: of struct image_rows_options and image_rows_source; a slot begins with a
 * struct image_row. Samples are conversations. */
extern const struct reader_kind image_rows_kind;

/* --- question rows --------------------------------------------------------------------------- */

/* Samples of PRS-Med, prepared by threads, in order: an image with its mask, and
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
    const uint8_t *pixels;            /* [3][side][side] */
    const struct loader_sample *image;
};

/* Readers of such samples: of struct question_rows_options and question_rows_source; a slot begins
 * with a struct question_row. */
extern const struct reader_kind question_rows_kind;

/* --- image list ------------------------------------------------------------------------------ */

/* The images of a list, prepared for a vision tower by threads, in order.
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
    const uint8_t *pixels; /* [3][side][side]; zeros: it is broken */
    bool broken;
};

/* Readers of images: of struct image_list_options and image_list_source; a slot begins with a
 * struct list_image. */
extern const struct reader_kind image_list_kind;

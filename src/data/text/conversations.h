/*
 * conversations.h: a token store as rows of T tokens, for training.
 *
 *     row         | conversation 7      | conversation 12 | padding
 *     positions   | 0 1 2 3 ...         | 0 1 2 ...       | 0 0
 *     ranges      | (0,1) (0,2) ...     | (s,s+1) ...     | (0,0) ...  first key, one past the last
 *     labels      | -100 -100 ids ...   | -100 ids ...    | -100
 *
 * A conversation with images has the ids of image tokens, `features` for each image that the
 * model's tower gets. Rows then have room for a number of images, too; which pixels these are is of
 * no concern here (image_rows.h).
 *
 * A token sees its own conversation up to itself, and padding sees nothing. The first token of a
 * conversation has no label: nothing before it could predict it. Which conversations share a row is
 * fixed when the store is opened (struct rows), so a row is a sample like any other.
 *
 * A text is a conversation without turns. If it is longer than a row it is split into rows. Whole
 * samples are held out; of a dataset that is a single text, rows.
 */
#pragma once

#include "data/text/token_store.h"
#include "models/modalities.h"
#include "text/template/anyres.h"
#include "base/base.h"

/* ---- Rows ----
 *
 * packing: which samples share a row, which has room for some tokens, some images, some frames of
 * videos and some volumes of each modality.
 *
 * Best fit decreasing: from the longest sample to the shortest, each goes into the row with the
 * least room for tokens that holds it, its images and frames included. It depends only on
 * the sizes. Rows are numbered by their first sample, and the samples of a row keep their order, so
 * that rows of an unshuffled run follow the file.
 */

/* The size of a sample, of a row, or of what still fits into a row. */
struct row_size {
    uint32_t tokens, images, frames, volumes[MODALITIES];
};
/* Reports whether the first has room for the second; takes the second out of the first. */
bool row_fits(const struct row_size *room, const struct row_size *x);
void row_take(struct row_size *room, const struct row_size *x);

struct rows {
    uint32_t n;
    uint32_t *first;   /* [n + 1] into samples */
    uint32_t *samples; /* every sample once, row after row */
};

/* Packs samples into rows: sizes[n], each of 1 to most.tokens tokens and at most most.images
 * images, most.frames frames and most.volumes. `pack` false: each sample has a row of its own. */
void rows_pack(struct rows *r, const struct row_size *sizes, uint32_t n, struct row_size most, bool pack);
void rows_free(struct rows *r);

/* In the order of the choices of data.train_on, data.too_long and data.too_many_images. */
enum train_on { TRAIN_ON_ASSISTANT, TRAIN_ON_LAST, TRAIN_ON_ALL };
enum too_long { TOO_LONG_AUTO, TOO_LONG_DROP, TOO_LONG_CUT, TOO_LONG_SPLIT };
enum too_many { TOO_MANY_DROP, TOO_MANY_SPLIT };

/* What conversations with images are to a model. */
struct image_rule {
    int32_t token;      /* the id of an image token */
    uint32_t features;  /* tokens of an image; 0: all conversations are text */
    uint32_t most;      /* images of a row */
    /* With images of any size: how many patches become a token (else 0), and the id of a video's;
     * `features` is 1, and images and videos are counted in tokens. */
    uint32_t patches;
    int32_t video;
    struct anyres anyres; /* whose images have tokens of their own; n 0: another layout */
    uint32_t frame_features, most_frames; /* the same of frames of videos; 0: there are no videos */
    struct modality_list modalities; /* of volumes, and... */
    uint32_t most_volumes;           /* ...how many of each a row may have */
    enum too_many too_many;
};

struct conversations_options {
    int64_t sequence;
    enum train_on train_on;
    enum too_long too_long;
    bool packing;
    int64_t vocabulary; /* ids are below this; 0: any */
    double max_bad;
    int32_t padding;    /* the id of padding */
    double holdout;     /* the fraction of samples that is held out (data/order.h); 0: none... */
    uint64_t split_seed;
    bool held;          /* ...and the rows are of these, instead of the others */
    uint32_t max_samples; /* of each file, the first ones; 0: all */
    struct image_rule images;
};

/* A sample in a row. */
struct used_sample {
    uint32_t sample;
    uint32_t begin;           /* its first token: not 0 for a later part of a sample that was split */
    struct row_size size;     /* in a row */
};

struct conversations {
    struct token_store store;
    char *path;
    struct conversations_options o;
    struct rows rows;         /* of indices into `used` */
    VEC(struct used_sample) used; /* samples in rows */
    uint64_t samples;         /* how many samples they are, or are parts of */
    /* how many of them are cut: conversations, and texts whose last tokens are left out */
    uint64_t cut, cut_texts, cut_tokens;
    bool one_group;           /* with a holdout: all samples are about one image or video, which is on both sides */
    /* conversations that a template rendered, and those without a label at a special token that
     * ends them */
    uint64_t chats, endless;
    uint64_t split, split_long; /* conversations that were split at turns: with too many images; too long */
    /* samples that are left out: too long; with too many images; without a label... */
    uint64_t too_long, too_many, unlabelled;
    uint64_t too_many_frames, too_many_volumes; /* ...and with too many frames or volumes */
    uint64_t tokens, labels, images, frames, volumes; /* in all rows */
    uint64_t longest;         /* tokens of the longest sample in the store */
    /* the most images, and frames, and volumes of one modality, of a sample in it */
    uint64_t most_images, most_frames, most_volumes;
};

/* Opens a store and makes rows of it. Must not be moved while it is open. PL_USAGE: more samples
 * than max_bad could not be used; no sample can be; an id beyond the vocabulary. */
int conversations_open(struct conversations *c, const char *path, const struct conversations_options *o,
                       struct error *e);
void conversations_close(struct conversations *c);
static inline uint64_t conversations_count(const struct conversations *c) { return c->rows.n; }

/* One row: arrays of T elements, ranges of T pairs. Allocates nothing. */
struct token_row {
    int32_t *ids, *labels, *positions, *ranges;
    uint32_t tokens, labelled; /* not padding; with a label */
};
/* Places the arrays of a row of T tokens in a block (ring_carve of ring.h). */
void token_row_place(struct token_row *r, uint32_t T, char *at, uint64_t *used);
int conversations_read(const struct conversations *c, uint64_t row, struct token_row *out, struct error *e);
/* The samples of a row, and the same row from samples (indices into `used`) that fit into it. */
struct row_samples {
    const uint32_t *at;
    uint32_t n;
};
struct row_samples conversations_samples(const struct conversations *c, uint64_t row);
void conversations_fill(const struct conversations *c, struct row_samples samples, struct token_row *out);
/* The image that has number `nth` of those that the tower gets for a sample. */
struct sample_image {
    const char *reference; /* "": there is none */
    uint32_t count;        /* images that the tower gets of it */
};
struct sample_image conversations_image(const struct conversations *c, const struct used_sample *u, uint32_t nth);
/* Number `nth` of the videos and volumes of a sample; false: it has no more. */
struct sample_media {
    const char *reference;
    uint32_t frames;          /* of a video */
    int modality;             /* of a volume; below 0: it is a video */
    struct byte_range tokens; /* of the sample as it is used */
};
bool conversations_media(const struct conversations *c, const struct used_sample *u, uint32_t nth,
                         struct sample_media *out);
/* Returns PL_FAIL if the store could not be read. */
int conversations_check(const struct conversations *c, struct error *e);
/* Writes a row that is all padding. */
void conversations_pad(const struct conversations *c, struct token_row *out);
/* Returns a hash of the store and of how it is made into rows. */
uint64_t conversations_fingerprint(const struct conversations *c);
/* Prints what was left out, in one line; nothing if all samples are used. */
void conversations_print_left(const struct conversations *c, struct text *out);

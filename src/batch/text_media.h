/*
 * text_media.h: the images, videos and volumes of texts that are answered: their pixels go into the
 * inputs of the vision tower, and the image tokens of the texts get their features.
 *
 *     text_media_begin(&m, text)                    a text, whose media come before any other's
 *     text_media_read(&m, &source, references, n)   its media, into the inputs
 *     text_media_check(&m, ids, n, n_images)        whether its image tokens match them
 *     text_media_place(&m, text, at, ids, n)        its next tokens
 *     text_media_put(&m, rows, n, &record)          what a run of a program takes of them
 */
#pragma once

#include "batch/writer.h"
#include "batch/model_images.h"

/* A token in a run of a program; of text -1: padding. */
struct row_token {
    int64_t text;
    int32_t id, position;
};

struct text_media {
    struct run *run;
    struct batch_writer *writer;
    int64_t texts, cache;      /* at once; tokens of the longest */
    struct media room;         /* for which memory is planned, at most... */
    struct media has;          /* ...and of the text that was begun last */
    struct image_run *runs;    /* [room] the tokens of its media, in their order */
    uint32_t n_runs;
    int64_t feature[2];        /* the image token that comes next: the first is 0 (batch_record.feature) */
    /* the pixels of the image, of a model that chooses its tokens by the whole prompt
     * (allocator.h); NULL: of any other */
    uint8_t *pixels;
    /* With images of any size: of the text that was begun last, their grids and patches... */
    struct image_grid *grids;
    int64_t n_grids;
    int32_t *order;            /* where their features lie (grid_row.feature) */
    uint8_t *patches;          /* [room.patches][grid_values] */
    struct grid_walk *walk;    /* ...and [texts] where each text has come to in its own, */
    /* [texts,cache] the positions and the features of its tokens, and [rows] those of a run */
    int32_t (*three)[3], *index, (*row_three)[3], *row_index;
};

/* Makes room in a started run for texts of up to `cache` tokens; a run of a program takes at most
 * `rows` of them. The writer is the caller's. Only this allocates. */
void text_media_open(struct text_media *m, struct run *r, struct batch_writer *w, int64_t texts, int64_t cache,
                     int64_t rows);
void text_media_close(struct text_media *m);
void text_media_begin(struct text_media *m, int64_t text);
/* Reads the images and videos of the text that was begun last. PL_USAGE: one of them is missing or
 * broken, or they are more than were planned. */
int text_media_read(struct text_media *m, const struct image_source *s, char *const *references, uint32_t n,
                    struct error *e);
/* Counts the image tokens that the media of the text take. */
int64_t text_media_tokens(const struct text_media *m);
/* Checks that each feature of an image has its token in a prompt with n_images media. Images of any
 * size are checked where their positions are found. */
int text_media_check(const struct text_media *m, const int32_t *ids, int64_t n, uint32_t n_images, struct error *e);
/* Reports whether an id is the placeholder of a feature, `feature` of which came before it. After
 * the last feature it is a token like any other. */
bool text_media_is_token(const struct text_media *m, int32_t id, int64_t feature);
/* Finds the positions and features of the next n tokens of a text, of which `at` came before. */
int text_media_place(struct text_media *m, int64_t text, int64_t at, const int32_t *ids, int64_t n, struct error *e);
/* Adds to the record of a run with `n` rows of tokens the pixels and features that these take, and
 * of images of any size three positions a token. `single`: it has one token of each text. */
void text_media_put(struct text_media *m, const struct row_token *rows, int64_t n, bool single, struct batch_record *x);

/*
 * batch_plan.h: what a batch of a configuration holds, before any data is opened.
 *
 * It depends only on configuration and model, so that it can be planned, and on the header of a
 * packed store. The feed (batch/feed.h) then fills such batches.
 */
#pragma once

#include "data/clips.h"
#include "data/image_rows.h"
#include "data/loader.h"
#include "data/formats/packed.h"
#include "engine/run.h"
#include "models/images.h"
#include "models/grounding.h"
#include "models/heads.h"
#include "models/masks.h"
#include "models/prs_med.h"

/* Points of the first prompt of a mask: a point and a filler, or two corners. Every later round
 * adds one point. */
enum { FIRST_SLOTS = 2 };

/* What reads a run's samples. */
struct feed_reading {
    const struct reader_kind *kind;
    const void *options;         /* of the kind; NULL: the run has no such data */
    /* in run_loader_memory, while a feed is open; training and validation share it: they never read
     * at the same time */
    struct reader *reader;
};
/* Returns the bytes of its memory. */
static inline uint64_t reading_bytes(const struct feed_reading *r) { return reader_bytes(r->kind, r->options); }

/* What a run's feed was planned with (run_batches.feed). */
struct feed_plan {
    struct feed_reading reading;
    struct contents holds, whole;        /* batch.holds; the same with the image encoder */
    struct bump *memory;                 /* the run's, of what they point to */
    struct packed_embeddings embeddings; /* stored embeddings that replace images; type 0: none */
    uint64_t encoder;                    /* hash of its weights, computed on demand (embed.h); 0: not yet */
    /* options of its reader: of images with masks, of clips of them (frames 0: none), of rows of
     * conversations with images, of questions, of images with a class or a text */
    struct loader_options masks;
    struct clip_options clips;
    struct image_rows_options rows;
    struct question_rows_options questions;
    struct image_list_options list;
    struct patch_rules patches, video_patches; /* of rows.reader, with images of any size */
};
/* The augmentation of training images, and the first key that asks for one; CONFIG_KEYS: none
 * does. */
struct loader_augment batch_augment(const struct config *c);
enum config_key batch_augments(const struct config *c);

/* Returns the number of images, of `features` tokens each, for which a row of conversations has
 * room: data.max_images. */
int64_t batch_images(const struct config *c, int64_t features);
/* Returns the patches for which a row has room, with images of any size, `unit` patches a token:
 * data.max_patches. */
int64_t batch_patches(const struct config *c, int64_t unit);

/* The mask loss of a configuration; for PRS-Med its losses and their weights. */
struct mask_loss_options batch_loss(const struct config *c);
void batch_prs(const struct config *c, struct contents *out);
/* Returns the options of the loader of images with masks. */
struct loader_options batch_loader(const struct config *c, const struct model *m, const struct packed_embeddings *x);
/* Returns the bytes for the file of an image, its pixels and what resizing needs:
 * data.sample_memory. */
uint64_t batch_room(const struct config *c);
/* Returns how volumes of conversations are viewed, and the bytes that reading one may take. */
struct volume_options batch_volumes(const struct config *c);
/* Returns the value of data.format. */
const char *batch_format(const struct config *c);

/* Refuses a model that does not take token rows: PL_USAGE. */
int batch_refuse_tokens(const struct config *c, const struct model *m, struct error *e);

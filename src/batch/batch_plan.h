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

/* What reads a run's samples: the first member of what follows (run_batches.feed). */
struct feed_reading {
    const struct reader_kind *kind;
    const void *options;         /* of the kind; NULL: the run has no such data */
    /* in run_loader_memory, while a feed is open; training and validation share it: they never read
     * at the same time */
    struct reader *reader;
};
/* Returns the bytes of its memory. */
static inline uint64_t reading_bytes(const struct feed_reading *r) { return reader_bytes(r->kind, r->options); }

/* What a run of a mask model has beyond other runs (run_batches.feed). */
struct mask_batches {
    struct feed_reading reading;
    struct loader_options options;
    struct clip_options clips;   /* with data.frames; frames 0: images */
    struct prompting prompts;    /* batch.own */
    struct prompting whole;      /* the same with the encoder */
    struct packed_embeddings embeddings; /* stored embeddings that replace images; type 0: none */
    uint64_t encoder;            /* hash of the encoder's weights, computed on demand (embed.h); 0: not yet */
};
/* Returns the batches of a mask model's run; NULL: it is another run. */
struct mask_batches *mask_batches(const struct run *r);
/* The augmentation of training images, and the first key that asks for one; CONFIG_KEYS: none
 * does. */
struct loader_augment batch_augment(const struct config *c);
enum config_key batch_augments(const struct config *c);

/* What a run of a model that takes images among its tokens has beyond other runs of text
 * (run_batches.feed). */
struct image_batches {
    struct feed_reading reading;
    struct image_batch batch;       /* batch.own */
    struct image_batch whole;       /* the same with the vision tower */
    struct packed_embeddings embeddings; /* stored embeddings that replace images; type 0: none */
    uint64_t encoder;               /* as in mask_batches */
    struct image_rows_options rows; /* with room for images or frames, and conversations as data */
    struct patch_rules patches, video_patches; /* of rows.reader, with images of any size */
};
/* Returns the batches of such a run; NULL: it is another one. */
struct image_batches *image_batches(const struct run *r);
/* Returns the number of images, of `features` tokens each, for which a row of conversations has
 * room: data.max_images. */
int64_t batch_images(const struct config *c, int64_t features);
/* Returns the patches for which a row has room, with images of any size, `unit` patches a token:
 * data.max_patches. */
int64_t batch_patches(const struct config *c, int64_t unit);

/* What a run of a model that matches masks with texts has beyond other runs (run_batches.feed). */
struct ground_batches {
    struct feed_reading reading;
    struct ground_batch batch;      /* batch.own */
    struct loader_options options;
};
/* Returns the batches of such a run; NULL: it is another one. */
struct ground_batches *ground_batches(const struct run *r);

/* What a run of PRS-Med has beyond other runs (run_batches.feed). */
struct prs_batches {
    struct feed_reading reading;
    struct prs_batch batch;            /* batch.own */
    struct question_rows_options rows; /* with a table as data */
};
/* Returns the batches of such a run; NULL: it is another one. */
struct prs_batches *prs_batches(const struct run *r);

/* What a run of a vision tower with a head has beyond other runs (run_batches.feed). */
struct head_batches {
    struct feed_reading reading;
    struct head_batch batch;           /* batch.own */
    struct image_list_options list;
};
/* Returns the batches of such a run; NULL: it is another one. */
struct head_batches *head_batches(const struct run *r);

/* The mask loss of a configuration; for PRS-Med its losses and their weights. */
struct mask_loss_options batch_loss(const struct config *c);
void batch_prs(const struct config *c, struct prs_batch *out);
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

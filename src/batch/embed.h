/*
 * embed.h: image embeddings that are computed once and kept in a packed store.
 *
 *     data pack --embeddings DIR   images ─ encoder ─ store ─┐
 *     train, eval                  ┌───────────────────────────┘
 *                                  └ loader ─ input image_embeddings ─ decoder
 *
 * The encoder is the image encoder of a mask model, whose store has images and masks too
 * (data.format packed); or the vision tower of a language model, whose store has the embeddings of
 * the images of conversations (data.images).
 *
 * A run that reads them has no encoder: neither its weights nor its activations are planned. That
 * is correct as long as the encoder would compute the same embeddings from the images. A store
 * therefore holds two hashes of its encoder, and a run requires the same:
 *
 *     weights   names, shapes and values (as f32) of all of its parameters
 *     layers    every op of its forward pass with shapes and attributes, from the image bytes on:
 *               the configuration, the image size, the normalisation; which weights are in 4 bits;
 *               for
 *               conversations how files become pixels: the image processor, the range, the frames
 *
 * It works for any family (models/masks.h, models/images.h) whose builder implements enum
 * model_part.
 */
#pragma once

#include "data/formats/packed.h"
#include "engine/run.h"
#include "io/file.h"
#include "models/images.h"
#include "models/masks.h"

struct dataset;

/* Chooses the embeddings that a run over data.train (an evaluation: over data.validation) reads, by
 * data.embeddings and the header of the first store; out->type 0: images. PL_USAGE: the
 * configuration does not allow them; the message names the change. Reads no weights. */
int embed_choose(const struct config *c, const struct model *m, int64_t side, bool train, struct packed_embeddings *out,
                 struct error *e);
/* Does the same for the images of conversations: by data.images (data.validation_images). `side` is
 * the model's. */
int embed_choose_images(const struct config *c, const struct model *m, bool train, struct packed_embeddings *out,
                        struct error *e);
/* Describes for training the embeddings that a store of this model would have, in f32; nothing is
 * read. PL_USAGE: the configuration does not allow them. */
int embed_assume(const struct config *c, const struct model *m, int64_t side, struct packed_embeddings *out,
                 struct error *e);
/* Checks that an opened dataset has the embeddings that the run was planned for, made with the
 * weights of its model. */
int embed_check(struct run *r, const struct dataset *set, struct error *e);
/* Does the same for where conversations have their images: a store (image_files_store), or files,
 * NULL. */
int embed_check_images(struct run *r, const struct dataset *store, const char *key, struct error *e);

/* --- the encoder (embed_describe.c) ----------------------------------------------------------- */

/* A configuration says which weights are in 4 bits, and how files become pixels; it may be NULL for
 * a mask model. */

/* The batch with which only the encoder is built, for one image: batch.own, which is in it. With
 * images of any size, `side` counts the patches for which it has room here and below; 0: those of
 * one token. */
struct encoder_batch {
    struct prompting prompts;
    struct image_batch images;
    bool of_images;
};
struct encoder_batch embed_batch(const struct model *m, int64_t side);
const void *embed_own(const struct encoder_batch *b, size_t *bytes);
/* Builds the forward from one image to its embedding. */
int embed_build(const struct model *m, int64_t side, struct graph *g, struct error *e);
/* Fills the shape and the hash of the layers of the encoder in `g`, all of whose parameters become
 * frozen. */
int embed_expect(const struct config *c, const struct model *m, struct graph *g, struct packed_embeddings *out,
                 struct error *e);
/* Prints "bf16 [576,1024]". */
const char *embed_print(const struct packed_embeddings *x, char out[64]);

/* "vision_encoder.*": the patterns of model.freeze, separated by commas, that freeze what makes
 * embeddings. */
int embed_pattern(const struct model *m, int64_t side, char out[64], struct error *e);
void embed_pattern_of(const struct graph *encoder, char out[64]);

/* Fills both hashes and the shape of one embedding; type and model are not changed. */
int embed_describe(const struct config *c, const struct model *m, int64_t side, struct packed_embeddings *out,
                   struct error *e);

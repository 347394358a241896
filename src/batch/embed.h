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
#include "models/contents.h"
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

/* Returns what a batch holds with which only the encoder is built, for one image. With images of
 * any size, `side` counts the patches for which it has room here and below; 0: those of one
 * token. */
struct contents embed_contents(const struct model *m, int64_t side);
/* Reads how images of any size become patches. */
struct patch_rules;
int embed_rules(const struct config *c, const struct model *m, struct patch_rules *out, struct error *e);
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

/* --- runs of an encoder, for a packed store with embeddings (embed_make.c) -------------------- */

struct embedder {
    struct config config;
    struct run run;
    struct packed_embeddings about; /* for packed_embed */
    int64_t side;                   /* of the images */
    id output;
    size_t bytes;                   /* of one embedding */
    struct bump memory;             /* of the table of its pixels */
};
/* Makes the configuration of an encoder's run: see embed_open. The caller calls config_free in any
 * case. */
int embed_config(struct config *c, const char *folder, const char *dtype, const struct names *set, struct error *e);
/* Opens its model, which has image embeddings; *side 0 becomes the model's. The caller closes it if
 * this succeeds. */
int embed_model(const struct config *c, const char *folder, int64_t *side, struct model *m, struct error *e);
/* Prepares the encoder of a model folder for images of `side`, one at a time; 0: the model's, which
 * that of a vision tower always is. For images of any size it is the patches of the largest.
 * `dtype`: "f32" or "bf16", the precision of computation and result; NULL: the machine's default.
 * `set`: as --set, for device and memory keys. On failure nothing needs closing. */
int embed_open(struct embedder *m, const char *folder, int64_t side, const char *dtype, const struct names *set,
               struct error *e);
/* Computes the embedding of an image [side][side][3], whose first rows x columns hold pixels, into
 * to[bytes]. */
int embed_image(struct embedder *m, const uint8_t *image, uint32_t rows, uint32_t columns, void *to, struct error *e);
/* Does the same for a vision tower, from the pixel values that it takes. */
int embed_pixels(struct embedder *m, const uint8_t *pixels, void *to, struct error *e);
/* Does the same for a tower that takes images of any size: the embedding of each token, in the
 * order of the image processors, which is that of the patches. */
int embed_patches(struct embedder *m, const uint8_t *patches, struct image_grid grid, void *to, struct error *e);
/* PL_USAGE, with the name of the image: the embedding has NaN or infinite values. */
int embed_finite(const struct embedder *m, const void *embedding, const char *name, struct error *e);
void embed_close(struct embedder *m);

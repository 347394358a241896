/*
 * embed.h: image embeddings that are computed once and kept in a packed store.
 *
 *     data pack --embeddings DIR   images ─ encoder ─ store ─┐
 *     train, eval                  ┌───────────────────────────┘
 *                                  └ loader ─ input image_embeddings ─ decoder
 *
 * A run that reads them has no encoder: neither its weights nor its activations are planned. That
 * is right as long as the encoder would have made the same of the images, so a store carries
 * two hashes of the encoder that it was made with, and a run asks for the same:
 *
 *     weights   names, shapes and values (as f32) of all of its parameters
 *     layers    every op of its forward with shapes and numbers, from the bytes of an image on:
 *               the configuration, the side of the images, their normalisation
 *
 * Any family with mask_side whose builder knows enum model_part.
 */
#ifndef EMBED_H
#define EMBED_H

#include "io/file.h"
#include "train/run.h"

struct dataset;

/* --- using them (embed.c) --------------------------------------------------------------- */

/* Which embeddings a run over data.train (an evaluation: over data.validation) reads, by
 * data.embeddings and the head of the first store; out->type 0: images. PL_USAGE: they cannot be
 * used as the configuration is, and what would have to change. Reads no weights. */
int embed_choose(const struct config *c, const struct model *m, int64_t side, bool train, struct packed_embeddings *out, struct error *e);
/* Whether an opened data set has those that the run was planned for, made by the weights of its
 * model. */
int embed_check(struct run *r, const struct dataset *set, struct error *e);

/* Both hashes, and the shape of one embedding; type and model stay. */
int embed_describe(const struct model *m, int64_t side, struct packed_embeddings *out, struct error *e);

/* --- making them (embed_make.c) ----------------------------------------------------------- */

struct embedder {
    struct config config;
    struct run run;
    struct packed_embeddings about; /* for packed_embed */
    id output;
    size_t bytes;                   /* of one */
};
/* Makes the encoder of a model folder ready for images of `side`, one at a time. `dtype`: "f32" or
 * "bf16", what is computed and kept; NULL: what the machine computes in. `set`: as --set, for
 * device and memory. On failure nothing needs closing. */
int embed_open(struct embedder *m, const char *folder, int64_t side, const char *dtype, const struct names *set, struct error *e);
/* The embedding of an image [side][side][3], of which rows x columns are its, into to[bytes]. */
int embed_image(struct embedder *m, const uint8_t *image, uint32_t rows, uint32_t columns, void *to, struct error *e);
void embed_close(struct embedder *m);

#endif

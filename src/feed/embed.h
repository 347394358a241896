/*
 * embed.h: image embeddings that are computed once and kept in a packed store.
 *
 *     data pack --embeddings DIR   images ─ encoder ─ store ─┐
 *     train, eval                  ┌───────────────────────────┘
 *                                  └ loader ─ input image_embeddings ─ decoder
 *
 * A run that reads them has no encoder: neither its weights nor its activations are planned. That
 * is correct as long as the encoder would compute the same embeddings from the images. A store
 * therefore holds two hashes of its encoder, and a run requires the same:
 *
 *     weights   names, shapes and values (as f32) of all of its parameters
 *     layers    every op of its forward pass with shapes and attributes, from the image bytes on:
 *               the configuration, the image size, the normalisation
 *
 * It works for any family of mask models (models/masks.h) whose builder implements enum model_part.
 */
#ifndef EMBED_H
#define EMBED_H

#include "data/formats/packed.h"
#include "engine/run.h"
#include "io/file.h"

struct dataset;

/* Chooses the embeddings that a run over data.train (an evaluation: over data.validation) reads, by
 * data.embeddings and the header of the first store; out->type 0: images. PL_USAGE: the
 * configuration does not allow them; the message names the change. Reads no weights. */
int embed_choose(const struct config *c, const struct model *m, int64_t side, bool train, struct packed_embeddings *out, struct error *e);
/* Checks that an opened dataset has the embeddings that the run was planned for, made with the
 * weights of its model. */
int embed_check(struct run *r, const struct dataset *set, struct error *e);

/* The embeddings that a store of this model would have, in f32; nothing is read. */
int embed_assume(const struct model *m, int64_t side, struct packed_embeddings *out, struct error *e);
/* "vision_encoder.*": the pattern of model.freeze that freezes the encoder. */
int embed_pattern(const struct model *m, int64_t side, char out[64], struct error *e);

/* Fills both hashes and the shape of one embedding; type and model are not changed. */
int embed_describe(const struct model *m, int64_t side, struct packed_embeddings *out, struct error *e);

#endif

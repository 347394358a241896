/*
 * embed_make.h: runs the encoder of a model on images, for a packed store with embeddings
 * (batch/embed.h).
 */
#pragma once

#include "data/formats/packed.h"
#include "engine/run.h"
#include "io/file.h"
#include "models/image_grid.h"

struct embedder {
    struct config config;
    struct run run;
    struct packed_embeddings about; /* for packed_embed */
    int64_t side;                   /* of the images */
    id output;
    size_t bytes;                   /* of one embedding */
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
int embed_pixels(struct embedder *m, const float *pixels, void *to, struct error *e);
/* Does the same for a tower that takes images of any size: the embedding of each token, in the
 * order of the image processors, which is that of the patches. */
int embed_patches(struct embedder *m, const float *patches, struct image_grid grid, void *to, struct error *e);
/* PL_USAGE, with the name of the image: the embedding has NaN or infinite values. */
int embed_finite(const struct embedder *m, const void *embedding, const char *name, struct error *e);
void embed_close(struct embedder *m);

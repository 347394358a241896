/*
 * embed_make.h: runs the encoder of a model on images, for a packed store with embeddings
 * (feed/embed.h).
 */
#ifndef EMBED_MAKE_H
#define EMBED_MAKE_H

#include "data/formats/packed.h"
#include "engine/run.h"
#include "io/file.h"

struct embedder {
    struct config config;
    struct run run;
    struct packed_embeddings about; /* for packed_embed */
    id output;
    size_t bytes;                   /* of one embedding */
};
/* Prepares the encoder of a model folder for images of `side`, one at a time. `dtype`: "f32" or
 * "bf16", the precision of computation and result; NULL: the machine's default. `set`: as --set,
 * for device and memory keys. On failure nothing needs closing. */
int embed_open(struct embedder *m, const char *folder, int64_t side, const char *dtype, const struct names *set, struct error *e);
/* The embedding of an image [side][side][3], whose first rows x columns hold pixels, into
 * to[bytes]. */
int embed_image(struct embedder *m, const uint8_t *image, uint32_t rows, uint32_t columns, void *to, struct error *e);
void embed_close(struct embedder *m);

#endif

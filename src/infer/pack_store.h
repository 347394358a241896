/*
 * pack_store.h: converts samples of any format to a store that is read without decoding
 * (data/formats/packed.h), or to an index with a memory map (data/formats/memmap.h); and the images
 * of conversations to a store of their embeddings. The output appears when it is complete.
 */
#pragma once

#include "data/dataset.h"
#include "data/formats/packed.h"
#include "io/file.h"

enum { PACK_REPORTED = 20 }; /* unusable samples that are printed */

struct pack_options {
    const struct dataset_options *set; /* how the samples are read; of conversations only `images` */
    const struct names *paths;
    const char *output;
    uint32_t side, cells;        /* of images and of masks */
    bool memmap;                 /* the layout with a memory map */
    const char *encoder, *dtype; /* a model folder, whose embeddings are stored, and their dtype; NULL: none; its own */
    const struct names *keys;    /* key=value of the encoder's run */
};

struct pack_result {
    uint64_t samples, masks;     /* written; conversations that were read */
    uint64_t left_out, bad_masks; /* samples or images, and masks, that cannot be used */
    uint64_t images, count;      /* of conversations: images, and their embeddings */
    struct packed_embeddings embeddings;
    uint64_t bytes;              /* of one of them */
    double seconds;
};

/* Packs images with masks. Prints the first unusable samples, which are left out. The encoder is
 * opened first, so that its errors appear before any file is written. */
int pack_samples(const struct pack_options *o, struct pack_result *out, struct error *e);
/* Packs the embeddings of the images of conversations, which are the files of `paths`. An image
 * that cannot be read is stored with its reason. */
int pack_images(const struct pack_options *o, struct pack_result *out, struct error *e);

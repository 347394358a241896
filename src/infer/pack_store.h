/*
 * pack_store.h: converts samples of any format to a store that is read without decoding
 * (data/formats/packed.h), or to an index with a memory map (data/formats/memmap.h); and the images
 * of conversations to a store of their embeddings. The output appears when it is complete.
 */
#pragma once

#include "data/dataset.h"
#include "data/formats/packed.h"
#include "data/samples.h"
#include "io/file.h"

enum { PACK_REPORTED = 20 }; /* unusable samples that are printed */

struct pack_options {
    const struct dataset_options *set; /* how the samples are read; of conversations only `images` */
    const struct names *paths;
    const char *output;
    uint64_t size, masks_size;   /* as given; 0: those of... */
    const char *model;           /* ...a folder or a preset; NULL: of the encoder, else common sizes */
    const char *layout;          /* plimsoll, or memmap: the one with a memory map */
    uint32_t side, cells;        /* of images and of masks, and the layout, as `pack` finds them */
    bool stretched;              /* images fill the square, as the model takes them */
    bool memmap;
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

/* Packs the embeddings of the images of conversations (pack_images.c), which are the files of
 * `paths`. An image that cannot be read is stored with its reason. */
int pack_images(const struct pack_options *o, struct pack_result *out, struct error *e);
/* Packs what the options say, and prints what it was. */
int pack(struct pack_options *o, struct samples_options *samples, struct error *e);

/*
 * prepare.h: converts downloaded shards to shards for training: plain sorted tars of images with
 * their annotations, each with an index. Every image is decoded once as a check.
 */
#pragma once

#include "base/base.h"
#include "base/progress.h"
#include "io/file.h"

struct prepare {
    const char *out;    /* folder */
    uint64_t long_side; /* larger images are resized to it, with their masks; 0: keep the bytes */
    uint64_t quality;   /* of the JPEGs of resized images */
    /* results */
    uint64_t read, written, dropped, bytes_in, bytes_out; /* pairs; bytes of their files */
    uint64_t existing;                                    /* outputs that existed already and were kept */
    struct progress progress;                             /* in the current shard */
};

/* Rewrites the shards of `paths`: tars, also compressed with gzip, folders of them, folders of
 * extracted files, globs. Prints a line for each shard and each unusable pair, which is left out.
 * An output gets its final name when it is complete; one that exists already is kept, so an
 * interrupted run can be continued. Where no pair is usable no file is written. */
int prepare_shards(struct prepare *p, const struct names *paths, struct error *e);

/* Verification reads every sample of a dataset once, with the loader's own code and its limits.
 * Training rejects exactly the samples that are bad here. */
struct samples;
struct dataset;
struct verified {
    uint64_t masks, left_out; /* that can be used; malformed ones, which training leaves out */
    uint64_t bad, differ;     /* samples: unusable; with a note: training uses them */
    uint64_t broken;          /* shards with damage or unpaired files */
};
/* Prints a line for each bad sample, each note and each broken shard, in order, and counts them.
 * `room`: bytes for a sample, data.sample_memory; 0: the default. */
void verify_samples(const struct samples *all, uint64_t room, struct verified *out);

/* What a store of the embeddings of conversations' images has. */
struct embedding_counts {
    uint64_t embeddings, unreadable, damaged;
};
/* Counts them. `check`: compares the checksums, and prints what cannot be used. */
void verify_embeddings(const struct dataset *d, bool check, struct embedding_counts *n);

/* --- make ------------------------------------------------------------------------------------ */

/* A synthetic dataset in SA-1B's format (prepare/synth.h), as tar shards or folders.
 *
 * All threads draw the samples of a block, which is then written in order: the dataset is the
 * same for any number of threads, and memory holds one block. Unless `sorted`, the files of a block
 * (.jpg and .json) are shuffled, as in SA-1B's shards.
 *
 * DIR/.make holds the options until the dataset is whole: after a kill the same options continue,
 * with the same bytes as if it had not been killed.
 */
/* --- synth ----------------------------------------------------------------------------------- */

/* Synthetic images with exact masks: overlapping textured shapes on a textured ground,
 * and the mask of the visible part of each shape, in SA-1B's format.
 *
 * Image `id` of a seed is a pure function of the options: any thread can draw any image, and the
 * result is always the same.
 */
struct synth_options {
    uint64_t seed;
    uint32_t width, height;
    uint32_t masks; /* shapes that are drawn; a shape that is hardly visible gets no annotation */
};

struct synth_scene {
    struct synth_options options;
    uint64_t id;
    uint8_t *rgb;    /* [height][width][3] */
    uint16_t *owner; /* [height][width]: 0 is the ground, i + 1 shape i */
    struct synth_shape *shapes;
};

enum { SYNTH_MAX_MASKS = 4096, SYNTH_MAX_SIDE = 16384 };

/* Returns PL_USAGE when the options are invalid. */
int synth_check(const struct synth_options *o, struct error *e);
void synth_draw(struct synth_scene *s, const struct synth_options *o, uint64_t id);
void synth_free(struct synth_scene *s);
/* Returns the annotation file, with SA-1B's keys in SA-1B's order; returns the number of masks.
 * bbox is one pixel short in width and height, as in SA-1B. */
uint32_t synth_json(const struct synth_scene *s, struct text *out);
/* Encodes the image as in SA-1B: JPEG, quality 95, 4:2:0. */
int synth_jpeg(const struct synth_scene *s, struct text *out, struct error *e);

struct make_set {
    const char *dir;
    struct synth_options synth;
    uint64_t images, shards;
    bool sorted, extracted;
    /* the result */
    uint64_t masks, bytes; /* that were written */
    uint64_t there;        /* shards of an earlier process that was killed */
    /* private */
    uint64_t key;          /* of the order */
    struct text options;   /* that determine the dataset; of DIR/.make */
    struct progress progress;
};
/* Writes the dataset. PL_USAGE: the folder has another one. */
int make_set(struct make_set *m, struct error *e);

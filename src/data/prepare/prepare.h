/*
 * prepare.h: converts downloaded shards to shards for training: plain sorted tars of images with
 * their annotations, each with an index. Every image is decoded once as a check.
 */
#pragma once

#include "base/progress.h"
#include "io/file.h"
#include "base/base.h"

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

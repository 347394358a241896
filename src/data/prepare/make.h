/*
 * make.h: a synthetic dataset in SA-1B's format (formats/synth.h), as tar shards or folders.
 *
 * All threads draw the samples of a block, which is then written in order: the dataset is the
 * same for any number of threads, and memory holds one block. Unless `sorted`, the files of a block
 * (.jpg and .json) are shuffled, as in SA-1B's shards.
 *
 * DIR/.make holds the options until the dataset is whole: after a kill the same options continue,
 * with the same bytes as if it had not been killed.
 */
#pragma once

#include "base/progress.h"
#include "data/formats/synth.h"

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

/*
 * train_state.h: the training state of a checkpoint: a resumed run continues to the bit.
 *
 *     DIR/state.safetensors   "master.<parameter>"  every trained weight, as in memory, and every
 *                             running statistic that the step updates
 *                             "<parameter>.exp_avg" and so on: the optimizer state
 *     DIR/state.json          step, position in the data, facts about the run, and checksums of
 *                             both files; those of an older program have none
 *
 * Neither file depends on the plan: a run may resume with another precision, micro-batch or
 * placement. A weight without a master weight (bf16-pure) is stored as it is; a resumed run with
 * master weights starts from those values, and in the other direction they are rounded. Frozen
 * weights are not stored; they are read from the model's folder (or preset), as at the start.
 */
#pragma once

#include "run/device.h"

struct train_state {
    uint64_t step;        /* retired steps */
    uint64_t adam_t;      /* updates done: steps without the skipped ones */
    uint64_t position;    /* of the next sample, over all epochs */
    uint64_t seed;
    uint64_t broken;      /* number of unreadable samples that were replaced */
    uint64_t data;        /* fingerprint of the samples; 0: not known */
    uint64_t model;       /* weights.fingerprint; 0: not known */
    uint64_t skipped;     /* steps whose update was skipped */
    /* Only f16 (train_step.c): */
    float scale;          /* loss scale of the next step; 0: none yet */
    uint64_t good_steps;  /* updates since the scale last changed */
    uint64_t in_a_row;    /* steps skipped since the last update */
};

/* Writes both files into the existing folder `dir` and syncs them. Copies through `staging`
 * (aligned to 8, at least TRANSFER_LEAST bytes) with the device's read. */
int state_save(const char *dir, const struct train_state *s, const struct graph *g, struct device *d,
               const struct tape *t, void *staging, uint64_t staging_bytes, struct error *e);

/* Reads only state.json: enough to decide whether a run can be resumed. */
int state_read(const char *dir, struct train_state *s, struct error *e);

/* Reads both files: master weights and optimizer state to the bit; working copies are rounded from
 * the master weights. Names, shapes and dtypes must be exactly this graph's; PL_USAGE names the
 * difference, and a wrong checksum the file, before anything in the arenas is changed. */
int state_load(const char *dir, struct train_state *s, const struct graph *g, struct device *d,
               const struct tape *t, void *staging, uint64_t staging_bytes, struct error *e);

/* Sets the optimizer state of a new run to zeros. */
int state_reset(const struct graph *g, struct device *d, const struct tape *t, void *staging, uint64_t staging_bytes,
                struct error *e);

/* Returns an upper bound of the bytes that state_save writes. */
uint64_t state_bytes(const struct graph *g);

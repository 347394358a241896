/*
 * state.h: what a run needs to go on as if it had never stopped.
 *
 *     DIR/state.safetensors   "master.<parameter>"  every trained weight, as in memory, and every
 *                             running statistic that the step moves
 *                             "<parameter>.exp_avg" and so on: the optimizer's state
 *     DIR/state.json          step, position in the data, and what the run was
 *
 * Neither depends on the plan: a run may go on with another precision, micro-batch
 * or placement. A weight without a master (bf16-pure) is there as it is; a run with masters
 * begins with those values, and the other way round they are rounded. Frozen weights are not in it; they come from the model's folder (or
 * its preset), as at the start.
 */
#ifndef STATE_H
#define STATE_H

#include "run/device.h"

struct train_state {
    uint64_t step;        /* steps done */
    uint64_t adam_t;      /* updates done: steps without the skipped ones */
    uint64_t position;    /* of the next sample, over all epochs */
    uint64_t seed;
    uint64_t broken;      /* samples that were replaced because they could not be read */
    uint64_t data;        /* fingerprint of the samples; 0: not known */
    uint64_t skipped;     /* steps whose update was predicated off */
    /* Of f16 (scaler.h): */
    float scale;          /* what the next step's loss is multiplied by; 0: none yet */
    uint64_t good_steps;  /* updates since the scale last changed */
    uint64_t in_a_row;    /* steps skipped since the last update */
};

/* Writes both files into `dir`, which exists; synced. Through `staging` (aligned to 8, at
 * least TRANSFER_LEAST bytes) and the device's read. */
int state_save(const char *dir, const struct train_state *s, const struct graph *g, struct device *d,
               const struct tape *t, void *staging, uint64_t staging_bytes, struct error *e);

/* state.json alone: enough to see whether a run can be resumed. */
int state_read(const char *dir, struct train_state *s, struct error *e);

/* Reads both files: masters and optimizer state exactly as they were; working copies are
 * rounded from the masters. Names, shapes and dtypes must be this graph's, no more and no
 * fewer; PL_USAGE says what differs, before anything in the arenas is changed. */
int state_load(const char *dir, struct train_state *s, const struct graph *g, struct device *d,
               const struct tape *t, void *staging, uint64_t staging_bytes, struct error *e);

/* The optimizer's state of a new run: zeros. */
int state_reset(const struct graph *g, struct device *d, const struct tape *t, void *staging, uint64_t staging_bytes,
                struct error *e);

/* Bytes that state_save writes, or a little more. */
uint64_t state_bytes(const struct graph *g);

#endif

/*
 * train.h: the training loop.
 */
#ifndef TRAIN_H
#define TRAIN_H

#include "train/config.h"

struct train_options {
    const char *plan;        /* a plan file to follow; NULL: search */
    bool resume;
    const char *command;     /* what to type to go on, for the message of an interrupted run */
};

/* What a finished run says of itself. */
struct train_summary {
    int64_t steps, first_step;
    double loss, eval_loss;  /* of the last step; NaN when never evaluated */
    int64_t best_step;       /* of checkpoints/best; -1: none */
    double best_loss;
    double seconds, tokens_per_second;
    uint64_t arena_bytes, allocated_bytes, host_bytes;
    uint64_t allocations;    /* ours, after the first step began */
    uint64_t smallest_budget; /* with PL_NOFIT: what would fit */
    char model[4200];
};

int train_run(const struct config *c, const struct train_options *o, struct train_summary *out, struct error *e);

#endif

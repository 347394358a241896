/*
 * train.h: the training loop.
 */
#ifndef TRAIN_H
#define TRAIN_H

#include "train/config.h"

struct worst; /* score.h */

/* A step that was taken. */
struct train_event {
    int64_t step, total;     /* steps done, steps of the whole run */
    double loss, learning_rate, gradient_norm, seconds;
    double units;            /* tokens or images trained on in this step; 0: the model knows none */
    double loss_scale;       /* f16: of this step; 0: another precision */
    bool skipped;            /* f16: gradients were not finite, and nothing was updated */
};

struct train_options {
    const char *plan;        /* a plan file to follow; NULL: search */
    bool resume;
    const char *command;     /* what to type to go on, for the message of an interrupted run */
    bool signals;            /* SIGTERM and SIGINT end the run after the step it is in */
    bool progress;           /* a line on stderr */
    const struct definition *define; /* the model, instead of model.preset; NULL: none */
    /* After each step, once its metrics are written; not 0 ends the run as a signal does,
     * with PL_STOPPED. */
    int (*on_step)(void *user, const struct train_event *event);
    void *user;
    struct worst *worst;     /* [train.worst]: where the worst masks of the last evaluation go; NULL: nobody asks */
};

/* What a finished run says of itself. */
struct train_summary {
    int64_t steps, first_step;
    double loss, eval_loss;  /* of the last step; NaN when never evaluated */
    int64_t best_step;       /* of checkpoints/best; -1: none */
    double best_loss;
    double seconds, units_per_second;
    const char *unit;        /* "tokens" or "images" */
    double loss_scale;       /* f16: of the step to come; 0: another precision */
    uint64_t skipped_steps;  /* f16: over the whole run */
    uint64_t broken_samples; /* that others took the place of, over the whole run */
    uint64_t arena_bytes, allocated_bytes, host_bytes;
    uint64_t allocations;    /* ours, after the first step began */
    uint64_t smallest_budget; /* with PL_NOFIT: what would fit... */
    const char *refused_by;   /* ... and the key of the bound that is too small */
    uint32_t worst;          /* of train_options.worst */
    char model[4200];
};

int train_run(const struct config *c, const struct train_options *o, struct train_summary *out, struct error *e);

/* --- the loop's parts, for a program that brings its own batches --------------------- */

struct trainer;
struct run;

/* `c` and `o` stay the caller's and must outlive it. */
struct trainer *trainer_open(const struct config *c, const struct train_options *o);
void trainer_close(struct trainer *t);
/* Plans; again when it did before. On PL_NOFIT the smallest plan is in the run. */
int trainer_plan(struct trainer *t, struct error *e);
/* Allocates, loads the weights, clears the optimizer's state. */
int trainer_start(struct trainer *t, struct error *e);
struct run *trainer_run(struct trainer *t);
/* What losses are divided by; 0: the default, samples, or tokens where the model has a family. */
void trainer_count(struct trainer *t, double count);
/* One step on the inputs as they were written. */
int trainer_step(struct trainer *t, struct train_event *out, struct error *e);
/* An output of the evaluation program over those inputs; run_forward says how. */
int trainer_forward(struct trainer *t, uint32_t output, void *to, struct error *e);

#endif

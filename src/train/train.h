/*
 * train.h: the training loop.
 */
#pragma once

#include "config/config.h"
#include "engine/ticket.h"
#include "infer/text_scores.h"

struct worst; /* score.h */
struct ranks; /* run/ranks.h */

/* What a rank has used, for the summary. */
struct rank_summary {
    char host[64];
    double seconds;          /* of a step, on average, without waiting for others */
    uint64_t arena_bytes, host_bytes, allocations;
    uint64_t resident_peak;  /* of the process */
    int64_t growth;          /* of its anonymous memory from the third step to the last */
};

/* A retired step. */
struct train_event {
    int64_t step, total;     /* retired steps, steps of the whole run */
    double loss, learning_rate, gradient_norm, seconds;
    double units;            /* tokens or images trained on in this step; 0: the model has no unit */
    double loss_scale;       /* f16: loss scale of this step; 0: another precision */
    bool skipped;            /* f16: gradients were not finite, and nothing was updated */
    double part[LOSS_PARTS]; /* of a model with several losses: each (tickets.part_name) */
};

struct run;
struct train_options {
    const char *plan;        /* a plan file to follow; NULL: search */
    bool resume;
    bool resume_auto;        /* with resume: begins where train.out has no checkpoint */
    const char *command;     /* the command that resumes, for the message of an interrupted run */
    bool signals;            /* SIGTERM and its like (trainer.h) end the run after the current step */
    bool progress;           /* a line on stderr */
    /* of the predicted time of the run, which is said if it is long (calibrate/calibrate.h);
     * NULL: nothing is said */
    double (*time_scale)(const struct planned *r);
    const struct definition *define; /* the model, instead of model.preset; NULL: none */
    /* Called after each step, after its metrics are written; nonzero ends the run like a signal,
     * with PL_STOPPED, once the steps in flight are retired. */
    int (*on_step)(void *user, const struct train_event *event);
    void *user;
    struct ranks *ranks;     /* NULL: this is the only process */
    struct rank_summary *each; /* [ranks]: receives what each of them has used; NULL: not needed */
    /* [train.worst]: receives the masks with the lowest IoU of the last evaluation; NULL: not
     * needed */
    struct worst *worst;
};

/* The results of a finished run. */
struct train_summary {
    int64_t steps, first_step;
    double loss, eval_loss;  /* of the last step; NaN without an evaluation */
    uint64_t prompts;        /* that the last evaluation answered (train.eval_samples); 0: none... */
    struct text_score answers; /* ...and the scores of the answers */
    int64_t best_step;       /* of checkpoints/best; -1: none */
    double best_loss;
    double seconds;          /* of this process, from its first step on: with evaluations and saves */
    double step_seconds, units_per_second; /* of its steps only */
    const char *unit;        /* "tokens" or "images" */
    double loss_scale;       /* f16: loss scale of the next step; 0: another precision */
    uint64_t skipped_steps;  /* f16: over the whole run */
    uint64_t broken_samples; /* broken samples that were replaced, over the whole run */
    uint64_t small_masks;    /* masks too small to be trained on, in this process */
    uint64_t arena_bytes, allocated_bytes, host_bytes; /* with PL_NOFIT host_bytes is that of the smallest plan */
    uint64_t outside_bytes;  /* GPU memory that NCCL took, beside the plan */
    const char *host_name;   /* of host_bytes: host memory, or offload file */
    uint64_t allocations;    /* host allocations by this program after the first step began */
    uint64_t smallest_budget; /* with PL_NOFIT: the smallest that fits... */
    const char *refused_by;   /* ...and the key of the bound that is too small */
    uint32_t worst;          /* entries of train_options.worst */
    char model[4200];
};

int train_run(const struct config *c, const struct train_options *o, struct train_summary *out, struct error *e);
/* Prints a summary. `each`: what the ranks have used; ranks 0: this is the only process. */
void train_summary_print(const struct train_summary *s, const struct rank_summary *each, int ranks, bool json);

/* --- single calls, for a program with its own batches --------------------------------- */

struct trainer;

/* `c` and `o` belong to the caller and must outlive the trainer. */
struct trainer *trainer_open(const struct config *c, const struct train_options *o);
void trainer_close(struct trainer *t);
/* Plans; may be called again. On PL_NOFIT the smallest plan is in the run. */
int trainer_plan(struct trainer *t, struct error *e);
/* Allocates memory, loads the weights, zeroes the optimizer state. */
int trainer_start(struct trainer *t, struct error *e);
struct run *trainer_run(struct trainer *t);
/* Sets the divisor of the losses with the count `name` (graph_count; "": the one without a name).
 * 0: the default: samples, or tokens for a built-in model family. False: the planned model has no
 * such count. */
bool trainer_count(struct trainer *t, const char *name, double count);
/* Begins a write of the program's own batch: with a step in flight it is the next step's. */
int trainer_write_begin(struct trainer *t, struct error *e);
/* Submits a step on the inputs that were written; waits for the oldest one and retires it. */
int trainer_submit(struct trainer *t, struct error *e);
int trainer_retire(struct trainer *t, struct train_event *out, struct error *e);
/* Returns the number of steps that may be in flight: 1 on a device that runs them when they are
 * submitted. */
uint32_t trainer_most_in_flight(const struct trainer *t);
uint32_t trainer_in_flight(const struct trainer *t);
/* Computes an output of the evaluation program over the inputs (run_forward). No step is in flight,
 * as for all functions below. */
int trainer_forward(struct trainer *t, uint32_t output, void *to, struct error *e);
/* Computes loss and gradients, and updates nothing. The plan's step is not fused. */
int trainer_backward(struct trainer *t, float *loss, struct error *e);
/* Returns the factor by which stored gradients are multiplied: the loss scale of f16. */
double trainer_gradient_scale(const struct trainer *t);
/* Writes weights, optimizer state and step into the existing folder; reads them. */
int trainer_write_state(struct trainer *t, const char *dir, struct error *e);
int trainer_read_state(struct trainer *t, const char *dir, struct error *e);
/* Returns the number of retired steps, those of the loaded state included. */
int64_t trainer_steps(const struct trainer *t);

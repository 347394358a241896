/*
 * run.h: a configuration made ready to run: model, plan, device, tape, weights.
 *
 *     run_plan     model and graph; the plan, searched or given
 *     run_start    arenas allocated with the planned size, tape recorded, weights in
 *     run_step ... the host's side of one step
 */
#ifndef RUN_H
#define RUN_H

#include "models/model.h"
#include "models/weights.h"
#include "plan/file.h"
#include "run/device.h"
#include "train/config.h"

struct run {
    const struct config *config;
    struct model model;
    struct batch batch;          /* B is set per build */
    struct graph graph;
    struct plan plan;
    struct device device;
    struct tape tape;
    struct weights weights;
    struct bump memory;          /* of the update rules */
    int effective_batch;
    uint64_t budget;             /* 0: none */
    bool has_graph, has_tape, has_device, has_weights;
};

/* What a command may want beyond the configuration. */
struct run_options {
    const char *plan;            /* a plan file to follow instead of searching */
    bool train;                  /* false: one forward and backward, outputs kept, no update */
    int64_t B, T;                /* with train false: the batch's own size */
    const char *loss_output;     /* of a tower; NULL: its own choice */
};

/* Opens the model and finds the plan. On PL_NOFIT the smallest plan is in `r`. */
int run_plan(struct run *r, const struct config *c, const struct run_options *o, struct error *e);
/* Allocates, records, loads the weights (`load` false: a resume fills them). `spill` is
 * the folder for the second space's file. */
int run_start(struct run *r, const char *spill, bool load, struct error *e);
void run_close(struct run *r);

/* What plan_write needs to know. */
struct plan_note run_note(const struct run *r, bool fits);
/* The buffer inside the arena for moving weights; PLAN_STAGING bytes. */
void *run_staging(const struct run *r);

/* Host side of a step: puts the step block; runs a program; reads a scalar output. */
int run_put_step(struct run *r, const struct step_block *b, struct error *e);
int run_program(struct run *r, enum program p, struct error *e);
int run_read(struct run *r, id tensor, void *to, struct error *e);
/* Writes samples [from, from + n) of an input, as the graph keeps them. */
int run_put_rows(struct run *r, const char *input, int64_t from, int64_t n, const void *rows, struct error *e);

/* Runs the step again, node by node, and names the first tensor that is not finite;
 * "" when there is none. */
void run_find_nonfinite(struct run *r, char *out, size_t room);
/* Names a gradient that is not finite, as the step left it; "" when there is none. */
void run_find_nonfinite_gradient(struct run *r, char *out, size_t room);

#endif

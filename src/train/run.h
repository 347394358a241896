/*
 * run.h: a configuration made ready to run: model, plan, device, tape, weights.
 *
 *     run_plan     model and graph; the plan, searched or given
 *     run_start    arenas allocated with the planned size, tape recorded, weights in
 *     run_step ... the host's side of one step
 */
#ifndef RUN_H
#define RUN_H

#include "data/packed.h"
#include "models/model.h"
#include "train/weights.h"
#include "plan/file.h"
#include "run/device.h"
#include "train/config.h"

enum { REMEDY_MOST = 3 };

struct run {
    const struct config *config;
    struct model model;
    struct batch batch;          /* B is set per build */
    struct graph graph;
    struct plan plan;
    struct source source;        /* of the graph, for searches of the space */
    struct plan_space space;     /* with has_space: all settings that the plan was chosen from */
    struct device device;
    struct tape tape;
    struct weights weights;
    struct bump memory;          /* of the update rules */
    int effective_batch;
    uint64_t budget;             /* 0: none */
    uint64_t host_budget;        /* of host memory; 0: none */
    uint64_t loader_bytes;       /* of run_loader_memory; 0: none */
    struct loader *loader;       /* in it, while a feed of images is open: training and validation share it */
    struct packed_embeddings embeddings; /* that the data bring in the place of images; type 0: they do not */
    uint64_t encoder;            /* hash of the encoder's weights, where that was asked for (embed.h); 0: not yet */
    bool has_space, has_graph, has_tape, has_device, has_weights;
    bool ahead;                  /* run_write_input writes the batch of the step to come... */
    bool ahead_ready;            /* ...which is there, or on its way, and nothing was written over it */
    bool offload_auto;              /* memory.offload is the planner's to choose */
    unsigned away;               /* enum offload, where it is not */
    bool defined;                /* by run_options.define */
    bool alone;                  /* PLIMSOLL_PIPELINE=0: a step is taken before the next is asked for */
    bool forward;                /* run_options.forward */
    struct remedy remedy[REMEDY_MOST]; /* where nothing fits: what would */
    int n_remedies;
};

/* What a command may want beyond the configuration. */
struct run_options {
    const char *plan;            /* a plan file to follow instead of searching */
    bool train;                  /* false: one forward and backward, outputs kept, no update */
    bool forward;                /* with train false: the outputs alone, no loss and no gradient */
    bool evaluate;               /* the same on batches of the configuration's data: loss, and statistics of masks */
    int64_t B, T;                /* with train false: the batch's own size */
    const struct definition *define; /* the model, instead of model.preset; NULL: none */
    const char *loss_output;     /* of a tower; NULL: its own choice */
    struct prompting prompts;    /* of a model that is asked for masks */
    bool tell;                   /* what techniques saved and cost is wanted too */
    bool probe;                  /* where nothing fits nobody wants advice */
    bool several;                /* run_plan_within will be called */
    const char *config_json;     /* the model's config.json itself, instead of a folder or a preset; NULL: none */
};

/* A GPU's memory without what is left to the context and code: GPU_RESERVE, or half of one that has less than twice that. */
enum { GPU_RESERVE = 1 << 30 };
uint64_t run_gpu_budget(uint64_t memory);

/* Opens the model and finds the plan. On PL_NOFIT the smallest plan is in `r`. */
int run_plan(struct run *r, const struct config *c, const struct run_options *o, struct error *e);
/* Of a run planned with run_options.several: the plan within another budget (0: none). It replaces the run's, as does the smallest one
 * on PL_NOFIT. Few graphs are compiled for it. */
int run_plan_within(struct run *r, uint64_t budget, struct error *e);
/* Allocates, records, numbers the input "samples" if there is one, loads the weights (`load`
 * false: a resume fills them). `spill` is the folder for host memory's file. */
int run_start(struct run *r, const char *spill, bool load, struct error *e);
void run_close(struct run *r);

/* Sets the device's kind and, of a GPU that is here, its profile; says which and why (choose.c). */
void run_choose_device(struct run *r);
/* Whether the GPU that is planned for is in this machine. */
bool run_gpu_is_here(const struct run *r);

/* The smallest micro-batch of a planned run: a GPU takes so many of them at most, and groups that share statistics lie within one. */
int run_least_micro_batch(const struct run *r);

/* Sets the memory keys to a plan's techniques; the budget stays (pin.c). */
int run_pin(struct config *c, const struct settings *s, struct error *e);

/* Fills the device's kind and profile; no device is opened (run_profile.c). A given file decides
 * for how many threads, unless the configuration says so too. */
int run_open_profile(struct run *r, struct error *e);

/* Looks for changes of the configuration that would fit, and adds them to the refusal (remedies.c). */
void run_remedies(struct run *r, const struct run_options *o, struct error *e);

/* Of a plan that does not fit: the bound on host memory is what refuses it. */
bool run_exceeds_host(const struct run *r);
/* What plan_write needs to know. */
struct plan_note run_note(const struct run *r, bool fits);
/* The buffer inside the arena for moving weights; PLAN_STAGING bytes. */
void *run_staging(const struct run *r);
/* The loader's, loader_bytes of it; NULL: none. */
void *run_loader_memory(const struct run *r);
/* Where steps say how they went (ticket.h); NULL: the plan has no such place. */
void *run_tickets(const struct run *r);

/* Host side of a step: puts the step block, and gets it as the update left it; runs a program;
 * reads a scalar output. */
int run_put_step(struct run *r, const struct step_block *b, struct error *e);
int run_get_step(struct run *r, struct step_block *b, struct error *e);
int run_program(struct run *r, enum program p, struct error *e);
/* {norm, factor} of the gradients: an output of the update, or of a fused step. */
id run_clip(const struct run *r);
int run_read(struct run *r, id tensor, void *to, struct error *e);
/* Writes samples of an input, from sample `at` of the step's batch on. There is such an input
 * and they are within it: run_input tells. */
int run_write_input(struct run *r, const char *input, int64_t at, const void *data, uint64_t bytes, struct error *e);

/* The next batch while a step runs: between the two, after the step was asked for and before it is waited
 * for, run_write_input brings samples of the step to come. False: this device does nothing while
 * the host waits. */
bool run_can_go_ahead(const struct run *r);
int run_ahead_begin(struct run *r, struct error *e);
void run_ahead_end(struct run *r, bool ready);

/* Runs the step again, node by node, and names the first tensor that is not finite;
 * "" when there is none. */
void run_find_nonfinite(struct run *r, char *out, size_t room);
/* Names a gradient that is not finite, as the step left it; "" when there is none. */
void run_find_nonfinite_gradient(struct run *r, char *out, size_t room);


/* --- batches of any shape (inputs.c) ------------------------------------------------ */

struct run_input {
    id storage;
    enum dtype dtype;
    uint64_t sample;             /* bytes of one sample */
    int64_t below;               /* ids in it are below this; 0: they choose from nothing */
    bool ignores;                /* -100 is a label that weighs nothing */
};
/* False: the step has no input of that name. The last two members are left at 0... */
bool run_input(const struct run *r, const char *name, struct run_input *out);
/* ...and found here, from the layers that read the input. Takes memory: not for a step. */
void run_input_ids(const struct run *r, struct run_input *x);
/* For a defined model: ids of tables and classes are inputs, or views of them. */
int run_check_ids(const struct run *r, struct error *e);
/* Whether any program reads it: others have no place. */
bool run_input_used(const struct run *r, const struct run_input *x);
/* Samples that the step's storages hold: the effective batch and what fills a ragged end. */
int64_t run_samples(const struct run *r);
/* Fills the samples behind the effective batch with what weighs nothing. */
int run_fill_ragged(struct run *r, struct error *e);
/* Runs the evaluation program over the whole batch and gathers one of its outputs: a scalar
 * is summed, of anything else the micro-batches' elements follow each other, as f32 or i32.
 * The inputs are as before. */
int run_forward(struct run *r, id output, void *to, struct error *e);
/* Elements that run_forward gives: of the effective batch alone. */
int64_t run_forward_elements(const struct run *r, id output);

#endif

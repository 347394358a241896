/*
 * run.h: a planned run on its device: arenas, tape, weights, and the host's side of a step.
 *
 *     run_plan     model and graph; the plan, searched or given (planning/planned.h)
 *     run_start    arenas allocated with the planned size, tape recorded, weights loaded
 *     run_step ... the host's side of one step
 */
#pragma once

#include "folder/weights.h"
#include "planning/planned.h"

/* What runs. Its profile is that of the plan. */
struct run {
    struct planned planned;
    struct device device;        /* with has_device */
    struct tape tape;            /* with has_tape */
    struct weights weights;      /* with has_weights */
    /* counts[storage][sample]: labels != -100 or images of that sample, an upper bound; NULL: no
     * loop depends on the storage */
    uint32_t **counts;
    struct bump memory;          /* of `counts` */
    bool has_device, has_tape, has_weights;
    bool whole;                  /* diagnostic: launches run over all that is planned of a sequence */
    bool prefetching;            /* run_write_input writes the batch of the next step... */
    bool prefetched;             /* ...which is copied, or being copied, and is not overwritten */
};

/* Plans a run (planned_open). */
int run_plan(struct run *r, const struct config *c, const struct run_options *o, struct error *e);

/* Allocates memory, records the tape, fills the input "samples" if there is one, loads the weights
 * (`load` false: a resume fills them). `spill` is the folder for the CPU's offload file; NULL: the
 * nearest folder above offload_folder(train.out) that exists. Fails before any memory is taken if
 * this machine has too little. */
int run_start(struct run *r, const char *spill, bool load, struct error *e);
void run_close(struct run *r);

/* Returns the buffer inside the arena for moving weights; it has PLAN_STAGING bytes. */
void *run_staging(const struct run *r);
/* Returns the loader's memory, batches.loader_bytes; NULL: none. */
void *run_loader_memory(const struct run *r);
/* Returns the buffer of step results (ticket.h); NULL: the plan has none. */
void *run_tickets(const struct run *r);

/* The host's side of a step: writes the step block, reads it after the update, runs a program,
 * reads a scalar output. */
int run_put_step(struct run *r, const struct step_block *b, struct error *e);
int run_get_step(struct run *r, struct step_block *b, struct error *e);
int run_program(struct run *r, enum program p, struct error *e);
/* Ends all ranks with the message of a program that failed on the device: the others wait for this
 * one inside of it, where no agreement reaches them. Returns the code if there is one rank or the
 * program has no collectives. */
int run_failed(struct run *r, enum program p, const struct error *e);
/* {norm, factor} of the gradients: an output of the update, or of a fused step. */
id run_clip(const struct run *r);
int run_read(struct run *r, id tensor, void *to, struct error *e);
int run_read_first(struct run *r, id tensor, uint64_t bytes, void *to, struct error *e);
/* Writes samples of an input, one after the other, starting at row `at` of it. The input must
 * exist, and the samples must be within it (planned_input). A shared input is written whole. Only
 * the batch writer calls this and the next two (batch/writer.h). */
int run_write_input(struct run *r, const char *input, int64_t at, const void *data, uint64_t bytes, struct error *e);
/* Writes the samples of the effective batch in the order of the input's own dimensions: one array
 * [T,batch,C] for an input [T,B,C]. */
int run_write_batch(struct run *r, const char *input, const void *data, struct error *e);
/* Writes bytes of the input from an offset, in the order of its dimensions. For a step of one
 * micro-batch. */
int run_write_bytes(struct run *r, const char *input, uint64_t from, const void *data, uint64_t bytes, struct error *e);

/* Prefetching the next batch while a step runs: between begin and end, after the step was submitted
 * and before the host waits for it, run_write_input writes samples of the next step. False: this
 * device does not run in parallel with the host. */
bool run_can_prefetch(const struct run *r);
int run_prefetch_begin(struct run *r, struct error *e);
void run_prefetch_end(struct run *r, bool ready);

/* Runs the step again, node by node, and names the first tensor that is not finite; "" if there is
 * none. */
void run_find_nonfinite(struct run *r, char *out, size_t room);
/* Finds a gradient of the last step that is not finite, and writes its name; "" if there is
 * none. */
void run_find_nonfinite_gradient(struct run *r, char *out, size_t room);
/* Does as run_find_nonfinite_gradient, but only among the gradients that the step keeps: nothing
 * runs again. */
void run_find_stored_nonfinite(struct run *r, char *out, size_t room);

/* --- rows with labels, and images (loop_trips.c) ------------------------------------------ */

/* Loops over rows with labels, or over images, leave out iterations without any (loop.counted): the
 * run counts those of each sample as they are written. */
void trips_start(struct run *r);
/* Bytes of an input were written, or two micro-batches of it were swapped. */
void trips_count(struct run *r, id storage, uint64_t from, const void *data, uint64_t bytes);
void trips_swap(struct run *r, id storage, int64_t micro_batch);
/* Sets the trip counts of a program's loops. */
void trips_set(struct run *r, enum program p);

/* --- a forward over the whole batch (run_forward.c) ------------------------------------ */

/* Fills the padding samples after the effective batch with weight 0. */
int run_fill_ragged(struct run *r, struct error *e);
/* Runs the evaluation program over the whole batch and gathers one of its outputs as f32 or i32:
 * a scalar is summed, the elements of any other output are concatenated over micro-batches. The
 * inputs are unchanged. */
int run_forward(struct run *r, id output, void *to, struct error *e);
/* Returns the number of elements of run_forward's result, without the padding of the batch. */
int64_t run_forward_elements(const struct run *r, id output);

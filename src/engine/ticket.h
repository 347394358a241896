/*
 * ticket.h: steps that are submitted, in flight and retired, and their results.
 *
 *     host   submit n          submit n+1   retire n         submit n+2   retire n+1
 *     GPU   [ step n ][update n][ step n+1 ]  [update n+1] [ step n+2 ][update n+2]
 *                 loss ┘    norm ┘ ticket n
 *
 * The host submits the next step while the GPU runs this one, so that the GPU does not wait for the
 * host. A step is in flight from its submission until the host retires it: waits for it and reads
 * its results. Loss, gradient norm and, with f16, the new loss scale are copied after the programs
 * into the plan's buffer "tickets", which the GPU writes and the host reads after an event. The
 * step's parameters are copied to the GPU through the same buffer. Two tickets are enough: the
 * third step is submitted after the first one is retired.
 *
 * Values that the host does not know yet at submission stay on the GPU (graph/step.h): with f16
 * Adam's t and the loss scale, otherwise found_inf, so that no update follows a step that is not
 * finite (passes/guard.c).
 *
 * The time of a step ends when the device completes it, not when the host reads its results: the
 * launches of the next step may block the host for most of that step. It begins at the end of the
 * previous step or, if no step was in flight, when the host began to prepare it. So the times of
 * all steps add up to the elapsed time.
 *
 *     submitted   1   2                      3
 *     device      [     step 1     ][     step 2     ][     step 3     ]
 *     retired                         1                2               3
 *     seconds     |<-     1      ->|<-     2      ->|<-     3       ->|
 *
 * If the plan has no such buffer, on the CPU, submitting a step runs it, and the update is skipped
 * if the loss is not finite.
 */
#pragma once

#include "engine/run.h"

enum { TICKETS = DEVICE_EVENTS };
enum { LOSS_PARTS = 4 }; /* losses of a model with several, at most */

/* The results of a step. */
struct ticket {
    /* the step block: at submission as far as the host knows it; once retired, with f16, after the
     * update */
    struct step_block block;
    float clip[2];           /* {norm, factor} of the gradients */
    float loss;
    float part[LOSS_PARTS];  /* of a model with several losses: each of them, before its weight */
};

struct tickets {
    struct run *run;
    id loss, clip;           /* tensors */
    id part[LOSS_PARTS];     /* those of the step's outputs NAME_loss... */
    const char *part_name[LOSS_PARTS]; /* ...and their names */
    int parts;
    bool scaled;             /* f16: a step with a loss that is not finite is skipped... */
    bool running;            /* ...unless the model updates running statistics */
    struct ticket *at;       /* [TICKETS], in the plan's buffer or `own` */
    struct ticket own[TICKETS];
    uint64_t submitted, retired; /* number of steps */
    /* clock_seconds() at the start of each; negative: it starts at the end of the previous step */
    double from[TICKETS];
    double done;             /* clock_seconds() when the device completed the last retired step */
    double seconds;          /* time of that step */
};

/* Finds the run's outputs. `t` must not move afterwards. */
void tickets_begin(struct tickets *t, struct run *r);
/* Reports whether a step may be submitted before the previous one is retired: the plan has a buffer
 * for it, and no debugging or timing observes single nodes or steps. Steps that update running
 * statistics run one at a time: if one is not finite, its statistics must not mix with those of the
 * next step when the search for the cause runs it again. */
bool tickets_overlap(const struct tickets *t);
/* Returns the number of steps in flight. */
uint32_t tickets_in_flight(const struct tickets *t);

/* Submits step and update with the block's values. Values that only the update knows (`adam_t`
 * with f16, `loss_scale`, `found_inf`) are used from the block only if no other step is in
 * flight. `from`: the clock_seconds() at which the host began to prepare the step, its batch
 * included. */
int ticket_submit(struct tickets *t, const struct step_block *b, double from, struct error *e);
/* Waits for the oldest step in flight and retires it; t->seconds is its time. */
int ticket_retire(struct tickets *t, struct ticket *out, struct error *e);
/* Reports whether the loss of a retired step ends the run. f16 skips the step instead, unless it
 * updated running statistics, which cannot be restored. */
bool ticket_fatal(const struct tickets *t, double loss);

/*
 * ticket.h: steps that were asked for, and what they say of themselves.
 *
 *     host   ask n             ask n+1   take n             ask n+2   take n+1
 *     GPU   [ step n ][update n][ step n+1 ]  [update n+1] [ step n+2 ][update n+2]
 *                 loss ┘    norm ┘ ticket n
 *
 * A GPU is given the next step while it runs this one: the host waits for what it has had time to do. Loss,
 * norm and what f16 made of the loss scale are copied behind the programs into the plan's buffer "tickets", which
 * the GPU writes and the host reads behind a mark. The step's numbers go the other way through the same
 * buffer. Two tickets are enough: the third step is asked for when the first one was read.
 *
 * What the host does not know yet when it asks stays on the GPU (graph/step.h): with f16 Adam's t and the loss scale,
 * and otherwise found_inf, so that after a step that is not finite nothing is updated (passes/guard.c).
 *
 * The time of a step ends when the device is done with it, not when the host reads its results: launches of the
 * next step may hold the host up for most of that step. It begins where the time of the step before ends, or, where no step
 * was in flight, when the host began with it. So the times of steps add up to the time that passed.
 *
 *     submitted   1   2                      3
 *     device      [     step 1     ][     step 2     ][     step 3     ]
 *     read back                       1                2               3
 *     seconds     |<-     1      ->|<-     2      ->|<-     3       ->|
 *
 * Where the plan has no such buffer, on the CPU, asking is running, and a loss that is not finite
 * leaves out the update.
 */
#ifndef TICKET_H
#define TICKET_H

#include "train/run.h"

enum { TICKETS = DEVICE_MARKS };

/* What a step said. */
struct ticket {
    struct step_block begun; /* what it began with, as far as the host knew */
    struct step_block block; /* f16: as the update left it; else `begun` */
    float clip[2];           /* {norm, factor} of the gradients */
    float loss;
};

struct tickets {
    struct run *run;
    id loss, clip;           /* tensors */
    bool scaled;             /* f16: a step whose loss is not finite is skipped... */
    bool running;            /* ...unless it moved running statistics */
    struct ticket *at;       /* [TICKETS], in the plan's buffer or here */
    struct ticket own[TICKETS];
    uint64_t asked, taken;
    double from[TICKETS];    /* clock_seconds() at which each began; negative: behind another, whose end it began at */
    double done;             /* clock_seconds() at which the device was done with the last one that was taken */
    double seconds;          /* that one's time */
};

/* Finds the run's outputs. `t` stays where it is. */
void tickets_begin(struct tickets *t, struct run *r);
/* Whether a step may be asked for before the one before it was taken: the plan has room for it, and nobody looks
 * at single nodes or steps. Those that move running statistics are taken one by one: what a bad one did to
 * them must not be mixed with what the next one does when the search runs it again. */
bool tickets_overlap(const struct tickets *t);
/* Steps that were asked for and not taken. */
uint32_t tickets_pending(const struct tickets *t);

/* Runs step and update with the block's numbers. Of those that only the update knows (`adam_t` with f16,
 * `loss_scale`, `found_inf`) the block's are taken when no other step is open. `from`: the clock_seconds() at which the
 * host began with it, its batch included. */
int ticket_submit(struct tickets *t, const struct step_block *b, double from, struct error *e);
/* Waits for the oldest open step; t->seconds is its time then. */
int ticket_take(struct tickets *t, struct ticket *out, struct error *e);
/* The loss of a taken step ends the run: f16 skips the step instead, unless it moved statistics, which nothing
 * brings back. */
bool ticket_fatal(const struct tickets *t, double loss);

#endif

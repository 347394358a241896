/*
 * step.h: what varies from step to step.
 *
 * One storage of kind STEP holds this struct; the host writes it before a step
 * and kernels read it. So a learning rate, a count or a loss scale is never an
 * attribute, and the same tape serves every step.
 *
 * With f16 the update begins with SCALER, which writes here: found_inf, Adam's t, and what becomes of
 * the loss scale. The host reads that back and begins the next step with it. Where a step is asked for
 * before the one before it was read (train/ticket.h), the host writes what it knows and the members that
 * the update writes stay: those come last, in the order in which more of them stay.
 */
#ifndef STEP_H
#define STEP_H

#include <stdint.h>

struct step_block {
    float learning_rate; /* of this step, by the schedule */
    float inv_count;     /* 1 / (tokens or masks that count in the whole step) */
    float clip_norm;     /* largest gradient norm; 0: no clipping */
    float loss_scale;    /* what this step's gradients are times; 1 unless f16 */
    uint64_t seed;       /* of the run */
    uint64_t rng_step;   /* steps done: with the seed, keys the step's random numbers */
    int32_t step;        /* steps begun, from 1 */
    int32_t scale_window; /* f16: the scale doubles after so many good steps */
    /* The update's own, with f16: */
    int32_t adam_t;      /* updates done including this one, from 1; with f16 SCALER counts this one, if it is not skipped */
    /* with any precision: */
    int32_t found_inf;   /* 1: the update is predicated off */
    int32_t good_steps;  /* f16: updates since the scale last changed */
    float next_scale;    /* f16: loss_scale of the step to come */
};

#endif

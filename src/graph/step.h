/*
 * step.h: the values that change from step to step.
 *
 * One storage of kind STEP holds this struct; the host writes it before a step and kernels read it.
 * A learning rate, a count or a loss scale is therefore never an attribute, and the same program
 * serves every step.
 *
 * With f16 the update begins with SCALER, which writes found_inf, Adam's t and the next loss scale
 * here. The host reads them back and begins the next step with them. If a step is submitted before
 * the results of the previous one are read (engine/ticket.h), the host writes only the members that
 * it knows and leaves the members that the update writes. Those members come last, ordered so that
 * the host always leaves a suffix of the struct.
 */
#ifndef STEP_H
#define STEP_H

#include <stdint.h>

struct step_block {
    float learning_rate; /* of this step, from the schedule */
    float inv_count;     /* 1 / (number of tokens or masks that count in the whole step) */
    float clip_norm;     /* largest gradient norm; 0: no clipping */
    float loss_scale;    /* factor on this step's gradients; 1 unless f16 */
    uint64_t seed;       /* random seed of the run */
    uint64_t rng_step;   /* steps done: keys the step's random numbers, together with the seed */
    int32_t step;        /* steps submitted, from 1 */
    int32_t scale_window; /* f16: the scale doubles after this many good steps */
    /* Written by the update, with f16: */
    int32_t adam_t;      /* updates done including this one, from 1; with f16 SCALER increments it, unless the update is skipped */
    /* Written by the update, with any precision: */
    int32_t found_inf;   /* 1: the update is skipped */
    int32_t good_steps;  /* f16: updates since the scale last changed */
    float next_scale;    /* f16: loss_scale of the next step */
};

#endif

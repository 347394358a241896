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
#pragma once

#include <math.h>

#include "base/shared.h"

enum { STEP_COUNTS = 7 }; /* at most this many counts in a model; the block has no padding */

struct step_block {
    float learning_rate; /* of this step, from the schedule */
    float clip_norm;     /* largest gradient norm; 0: no clipping */
    uint64_t seed;       /* random seed of the run */
    uint64_t rng_step;   /* steps done: keys the step's random numbers, together with the seed */
    int32_t step;        /* steps submitted, from 1 */
    int32_t scale_window; /* f16: the scale doubles after this many good steps */
    /* 1 / (number of tokens, masks, ... that count in the whole step), in the order of
     * graph.counts: each loss of a model is divided by its own. */
    float inv_count[STEP_COUNTS];
    /* factor on this step's gradients; 1 unless f16, where the update before may have written it */
    float loss_scale;
    /* Written by the update, with f16: */
    /* updates done including this one, from 1; with f16 SCALER increments it, unless the update is
     * skipped */
    int32_t adam_t;
    /* Written by the update, with any precision: */
    int32_t found_inf;   /* 1: the update is skipped */
    int32_t good_steps;  /* f16: updates since the scale last changed */
    float next_scale;    /* f16: loss_scale of the next step */
};

/* Returns p * 2^32: DROPOUT drops an element whose random word is below this. */
SHARED uint32_t step_dropout_threshold(float p) { return (uint32_t)((double)p * 4294967296.0); }

/* Computes the next loss scale for SCALER, as torch.amp.GradScaler (cpu/update/optimizers.c). */
SHARED void step_scale(struct step_block *step, int finite)
{
    step->found_inf = !finite;
    step->next_scale = step->loss_scale;
    if (!finite) {
        step->next_scale = step->loss_scale * 0.5f;
        step->good_steps = 0;
        return;
    }
    step->adam_t++;
    if (++step->good_steps == step->scale_window) {
        if (shared_is_finite(step->loss_scale * 2)) step->next_scale = step->loss_scale * 2;
        step->good_steps = 0;
    }
}

/* Computes the gradient norm for CLIP and the factor on gradients, from the sum of their squares.
 * As clip_grad_norm_: the norm is increased by 1e-6 before it divides. A NaN norm gives a NaN
 * factor, so that the failure is visible. Gradients of a scaled loss are divided by the scale
 * first: the factor does both. */
SHARED void step_clip(float out[2], double sum, const struct step_block *step)
{
    const double norm = sqrt(sum) / (double)step->loss_scale;
    double factor = 1;
    if (step->clip_norm > 0) factor = (double)step->clip_norm / (norm + 1e-6);
    out[0] = (float)norm;
    out[1] = (float)((factor > 1 ? 1 : factor) / (double)step->loss_scale);
}

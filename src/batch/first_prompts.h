/*
 * first_prompts.h: the first prompt of a mask, simulated from its target.
 *
 * A prompt has FIRST_SLOTS coordinate pairs, 0 to 1 over the canvas, and their kinds (enum
 * point_kind): a point on the mask and a filler, or the two corners of its box. Training draws the
 * prompt by seed, position and mask; an evaluation uses the most interior point, or the exact box.
 */
#pragma once

#include "batch/batch_plan.h"

struct first_prompts {
    uint32_t side, cells, masks; /* from the loader: canvas, grid, most masks of a sample */
    uint64_t key;                /* random key of the prompts */
    double box;                  /* fraction of boxes */
    double jitter;               /* standard deviation of a box's corners, as a fraction of its sides */
};

/* The prompt of mask k of a sample: coords[FIRST_SLOTS * 2], kinds[FIRST_SLOTS]. */
void prompt_random(const struct first_prompts *p, const struct loader_sample *s, uint32_t k, float *coords,
                   int32_t *kinds);
void prompt_box(const struct first_prompts *p, const struct loader_sample *s, uint32_t k, float *coords,
                int32_t *kinds);
/* Needs the interior cells of the sample's masks: loader_source.interior. */
void prompt_interior(const struct first_prompts *p, const struct loader_sample *s, uint32_t k, float *coords,
                     int32_t *kinds);

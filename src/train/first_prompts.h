/*
 * first_prompts.h: the prompt that a mask is first asked for with, simulated from its target.
 *
 * A prompt is FIRST_SLOTS places, 0 to 1 over the canvas, and their kinds (enum point_kind): a point on
 * the mask and a filler, or the two corners of its box. Training draws one by seed, position and
 * mask; an evaluation takes the most interior point, or the exact box.
 */
#ifndef TRAIN_FIRST_PROMPTS_H
#define TRAIN_FIRST_PROMPTS_H

#include "data/loader.h"

enum { FIRST_SLOTS = 2 };

struct first_prompts {
    uint32_t side, cells, masks; /* of the loader: canvas, grid, masks of a sample at most */
    uint64_t key;                /* of the stream that they are drawn from */
    double box;                  /* the share of boxes */
    double jitter;               /* of a box's sides: the deviation of its corners */
};

/* For mask k of a sample: places[FIRST_SLOTS * 2], kinds[FIRST_SLOTS]. */
void prompt_drawn(const struct first_prompts *p, const struct loader_sample *s, uint32_t k, float *places, int32_t *kinds);
void prompt_box(const struct first_prompts *p, const struct loader_sample *s, uint32_t k, float *places, int32_t *kinds);
/* The sample's masks have their interior cell: loader_source.interior. */
void prompt_inside(const struct first_prompts *p, const struct loader_sample *s, uint32_t k, float *places, int32_t *kinds);

#endif

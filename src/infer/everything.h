/*
 * everything.h: segments everything: prompts a model with a grid of points and selects masks from
 * its candidates.
 *
 *     every candidate ─ predicted IoU ─ stability ─ not empty ─ non-maximum suppression of boxes
 *
 * Masks are kept as runs, so that thousands of them take little memory; only one mask at a time
 * exists as pixels. The cheapest test comes first.
 */
#pragma once

#include "data/masks/annotation.h"
#include "infer/predictor.h"

struct everything_options {
    int64_t points;                /* along each side of the image */
    int64_t batch, side;           /* prompts at once; predictor_shape.side */
    double min_iou, min_stability; /* of masks that are kept */
    double nms;                    /* of masks whose boxes overlap more, the best is kept */
};

struct everything_mask {
    struct traced shape;
    double iou, stability;
    float point[2];
    uint32_t order; /* in which it was found: breaks ties */
};

struct everything {
    VEC(struct everything_mask) masks; /* the best first */
    /* number of candidates, and after each test */
    uint64_t tested, confident, stable, filled;
};

/* Finds the masks of an image. everything_free may follow a failure. */
int everything_find(struct everything *g, const struct config *c, const struct image *image,
                    const struct everything_options *o, struct error *e);
void everything_free(struct everything *g);

/*
 * parts.h: the memory at the peak by module of the model: which part of it holds how much.
 */
#ifndef PLAN_PARTS_H
#define PLAN_PARTS_H

#include "plan/plan.h"

/* One module: "vision_encoder", "model.layers"; "" is what belongs to none (inputs, staging). */
struct part {
    char name[64];
    uint64_t lasting;  /* weights, masters, gradients and optimizer state */
    uint64_t passing;  /* what comes and goes and is alive at the peak, scratch too */
};

/* The largest first; returns how many, at most `room`: the last one then has the rest. Sums
 * to the peak's bytes. */
uint32_t plan_parts(const struct plan *p, const struct graph *g, struct part *out, uint32_t room);

#endif

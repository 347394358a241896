/*
 * offload.h: the parts of the pass offload.
 */
#ifndef OFFLOAD_H
#define OFFLOAD_H

#include "passes/passes.h"
#include "passes/visit.h"

/* Saved activations smaller than this stay: the launches of two copies cost more than the
 * bytes are worth. And so do those that are back in use within so many units. */
enum { OFFLOAD_LEAST = 16 << 10, OFFLOAD_GAP = 4 };

/* What the forward saves for the backward spends the time between in host memory. */
void offload_activations(struct visits *v);

#endif

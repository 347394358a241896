/*
 * offload.h: shared by the files of pass offload.
 */
#ifndef OFFLOAD_H
#define OFFLOAD_H

#include "passes/passes.h"
#include "passes/visit.h"

/* Saved activations smaller than OFFLOAD_LEAST stay in device memory: two copies cost more than the
 * bytes are worth. So do those that are used again within OFFLOAD_GAP units. */
enum { OFFLOAD_LEAST = 16 << 10, OFFLOAD_GAP = 4 };

/* Offloads the activations that the forward saves for the backward. */
void offload_activations(struct visits *v);

#endif

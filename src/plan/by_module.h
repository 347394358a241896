/*
 * by_module.h: the memory at the peak, by module of the model.
 */
#pragma once

#include "plan/plan.h"

/* One module: "vision_encoder", "model.layers"; "" for storages that belong to none (inputs,
 * staging). */
struct module_memory {
    char name[64];
    uint64_t persistent;  /* weights, master weights, gradients and optimizer state */
    uint64_t transient;  /* transient storages alive at the peak, workspace included */
};

/* Fills `out`, largest first, and returns the number of entries, at most `room`; the last one then
 * holds the rest. The entries sum to the peak's bytes. */
uint32_t plan_by_module(const struct plan *p, const struct graph *g, struct module_memory *out, uint32_t room);

/* Writes the module of a scope, "" for none: "model.layers" of "model.layers.3.mlp". */
void module_of_scope(const struct graph *g, id scope, char out[64]);

/* Weights in device memory (KIND_PARAM) by what training does with them. */
struct weights_memory {
    uint64_t trained, frozen, quantized; /* quantized weights are frozen and not counted there */
};
struct weights_memory plan_by_weight(const struct plan *p, const struct graph *g);

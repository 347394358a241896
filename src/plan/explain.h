/*
 * explain.h: a plan in detail: `plan --explain`.
 */
#pragma once

#include "plan/plan.h"

/* A storage of a program, with its position in the arena and its first and last instant. */
struct held {
    uint64_t offset, bytes;
    id storage;
    const char *name;
    enum kind kind;
    uint32_t start, end;
};
/* Fills `out`, which has room for all storages, with the transient storages in device memory that
 * are alive at the peak, the largest first; returns their number. */
uint32_t plan_at_peak(const struct plan *p, const struct graph *g, struct held *out);

/* Prints a page to read: the largest tensors, the memory over the step, all modules, the
 * kernels. */
void plan_explain(const struct plan *p, const struct graph *g, struct text *out);
/* Prints every op, its kernel, and every storage with its offset and lifetime. */
void plan_explain_all(const struct plan *p, const struct graph *g, struct text *out);

/* --- by module ------------------------------------------------------------------------------- */

/* The memory at the peak, by module of the model. */
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
    uint64_t trained, frozen, nf4, fp8; /* those in nf4 and fp8 are frozen and not counted there */
};
struct weights_memory plan_by_weight(const struct plan *p, const struct graph *g);

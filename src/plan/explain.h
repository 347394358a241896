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

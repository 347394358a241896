/*
 * space.h: every setting that a search may take, each with the bytes and the seconds that it
 * should have, found without compiling it.
 *
 * The space does not depend on the budget. Its dimensions:
 *
 *     micro-batch          splits of the effective batch
 *     pieces of the head   1, 2, 8, 32
 *     recompute            none, selective, first:n and first:n+selective in steps, all,
 *                          all+halves, all+selective
 *     update               where the optimizer's state is, and its form where others are allowed
 *
 *     streamed             weights, or weights and activations, in host memory; the smallest micro-batch, on a GPU 1, 2, 4 ... of them
 *     fused step           where a step is one micro-batch
 *
 * For each micro-batch a few graphs are compiled and surveyed (survey.h); the rest is
 * arithmetic over their blocks.
 */
#ifndef SPACE_H
#define SPACE_H

#include "plan/plan.h"

/* Fills x->choices, ascending by predicted seconds. */
int space_fill(struct plan_space *x, const struct settings *base, struct error *e);

#endif

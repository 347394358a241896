/*
 * leaks.h: growth of memory, allocations, descriptors and threads over steps.
 */
#pragma once

#include "engine/run.h"

struct leaks {
    int64_t steps, resident, device, allocations;
    int descriptors, threads;
};
/* Runs steps of a configuration on synthetic inputs. Writes no files. */
int leaks_measure(const struct config *c, int64_t steps, struct leaks *out, struct error *e);
/* Returns the number of steps that run, those before the first reading included. */
int64_t leaks_steps(int64_t steps);
/* Runs one step. */
int leaks_try_step(const struct config *c, struct error *e);

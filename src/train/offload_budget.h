/*
 * offload_budget.h: host memory, as the configuration asks for it: what has its home there
 * (memory.offload) and how large it may be (memory.host_budget).
 */
#ifndef OFFLOAD_BUDGET_H
#define OFFLOAD_BUDGET_H

#include "run/device.h"
#include "train/config.h"

/* memory.offload: a list, or words with + between them. *automatic: the planner chooses;
 * *away is enum offload. PL_USAGE names the word that is none. */
int offload_choice(const struct config *c, bool *automatic, unsigned *away, struct error *e);

/* The folder of host memory's file on the CPU, for a run that writes to `out` (NULL or
 * "": nowhere). */
const char *offload_folder(const char *out);

/* memory.host_budget in bytes, 0: none. `auto` on a CUDA device is the memory that is free
 * for this process (`free_memory`), less a reserve, and no bound where that is 0: the GPU is in
 * another machine, whose memory is not known. On the CPU, whose host memory is a file, it is
 * the free disk of that file's folder, less a reserve. */
int offload_budget(const struct config *c, enum device_kind kind, uint64_t free_memory, uint64_t *bytes, struct error *e);

#endif

/*
 * offload_budget.h: the most host memory, on a CPU the most disk space, for offload
 * (memory.host_budget).
 */
#ifndef OFFLOAD_BUDGET_H
#define OFFLOAD_BUDGET_H

#include "run/device.h"
#include "train/config.h"

/* The folder of the CPU's offload file for a run that writes to `out` (NULL or "": it has no output
 * folder). */
const char *offload_folder(const char *out);

/* memory.host_budget in bytes, 0: none. `auto` for a CUDA device is the memory that is free for
 * this process (`free_memory`), less a reserve, and no bound if that is 0: the GPU is in another
 * machine with unknown memory. On the CPU, which offloads to a file, it is the free disk space
 * of the file's folder, less a reserve. */
int offload_budget(const struct config *c, enum device_kind kind, uint64_t free_memory, uint64_t *bytes, struct error *e);

#endif

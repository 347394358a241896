/*
 * offload_budget.h: the most host memory, on a CPU the most disk space, for offload
 * (memory.host_budget).
 */
#ifndef OFFLOAD_BUDGET_H
#define OFFLOAD_BUDGET_H

#include "run/device.h"
#include "config/config.h"

/* Returns the folder of the CPU's offload file for a run that writes to `out`; NULL or "": it has
 * no output folder, and the file is in /tmp. The folder need not exist yet. */
const char *offload_folder(const char *out);

/* Finds memory.host_budget in bytes, 0: none, and in *rule where auto's comes from, for messages;
 * NULL unless the bound is auto's. The `local` ranks of a host share what it has; `ranks` NULL:
 * they are only planned for. `auto` is:
 *     the CPU, which offloads to a file   half of the free disk space of the file's folder, at most
 *                                         half of this machine's memory: copies are priced at the
 *                                         speed of the page cache, in which a larger file does not
 *                                         stay
 *     a GPU of this machine               the memory that is free for this process, less 1 GiB
 *     a GPU elsewhere                     no bound: the memory of its machine is not known */
int offload_budget(const struct config *c, enum device_kind kind, bool gpu_here, const struct ranks *ranks, int local,
                   uint64_t *bytes, const char **rule, struct error *e);

/* Estimates the host memory of a machine with a GPU of `gpu_memory` bytes: twice as much, at least
 * 32 GiB. */
uint64_t offload_likely(uint64_t gpu_memory);

#endif

/*
 * monitor.h: memory use during a run, every train.monitor_every steps: a line in the log and
 * members of that step's line in metrics.jsonl.
 *
 * For the compute device: allocated is the live memory at the plan's peak, reserved the arena, peak
 * the highest byte that a step uses (of an arena that is placed once, its size); free and total are
 * the device's. On the CPU the device's memory is host memory. The members are the same with and
 * without a GPU.
 */
#ifndef MONITOR_H
#define MONITOR_H

#include "base/system.h"
#include "engine/run.h"

struct memory_state {
    uint64_t allocated, reserved, peak, free, total;
    struct system_memory host;
    struct system_process process;
};

/* Allocates nothing. */
void monitor_read(struct memory_state *m, const struct run *r);
double monitor_utilization(const struct memory_state *m); /* of the device, 0 to 1 */
/* "[Step 100] CPU: Alloc=1.20 GiB Reserved=1.31 GiB (8.1% of Total) ..." */
void monitor_log(const struct memory_state *m, const struct run *r, int64_t step);
/* ,"memory_allocated":... for a line of metrics; 768 bytes are enough. */
void monitor_members(const struct memory_state *m, char *out, size_t room);

#endif

/*
 * system.h: what the operating system says of memory and of this process. Nothing is
 * allocated: these are called between steps. What it does not say is 0.
 */
#ifndef SYSTEM_H
#define SYSTEM_H

#include <stdbool.h>
#include <stdint.h>

/* Of the machine, or of the control group where that leaves less. */
struct system_memory {
    uint64_t total, available;
};
void system_memory(struct system_memory *m);

/* Of this process: resident bytes, how many of them are no file's, the most there ever were;
 * open descriptors; threads. */
struct system_process {
    uint64_t resident, anonymous, resident_peak;
    uint32_t descriptors, threads;
};
void system_process(struct system_process *p);

#endif

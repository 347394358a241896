/*
 * system.h: memory figures of the operating system and of this process. Nothing is allocated,
 * because these functions run between steps. An unknown figure is 0.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Memory of the machine, or of the process's control group or one above it if its limit is lower.
 * `available` counts pages of files that the kernel frees on demand. */
struct system_memory {
    uint64_t total, available;
    uint64_t swap; /* free swap space; 0 under a limit of a control group */
};
void system_memory(struct system_memory *m);
/* Does as system_memory, but with /proc and /sys below another root folder. */
void system_memory_in(const char *root, struct system_memory *m);

/* Processors: of the machine; those on which the scheduler may run this process (taskset, Slurm, a
 * cpuset); the quota of its control group or the lowest above it, 0: none; and how many threads can
 * run at once, by all three. */
struct system_processors {
    uint32_t online, allowed, usable;
    double quota;
};
void system_processors(struct system_processors *p);
/* Does as system_processors, but with the control groups below another root folder. */
void system_processors_in(const char *root, struct system_processors *p);

/* What this process uses: resident bytes, the part of them that is not file-backed, peak resident
 * bytes; open descriptors; threads. */
struct system_process {
    uint64_t resident, anonymous, resident_peak;
    uint32_t descriptors, threads;
};
void system_process(struct system_process *p);

enum { PLUGIN_PATH = 3100 };

/* Finds a plug-in's file: beside the program, above it, in the lib folder of an installation, or
 * there relative to the library that holds this code. False: there is none. */
bool plugin_find(const char *name, char path[PLUGIN_PATH]);

/*
 * this_machine.h: what this build can use, and the machine that it runs on.
 */
#pragma once

#include "base/system.h"
#include "run/device.h"

/* An optional library or plug-in. */
struct library {
    const char *name, *key; /* "libtiff"; its name in JSON */
    const char *does;       /* what the program uses it for */
    bool here;              /* it is part of this build and can be loaded */
    char version[64];       /* "": not known */
    char why[512];          /* of one that is part of the build and cannot be loaded; else "" */
};
enum { LIBRARIES = 8 };
void environment_libraries(struct library out[LIBRARIES]);

struct machine {
    struct cpu_identity cpu;
    struct system_processors processors;
    int threads;                    /* that device.threads 0 uses */
    struct system_memory memory;
    /* memory.budget: auto and memory.host_budget: auto of a run on the CPU in this folder */
    uint64_t budget, host_budget;
    uint64_t gpu_budget, gpu_host_budget; /* the same on the GPU */
    int gpus;                       /* that can be used */
    struct gpu gpu;                 /* of which this is the first */
    char driver[32];                /* NVIDIA's kernel module; "": none is loaded */
    struct error no_gpu;            /* why none can be used */
    char profile[4200], gpu_profile[4200]; /* where measured profiles are, or would be; "": not known */
    bool measured, gpu_measured;    /* there are such files */
};
void environment_machine(struct machine *m);

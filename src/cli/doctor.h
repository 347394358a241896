/*
 * doctor.h: the declarations that the files of `plimsoll doctor` share.
 */
#ifndef DOCTOR_H
#define DOCTOR_H

#include "base/progress.h"
#include "cli/cli.h"
#include "engine/run.h"

enum { ADVICE_MOST = 32, OTHERS_MOST = 3 };

/* Another plan within the same budget, which trains something else or takes less host memory. */
struct other_plan {
    char change[128];          /* arguments of the command: "--set key=value --set key=value" */
    const char *what;          /* in words */
    uint64_t arena, host;
    double seconds;
};

struct doctor {
    const struct options *options;
    struct planned run;            /* the plan that is examined */
    uint64_t budget;           /* given, or the free memory */
    uint64_t host_bound;       /* host memory beside a GPU of which it is not known; 0: memory.host_budget bounds it */
    int64_t batch, batch_most; /* largest with the plan's techniques, with any */
    uint64_t most[SPACE_COUNT]; /* the arenas of the latter */
    struct other_plan other[OTHERS_MOST];
    int others;
    double scale;              /* of the times that are shown (calibrate/time_factor.h) */
    bool given, confirm, confirmed;
    struct error unmeasured;   /* why leaks were not measured; code 0: they were, or need not be */
    struct error unconfirmed;  /* the same of --confirm */
};

/* Peak of the live bytes of each program or phase. */
struct doctor_peaks {
    uint64_t forward_alone, forward, backward, update;
};

/* Growth over a number of steps. */
struct doctor_leaks {
    int64_t steps, resident, device, allocations;
    int descriptors, threads;
};

/* One change to the configuration, planned. */
struct advice {
    char change[96];           /* "memory.recompute=selective": an argument of --set */
    const char *note;          /* a side effect; NULL: none */
    int64_t saves;             /* bytes of the arena */
    int64_t host;              /* offloaded bytes that are added */
    double costs;              /* seconds per step */
};

/* A copy of the run's configuration without a budget; pinned: with the plan's techniques fixed. */
int doctor_config(const struct doctor *d, struct config *c, bool pinned, struct error *e);
void doctor_peaks(const struct planned *r, struct doctor_peaks *out);
/* Lists changes that save memory, the most bytes per second lost first; returns their number. Fills
 * d->other. */
uint32_t doctor_advice(struct doctor *d, struct advice out[ADVICE_MOST]);
void advice_print(const struct doctor *d, const struct advice *a, uint32_t n, struct text *out);
void others_print(const struct doctor *d, struct text *out);
void doctor_json(const struct doctor *d, const struct doctor_peaks *p, const struct doctor_leaks *l,
                 const struct advice *a, uint32_t n, struct text *out);

#endif

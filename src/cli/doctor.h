/*
 * doctor.h: the declarations that the files of `plimsoll doctor` share.
 */
#pragma once

#include "base/progress.h"
#include "cli/cli.h"
#include "engine/run.h"
#include "io/table.h"

struct doctor_options {
    struct options o;
    bool confirm;
};

struct doctor {
    const struct options *options;
    struct planned run;            /* the plan that is examined */
    uint64_t budget;           /* given, or the free memory */
    uint64_t host_bound;       /* host memory beside a GPU of which it is not known; 0: memory.host_budget bounds it */
    int64_t batch, batch_most; /* largest with the plan's techniques, with any */
    uint64_t most[SPACE_COUNT]; /* the arenas of the latter */
    struct report_table others, advice; /* plans within the same budget; one change at a time */
    double scale;              /* of the times that are shown (calibrate/calibrate.h) */
    bool given, confirm, confirmed;
    struct error unmeasured;   /* why leaks were not measured; code 0: they were, or need not be */
    struct error unconfirmed;  /* the same of --confirm */
};

/* Reads a copy of the run's configuration without a budget; pinned: with the plan's techniques
 * fixed. */
int doctor_config(const struct doctor *d, struct config *c, bool pinned, struct error *e);
/* Plans changes that save memory, and other plans within the budget; fills d->advice and d->others,
 * which the caller frees, and prints them. */
void doctor_advice(struct doctor *d, struct text *out);

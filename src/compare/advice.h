/*
 * advice.h: what would save memory, for a run that was planned: the largest batch, changes of one
 * key, and other plans within the same budget.
 *
 * Every change is planned with all other settings pinned to the examined plan, so the bytes and
 * predicted seconds are exact differences. The changes are sorted by bytes saved per second lost.
 * Beside them are plans that the search finds within the same budget if adapters are trained
 * instead of the weights, or if it takes the least host memory.
 */
#pragma once

#include "base/progress.h"
#include "compare/trial.h"

/* The run whose memory is examined. */
struct examined {
    const struct plan_source *source;
    struct planned *run;
    uint64_t budget;           /* given, or the free memory */
    uint64_t host_bound;       /* host memory beside a GPU of which it is not known; 0: memory.host_budget bounds it */
    double scale;              /* of the times that are shown (calibrate/calibrate.h) */
};
/* Reads a copy of its configuration without a budget; pinned: with the plan's techniques fixed. */
int examined_config(const struct examined *x, struct config *c, bool pinned, struct error *e);

/* --- the largest batch ------------------------------------------------------------------------ */

enum { BATCH_MOST = 4096 };

/* Does as examined_config with a micro-batch, which is the whole step. */
int batch_config(const struct examined *x, struct config *c, int64_t batch, bool pinned, struct error *e);
/* Returns the arena of a micro-batch of `b`, with the techniques of the plan, or with those that
 * the search finds within the budget; UINT64_MAX when planning fails. *host: the offloaded
 * bytes. */
uint64_t batch_arena(const struct examined *x, int64_t b, bool search, uint64_t *host);
/* Finds the largest batch by a binary search, as the bytes grow with the batch; 0 when not even one
 * sample fits. */
int64_t largest_batch(const struct examined *x, bool search);

/* --- changes and other plans ------------------------------------------------------------------ */

enum { ADVICE_MOST = 32, OTHERS_MOST = 3 };

/* One change to the configuration, planned. */
struct advice {
    char change[96];           /* "memory.recompute=selective": an argument of --set */
    const char *note;          /* a side effect; NULL: none */
    int64_t saves;             /* bytes of the arena */
    int64_t host;              /* offloaded bytes that are added */
    double costs;              /* seconds per step */
};
/* Another plan within the budget. */
struct other_plan {
    char change[128];          /* "--set KEY=VALUE ..." */
    const char *what;
    uint64_t arena, host;
    double seconds;
};
struct advices {
    struct advice at[ADVICE_MOST];
    uint32_t n;
    struct other_plan others[OTHERS_MOST];
    uint32_t n_others;
    struct progress progress;
};
/* Tries every value of every technique. A change that the plan already has, or that does not apply,
 * saves nothing and is left out. */
void advise(const struct examined *x, struct advices *out);

/* --- the report (diagnosis.c) ----------------------------------------------------------------- */

struct diagnosis_options {
    const char *plan;          /* a plan file; NULL: search */
    int64_t steps;             /* over which leaks are measured */
    bool confirm, json;        /* run a step with the largest batch; print one JSON object */
};
/* Diagnoses the memory of a run and prints it as it is found, or all as JSON. PL_NOFIT: the plan
 * that was diagnosed is the smallest one. */
int diagnose(const struct plan_source *source, const struct config *c, const struct diagnosis_options *o,
             struct error *e);

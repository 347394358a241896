/*
 * plan.h: from a model and a budget to exact bytes.
 *
 *     plan_compile   model -> graph -> passes, for given settings
 *     plan_place     kernels, workspaces, lifetimes, an offset for every storage
 *     plan_check     proves independently that no two live storages overlap
 *     plan_search    the fastest settings that fit the budget
 *
 * The peak. At each instant of each program some storages are alive; the largest
 * sum is the lower bound of any placement. arena_bytes - lower_bound is padding.
 */
#ifndef PLAN_H
#define PLAN_H

#include "passes/passes.h"
#include "run/device.h"

enum {
    PLAN_ALIGN = 256,
    PLAN_STAGING = 256 << 10, /* bytes of the buffer through which weights are read and written */
};

struct peak {
    enum program program;
    uint32_t instant;                 /* position in the program's order */
    uint64_t bytes;                   /* the lower bound */
    uint64_t by_kind[KIND_COUNT];     /* sums to bytes */
};

struct plan {
    struct settings settings;
    struct placement placement;
    struct peak peak;                 /* of the compute space */
    uint64_t persistent[SPACE_COUNT];
    double seconds;                   /* predicted, one step: accumulation and update */
    uint64_t smallest;                /* arena of the smallest candidate that was looked at */
};

/* What builds the forward: the model, seen from below. Called once per program;
 * `micro_batch` samples. */
struct source {
    void *model;
    void (*build)(void *model, struct graph *g, int micro_batch);
};

/* Builds the graph for settings. PL_USAGE when the model's builder complained. */
int plan_compile(struct graph *g, const struct source *source, const struct settings *s, struct error *e);

/* Places a compiled graph and checks the result. PL_USAGE when the device has no kernel for a node. */
int plan_place(struct plan *p, const struct graph *g, const struct profile *profile, struct error *e);

/* The same two without verifier and checker, for a search that looks at many and keeps one:
 * what is kept goes through graph_verify and plan_check. */
int plan_draft(struct graph *g, const struct source *source, const struct settings *s, struct error *e);
int plan_arrange(struct plan *p, const struct graph *g, const struct profile *profile, struct error *e);
void plan_free(struct plan *p);
/* The independent checker; aborts when two live storages overlap. */
void plan_check(const struct plan *p, const struct graph *g);

static inline uint64_t plan_arena(const struct plan *p) { return p->placement.arena[SPACE_DEVICE]; }

/* What is fixed by hand; what is not is searched. */
struct freedom {
    int effective_batch;
    bool micro_batch, recompute, offload, head_chunks; /* true: ours to choose */
    bool whole;                       /* no split with a ragged end: nothing is known that weighs 0 */
    int multiple;                     /* of which a micro-batch must be one; 0: of nothing */
    uint64_t budget;                  /* 0: none */
    uint64_t host_budget;             /* 0: none */
};

/* The candidate with the lowest predicted time that fits. On PL_NOFIT the smallest
 * candidate's plan is in `p` and its graph in `g`, so that its peak can be shown. */
int plan_search(struct plan *p, struct graph *g, const struct source *source, const struct settings *base,
                const struct freedom *f, const struct profile *profile, struct error *e);

/* The memory table, and with `explain` graph, schedule, placement and the peak. */
void plan_print(const struct plan *p, const struct graph *g, const struct profile *profile, struct text *out);
void plan_explain(const struct plan *p, const struct graph *g, struct text *out);

#endif

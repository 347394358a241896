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
    PLAN_TICKETS = 256,       /* of that in which two steps say how they went (train/ticket.h) */
};

struct peak {
    enum program program;
    uint32_t instant;                 /* position in the program's order */
    uint64_t bytes;                   /* the lower bound */
    uint64_t by_kind[KIND_COUNT];     /* sums to bytes */
};

/* What a technique in use saved and cost, against the same plan without it (ablation.c). */
enum { PLAN_TECHNIQUES = 12 };
struct technique {
    char name[2 * SETTING_ROOM];
    int64_t saved, host;              /* bytes less in the compute space, more in the second */
    double seconds;                   /* more in a step */
};

struct plan {
    struct settings settings;
    struct placement placement;
    struct peak peak;                 /* of the compute space */
    uint64_t persistent[SPACE_COUNT];
    double seconds;                   /* predicted, one step: accumulation and update */
    double takes[PROGRAM_COUNT];      /* of it, by program */
    uint64_t smallest;                /* the smallest budget that some choice fits */
    uint64_t missing[(OP_COUNT + 63) / 64]; /* bits by op: planned for, but the device has no kernel for it yet */
    struct technique techniques[PLAN_TECHNIQUES];
    int n_techniques;                 /* 0 unless plan_ablation was asked */
    struct {
        uint64_t budget;              /* 1 GiB more than it was; 0: nobody asked, or there was none */
        struct settings settings;     /* the best within it */
        double seconds;
        uint64_t arena;
    } more;
};

/* What builds the forward: the model, seen from below. Called once per program;
 * `micro_batch` samples. */
struct source {
    void *model;
    void (*build)(void *model, struct graph *g, int micro_batch);
    bool alone;                       /* build must not be called from several threads at once */
};

/* Builds the graph for settings. PL_USAGE when the model's builder complained. */
int plan_compile(struct graph *g, const struct source *source, const struct settings *s, struct error *e);

/* Places a compiled graph and checks the result. PL_USAGE when the device has no kernel for a node. */
int plan_place(struct plan *p, const struct graph *g, const struct profile *profile, struct error *e);

/* The same two without verifier and checker, for a search that looks at many and keeps one:
 * what is kept goes through graph_verify and plan_check. */
int plan_draft(struct graph *g, const struct source *source, const struct settings *s, struct error *e);
/* Drafts of one source, one after the other; what a draft shares with the one before is not compiled again. Settings that
 * differ least should follow each other. */
enum { PLAN_SHARED = 3 };
/* Figures of a program in a draft. */
struct known_program {
    struct settings of;               /* all that it depends on; the rest is 0 */
    uint64_t trained;                 /* and this; of evaluation 0 where no weights are offloaded */
    uint64_t persistent[SPACE_COUNT], weights[SPACE_COUNT]; /* bytes that no other program reaches */
    uint64_t most;                    /* transients at its fullest instant */
    double takes, seconds;            /* as a plan has them; of its nodes */
};
struct plan_drafts {
    const struct source *source;
    struct graph shared[PLAN_SHARED]; /* the graph behind the first parts of the pipeline (compile.c)... */
    struct settings of[PLAN_SHARED];  /* ...for these settings... */
    bool made[PLAN_SHARED];           /* ...if it is made */
    struct graph graph;               /* the draft, valid until the next */

    /* Only figures of the draft are wanted (survey.c). Program update is the same for many settings, evaluation too: where
     * its figures are known, the draft is compiled without it, and they are in `update` and `eval`. */
    bool brief;
    bool bare;                        /* the last of shared has no program update... */
    uint64_t trained;                 /* ...which would be made from this (optimizer_signature) */
    VEC(struct known_program) updates, evals;
    struct kernels *kernels;          /* found so far; NULL: none */
    const struct known_program *update, *eval; /* NULL: the draft has the program itself */
};
int plan_draft_next(struct plan_drafts *d, const struct settings *s, struct error *e);
/* The rows of a chunk of the head (chunk_pieces): settings that give the same and differ in head_chunks alone have the same graph. */
int plan_draft_pieces(struct plan_drafts *d, const struct settings *s, int64_t piece[2], struct error *e);
/* Settings that program update or evaluation depends on, the others 0. */
struct settings plan_update_of(const struct settings *s);
struct settings plan_eval_of(const struct settings *s);
void plan_drafts_free(struct plan_drafts *d);
/* All of a plan but the offsets: lifetimes, kernels, bytes that last, seconds; of each node
 * too where `seconds` (by node) is given. */
int plan_bind(struct plan *p, const struct graph *g, const struct profile *profile, double *seconds, struct error *e);
/* The same with the kernels that were found before, for the same profile; *known NULL: none yet. */
struct kernels;
int plan_bind_with(struct plan *p, const struct graph *g, const struct profile *profile, struct kernels **known, double *seconds, struct error *e);
void kernels_free(struct kernels *k);
/* Of a bound plan. By storage: it has a place. By instant: transient bytes and workspace of the
 * compute space. Both are the caller's to free. */
bool *plan_mark_reached(const struct graph *g);
uint64_t *plan_alive(const struct plan *p, const struct graph *g, enum program program);
void plan_find_peak(struct plan *p, const struct graph *g, const bool *reached);
int plan_arrange(struct plan *p, const struct graph *g, const struct profile *profile, struct error *e);
void plan_free(struct plan *p);
/* The independent checker; aborts when two live storages overlap. */
void plan_check(const struct plan *p, const struct graph *g);

/* Whether a storage has a place: some program uses it, or it holds weights or is a buffer. */
bool plan_reached(const struct plan *p, const struct graph *g, id storage);

/* The ops that are missing, "RMSNORM, ROPE"; "" when the device can run the plan. */
void plan_print_missing(const struct plan *p, struct text *out);

static inline uint64_t plan_arena(const struct plan *p) { return p->placement.arena[SPACE_DEVICE]; }

/* What is fixed by hand; what is not is searched. */
struct freedom {
    int effective_batch;
    bool micro_batch, recompute, offload, head_chunks; /* true: ours to choose */
    bool fused_step;                  /* ... where a step is one micro-batch */
    bool allow_bf16, allow_8bit;      /* forms of AdamW's state that may be chosen besides the given one */
    bool whole;                       /* no split with a ragged end: nothing is known that weighs 0 */
    int multiple;                     /* of which a micro-batch must be one; 0: of nothing */
    int trips;                        /* micro-batches to a step at most; 0: any number */
    uint64_t budget;                  /* 0: none */
    uint64_t host_budget;             /* 0: none */
    bool tell;                        /* what techniques saved and cost is wanted too */
};

/* --- the search (search.c) -------------------------------------------------------------- */

/* One setting that may be taken. */
struct plan_choice {
    struct settings settings;
    double seconds;                   /* predicted, from surveys */
    uint64_t bound[SPACE_COUNT];      /* no placement needs less */
    uint64_t weights[SPACE_COUNT];    /* of it parameters, masters and optimizer state: no size of a sample changes them */
    uint32_t number;                  /* in the order of listing */
    bool known;                       /* compiled and placed: the rest is filled */
    bool missing;                     /* the device has no kernel for a part of it, so large a tensor say */
    uint64_t arena[SPACE_COUNT];
    double exact;                     /* seconds of its graph */
};
/* Bytes that a budget must have for it: its bound, and its arena once that is known. */
uint64_t plan_choice_need(const struct plan_choice *c, enum space space);

/* All of them, ascending by seconds. They do not depend on the budget. */
struct plan_space {
    const struct source *source;
    const struct profile *profile;
    struct freedom f;
    VEC(struct plan_choice) choices;
    uint32_t surveyed, placed;        /* graphs that were compiled for this so far; of them placed later */
    uint32_t held;                    /* the choice whose plan and graph are below; UINT32_MAX: none */
    struct plan plan;
    struct graph graph;
    struct plan_drafts drafts;        /* of choices that are placed */
};
int plan_space_open(struct plan_space *x, const struct source *source, const struct settings *base, const struct freedom *f,
                    const struct profile *profile, struct error *e);
void plan_space_close(struct plan_space *x);

/* The fastest choice within a budget (0: none) for each space; PL_NOFIT: there is none. */
int plan_choose(struct plan_space *x, const uint64_t budget[SPACE_COUNT], uint32_t *choice, struct error *e);
/* The choice that needs least of the compute space, within a budget of the other one; where
 * none is, the one that needs least of that. */
int plan_smallest(struct plan_space *x, uint64_t host_budget, uint32_t *choice, struct error *e);
/* Whether any choice has weights within a budget (0: none) for each space. Where none has, none would with smaller samples. */
bool plan_weights_fit(const struct plan_space *x, const uint64_t budget[SPACE_COUNT]);
/* From the fastest to the smallest: all that are the fastest within some budget. */
struct plan_points {
    uint32_t *at, n, cap;             /* choices; vec_free */
};
int plan_frontier(struct plan_space *x, uint64_t host_budget, struct plan_points *out, struct error *e);
/* Its plan and graph, verified and checked; they are the caller's then. */
int plan_take(struct plan_space *x, uint32_t choice, struct plan *p, struct graph *g, struct error *e);

/* The choice with the lowest predicted time that fits the freedom's budget. That may be set anew and the space searched again:
 * every answer is that of a space opened for it. On PL_NOFIT the
 * smallest one's plan is in `p` and its graph in `g`, so that its peak can be shown. */
int plan_search_in(struct plan_space *x, struct plan *p, struct graph *g, struct error *e);
/* Fills techniques and more; `base` is what the space was opened with. */
void plan_ablation(struct plan_space *x, struct plan *p, const struct settings *base);
/* plan_search_in and, where it is told, plan_ablation, for those who ask once. */
int plan_search(struct plan *p, struct graph *g, const struct source *source, const struct settings *base,
                const struct freedom *f, const struct profile *profile, struct error *e);

/* The memory table, and with `explain` graph, schedule, placement and the peak. */
void plan_print(const struct plan *p, const struct graph *g, const struct profile *profile, struct text *out);
void plan_print_techniques(const struct plan *p, struct text *out);
void plan_explain(const struct plan *p, const struct graph *g, struct text *out);

#endif

/*
 * plan.h: the planner: from a model and a memory budget to exact bytes.
 *
 *     plan_compile   model -> graph -> passes, for given settings
 *     plan_place     kernels, workspaces, lifetimes, an offset for every storage
 *     plan_check     proves independently that no two live storages overlap
 *     plan_search    the fastest settings that fit the budget
 *
 * At each instant of each program some storages are alive. The largest sum of their bytes, the
 * peak, is a lower bound of any placement. The arena's size minus this bound is padding.
 */
#pragma once

#include "io/value.h"
#include "passes/passes.h"
#include "run/device.h"

enum {
    PLAN_ALIGN = 256,
    PLAN_STAGING = 256 << 10, /* bytes of the buffer through which weights are read and written */
    PLAN_EXCHANGE = 64 << 20, /* most bytes that collectives of GPUs send, and receive, through host memory at once */
    PLAN_EXCHANGE_LEAST = 64 << 10,
    PLAN_TICKETS = 256,       /* size of the buffer for the results of two steps in flight (engine/ticket.h) */
};

struct peak {
    enum program program;
    uint32_t instant;                 /* position in the program's order */
    uint64_t bytes;                   /* the lower bound */
    uint64_t by_kind[KIND_COUNT];     /* sums to bytes */
};

/* The memory that a technique saves and the time that it costs, against the same plan without it
 * (ablation.c). */
enum { PLAN_ABLATED = 16 };
struct ablated {
    char name[2 * SETTING_ROOM];
    int64_t saved, host;              /* bytes saved in device memory; bytes added in host memory (CPU: offload file) */
    double seconds;                   /* added per step */
};

struct plan {
    struct settings settings;
    struct placement placement;
    struct peak peak;                 /* of device memory */
    uint64_t persistent[SPACE_COUNT];
    double seconds;                   /* predicted, for one step with accumulation and update */
    double program_seconds[PROGRAM_COUNT]; /* the same by program */
    uint64_t smallest;                /* the smallest budget in which some choice fits */
    uint64_t missing[OPS_MOST / 64]; /* bit set by op: the plan needs the op and the device has no kernel for it */
    struct ablated ablated[PLAN_ABLATED];
    int n_ablated;                    /* 0 unless plan_ablation ran */
    struct {
        uint64_t budget;              /* the budget plus 1 GiB; 0: no budget, or plan_ablation did not run */
        struct settings settings;     /* the best settings within that budget */
        double seconds;
        uint64_t arena;
    } more;
    struct {
        /* offloaded bytes of the best plan without a host budget; 0: it is not faster, or
         * plan_ablation did not run */
        uint64_t host;
        double seconds;
    } unbounded;
};

/* Builds the forward graph of a model with `micro_batch` samples. Called once per program. */
struct source {
    void *model;
    void (*build)(void *model, struct graph *g, int micro_batch);
    bool serial;                      /* build is not thread-safe */
};

/* Builds the graph for settings. Returns PL_USAGE if the model's builder reports an error. */
int plan_compile(struct graph *g, const struct source *source, const struct settings *s, struct error *e);

/* Places a compiled graph and checks the result. Returns PL_USAGE if the device has no kernel for a
 * node. */
int plan_place(struct plan *p, const struct graph *g, const struct profile *profile, struct error *e);

/* Does as plan_compile, but without the verifier, for a search that drafts many plans and keeps
 * one. The plan that is kept goes through graph_verify and plan_check. */
int plan_draft(struct graph *g, const struct source *source, const struct settings *s, struct error *e);
/* Consecutive drafts of one source. A draft reuses the compiled phases that it shares with the
 * draft before it, so callers order their drafts such that consecutive settings differ little. */
enum { PLAN_SHARED = 3 };
/* Figures of a program in a draft. */
struct known_program {
    struct settings of;               /* all that it depends on; the rest is 0 */
    uint64_t trained;                 /* and this; of evaluation 0 where no weights are offloaded */
    uint64_t persistent[SPACE_COUNT], weights[SPACE_COUNT]; /* bytes that no other program reaches */
    uint64_t most;                    /* transients at its fullest instant */
    double takes, seconds;            /* as a plan has them; of its nodes */
    double busy[LANE_COUNT];          /* of its nodes, by lane */
};
struct plan_drafts {
    const struct source *source;
    struct graph shared[PLAN_SHARED]; /* the graph after each of the first phases of the pipeline (compile.c)... */
    struct settings of[PLAN_SHARED];  /* ...for these settings... */
    bool made[PLAN_SHARED];           /* ...if it is valid */
    struct graph graph;               /* the draft; valid until the next call */
    const struct settings *next;      /* set before a draft: those of the next one; NULL: any */

    /* Set by survey.c, which needs only figures of the draft. Many settings have the same program
     * update, or the same evaluation: where its figures are known, the draft is compiled without
     * it, and they are in `update` and `eval`. */
    bool brief;
    bool bare;                        /* the last of shared has no program update... */
    uint64_t trained;                 /* ...which would be made from this (optimizer_signature) */
    VEC(struct known_program) updates, evals;
    struct kernels *kernels;          /* found so far; NULL: none */
    const struct known_program *update, *eval; /* NULL: the draft has the program itself */
};
int plan_draft_next(struct plan_drafts *d, const struct settings *s, struct error *e);
/* Finds the rows of a chunk of the head (chunk_rows): settings that give the same and differ only
 * in the number of chunks have the same graph. */
int plan_draft_chunk_rows(struct plan_drafts *d, const struct settings *s, int64_t rows[PROGRAM_COUNT],
                          struct error *e);
/* Finds how many of a micro-batch the values of a technique count (technique.counted). */
int plan_draft_counted(struct plan_drafts *d, const struct settings *s, enum technique_id id, int64_t *n,
                       struct error *e);
/* Returns the settings that program update or evaluation depends on, the others 0. */
struct settings plan_update_of(const struct settings *s);
struct settings plan_eval_of(const struct settings *s);
void plan_drafts_free(struct plan_drafts *d);
/* Computes all of a plan except offsets: lifetimes, kernels, persistent bytes, seconds. *known has
 * the kernels found before for the same profile, *known NULL: none yet; `known` NULL: they are not
 * kept. `seconds`, unless NULL, receives the time of each node. */
struct kernels;
int plan_bind(struct plan *p, const struct graph *g, const struct profile *profile, struct kernels **known,
              double *seconds, struct error *e);
void kernels_free(struct kernels *k);
/* plan_mark_reached returns by storage whether it gets an offset. plan_alive returns by instant the
 * transient bytes and workspace in device memory, with or without the storages that are handed
 * over, for a plan after plan_bind. The caller frees both. */
bool *plan_mark_reached(const struct graph *g);
uint64_t *plan_alive(const struct plan *p, const struct graph *g, enum program program, bool handed);
void plan_find_peak(struct plan *p, const struct graph *g, const bool *reached);
/* Returns the kind of a node's workspace. */
enum kind plan_work_kind(const struct node *n);
/* Does as plan_bind, and computes the offsets. */
int plan_arrange(struct plan *p, const struct graph *g, const struct profile *profile, struct kernels **known,
                 struct error *e);
/* Places only program step, after plan_bind for a GPU; returns its seconds with the waits for
 * bytes. */
double plan_time_step(struct plan *p, const struct graph *g, const double *seconds);
void plan_free(struct plan *p);
/* Returns the bytes of the KV cache. */
uint64_t plan_cache_bytes(const struct graph *g);
/* Checks a plan independently; aborts if two live storages overlap. */
void plan_check(const struct plan *p, const struct graph *g);

/* Reports whether a storage gets an offset: some program uses it, or it holds weights, or it is a
 * buffer. */
bool plan_reached(const struct plan *p, const struct graph *g, id storage);

/* Prints the ops without a kernel, as "RMSNORM, ROPE"; "" if the device can run the plan. */
void plan_print_missing(const struct plan *p, struct text *out);

static inline uint64_t plan_arena(const struct plan *p) { return p->placement.arena[SPACE_DEVICE]; }
/* Returns the name of SPACE_HOST for users: on a CPU it is a file in the run's folder. */
static inline const char *plan_host_name(const struct plan *p)
{
    return p->settings.device.separate_memory ? "host memory" : "offload file";
}

/* The dimensions of the search, and its limits. Settings outside of it are fixed by the
 * configuration. */
struct freedom {
    int effective_batch;
    /* true: the search chooses it; a fused step only where a step is one micro-batch */
    bool free[TECHNIQUES];
    unsigned permitted[TECHNIQUES];   /* bit i set: value i of the ladder may be chosen, besides the configured one */
    /* only micro-batches that divide the batch: the model has no padding samples of weight 0 */
    bool whole;
    int multiple;                     /* the micro-batch must be a multiple of it; 0: any size */
    int trips;                        /* maximum number of micro-batches per step; 0: no limit */
    uint64_t budget;                  /* 0: none */
    uint64_t host_budget;             /* 0: none */
    bool ablation;                    /* also run plan_ablation */
    bool fitting;                     /* make no plan if none fits: the smallest one is not asked for */
    bool unsized;                     /* find plan.smallest only if no plan fits */
};

/* --- the search (search.c) -------------------------------------------------------------- */

/* One point of the search space. */
struct plan_choice {
    struct settings settings;
    double seconds;                   /* predicted from surveys (survey.h) */
    uint64_t bound[SPACE_COUNT];      /* no placement needs less */
    /* the part of the bound for parameters, master weights and optimizer state; it does not depend
     * on the sample's size */
    uint64_t weights[SPACE_COUNT];
    bool rough;                       /* not surveyed: seconds and bound are at most those of its survey */
    uint32_t step;                    /* choices with the same number have the same program step... */
    double update;                    /* ...and for program update this part of the seconds, */
    uint64_t update_bytes, lasting[SPACE_COUNT]; /* these transients, and these persistent bytes of all programs */
    bool timed;                       /* the seconds have the waits of program step for bytes */
    uint32_t way;                     /* choices with the same number have the same micro-batch and level of sharding */
    bool known;                       /* compiled and placed: the members below are valid */
    /* the device has no kernel for some node, for example because of a tensor's size */
    bool missing;
    uint64_t arena[SPACE_COUNT];
    double exact;                     /* predicted seconds of the compiled graph */
};
/* Returns the budget that a choice needs: its bound, or its arena once that is known and larger. */
uint64_t plan_choice_need(const struct plan_choice *c, enum space space);

/* The search space: all choices. They do not depend on the budget. */
struct plan_space {
    const struct source *source;
    const struct profile *profile;
    struct freedom f;
    VEC(struct plan_choice) choices;
    uint32_t ways;                    /* how many numbers of ways there are */
    int64_t counted[TECHNIQUES];      /* of a sample: what the values of a technique count; 0: it has no effect */
    uint32_t held;                    /* the choice to which `plan` and `graph` belong; UINT32_MAX: none */
    struct plan plan;
    struct graph graph;
    struct plan_drafts *drafts;       /* of choices that are placed, by thread */
    struct plan_drafts *surveyed;     /* of surveys, by thread */
    int threads;
};
int plan_space_open(struct plan_space *x, const struct source *source, const struct settings *base,
                    const struct freedom *f, const struct profile *profile, struct error *e);
void plan_space_close(struct plan_space *x);

/* Finds the fastest choice within a budget (0: none) for each space; PL_NOFIT if no choice fits.
 * Where several take as long, it is the one with the least host memory, then with the least
 * device memory. On a CPU a choice is left out if another one has a smaller offload file, needs
 * no more memory and takes at most 1 % longer. */
int plan_choose(struct plan_space *x, const uint64_t budget[SPACE_COUNT], uint32_t *choice, struct error *e);
/* Finds the choice that needs the least device memory within a host budget; if none fits that, the
 * choice that needs the least host memory. */
int plan_smallest(struct plan_space *x, uint64_t host_budget, uint32_t *choice, struct error *e);
/* Finds the choice that needs the least host memory within a device budget; PL_NOFIT: there is
 * none. */
int plan_least_host(struct plan_space *x, uint64_t budget, uint32_t *choice, struct error *e);
/* Reports whether some choice has weights that fit the budgets (0: none). If not, smaller samples
 * do not help. */
bool plan_weights_fit(const struct plan_space *x, const uint64_t budget[SPACE_COUNT]);

/* Finds the choice with the lowest predicted time that fits the budgets in x->f. The caller may
 * change these budgets and search the same space again; the result equals that of a newly opened
 * space. On PL_NOFIT `p` and `g` hold the smallest plan and its graph, so that its peak can be
 * shown. */
int plan_search_in(struct plan_space *x, struct plan *p, struct graph *g, struct error *e);
/* Fills p->techniques and p->more; `base` is the settings with which the space was opened. */
void plan_ablation(struct plan_space *x, struct plan *p, const struct settings *base);
/* Returns PL_NOFIT with the smallest plan's need, where it is, and what to set. */
int plan_refuse(const struct plan *p, const struct graph *g, const struct freedom *f, struct error *e);
/* Opens a space, runs plan_search_in and, if f->ablation, plan_ablation, and closes the space. */
int plan_search(struct plan *p, struct graph *g, const struct source *source, const struct settings *base,
                const struct freedom *f, const struct profile *profile, struct error *e);

/* Multiplies the predicted times, before they are shown. */
void plan_scale_times(struct plan *p, double factor);
/* Prints the memory table. explain.h has more. */
void plan_print(const struct plan *p, const struct graph *g, const struct profile *profile, struct text *out);
void plan_print_techniques(const struct plan *p, struct text *out);

struct communication {
    double sent;            /* bytes that a rank sends in a step; it receives as many */
    double seconds;         /* of the lane of communication in a step... */
    double hidden;          /* ...and the part of them in which the rank also computes */
    uint64_t buffers;       /* most bytes of KIND_COMM that are alive at once in a step... */
    uint64_t host;          /* ...and of the host memory through which GPUs exchange without NCCL */
};
struct communication plan_communication(const struct plan *p, const struct graph *g, const struct profile *profile);

/* --- plan file ------------------------------------------------------------------------------- */

/* A plan as JSON: printed by --json, stored in the run folder, read by `train --plan`.
 *
 * The file holds the planner's decisions and a digest of every offset. plan_read returns the
 * decisions. Compiling them must give the same digest; otherwise the plan is refused, because it
 * was made for another model, batch or program version.
 */
/* Returns a hash over kernels, offsets and sizes of everything that is placed. */
uint64_t plan_digest(const struct plan *p, const struct graph *g);

/* A configuration change that makes the plan fit, the smallest budget with it, and the bytes that
 * the plan within the run's budget offloads. */
struct remedy {
    char change[96];
    uint64_t smallest, host;
};

enum { WARNING_ROOM = 400 };

struct plan_note {
    bool fits;
    const char *refused_by;  /* if it does not fit: the key of the limit that is too small */
    uint64_t budget;         /* 0: none */
    uint64_t host_budget;    /* 0: none */
    int effective_batch;
    const struct profile *profile;
    bool storages;           /* also write every storage with its offset */
    const char *adapter;     /* what the adapter trains, in words; NULL: there is none */
    const struct remedy *remedy;
    int n_remedies;
    const char (*warning)[WARNING_ROOM]; /* in what the plan exceeds its machine; not part of a file */
    int n_warnings;
};
/* Members of the object that is being written: the effective batch and every technique. */
struct json_writer;
void plan_put_settings(struct json_writer *w, const struct settings *s, int effective_batch);
/* Writes the list `changes_that_fit`; nothing if there are none. */
void plan_put_remedies(struct json_writer *w, const struct remedy *remedy, int n);
/* Writes `fits_machine`, and the list `warnings` of what the plan needs and its machine does not
 * have. */
void plan_put_machine(struct json_writer *w, const char (*warning)[WARNING_ROOM], int n);
void plan_write(const struct plan *p, const struct graph *g, const struct plan_note *note, struct text *out);

/* The decisions of a stored plan. */
struct plan_file {
    struct settings settings; /* only the members that the planner decides */
    uint64_t arena[SPACE_COUNT], smallest, digest;
    int effective_batch, threads;
    int ranks, shares;         /* ranks that add gradients, and shares of a step on each of them */
    int tensor, tensor_shares; /* ranks of AXIS_TENSOR, and parts on each of them */
    int per_host;             /* with parallel.group host: ranks of a host */
    char profile[64];
};
int plan_read(const char *path, struct plan_file *out, struct error *e);

/*
 * planned.h: a configuration planned: its model, its graph, and the plan, searched or given.
 *
 *     planned_open      all of it, on PL_NOFIT with remedies
 *     planned_within    another budget
 *     planned_input...  the inputs of a step, for those that fill them
 *
 * A command that only plans needs nothing of engine/. A run embeds it (engine/run.h).
 */
#pragma once

#include "adapter/adapter.h"
#include "config/config.h"
#include "folder/weights_4bit.h"
#include "models/model.h"
#include "plan/plan.h"
#include "run/device.h"
#include <stdbool.h>

enum { REMEDY_MOST = 4, WARNINGS_MOST = 4 };

/* What the batches of a run hold beyond samples of T tokens. The engine passes it on to the model's
 * builder and to the feed, and does not look inside. */
struct run_batches {
    const struct contents *holds; /* batch.holds; NULL: the family's default */
    bool packed;                 /* batch.packed: rows of several documents, or padded ones */
    bool sparse_labels;             /* settings.sparse_labels */
    bool partial;                /* this run builds only a part of the model */
    /* what builds all of the model, whose parameter names are valid in the configuration; NULL:
     * `holds` does */
    const struct contents *whole;
    struct feed_plan *feed;      /* what the feed reads with (batch/batch_plan.h); NULL: there is none */
    uint64_t loader_bytes;       /* size of run_loader_memory; 0: no loader */
    int64_t tokens;              /* of a row; 0: data.sequence, or as run_options says */
    /* the loss compares all samples of a share with each other: a micro-batch is a share */
    bool indivisible;
    enum config_key size;        /* the key with the size of a sample, which is halved to find one that fits... */
    int64_t least;               /* ...and is at least this */
};
struct run_options;
/* Fills `out` from the configuration, before any data is opened; what it points to is in `memory`.
 * A feed implements it (feed_describe of batch/feed.h). */
typedef int describe_batches(const struct config *c, const struct model *m, const struct run_options *o,
                             struct bump *memory, struct run_batches *out, struct error *e);

/* What was planned. It is a function of the configuration, the options and the machine, and holds
 * nothing that runs (engine/run.h). */
struct planned {
    /* what was asked for */
    const struct config *config;
    struct model model;
    struct batch batch;          /* B is set per build */
    struct run_batches batches;
    struct adapter adapter;      /* with has_adapter */
    const char *adapted;         /* what it trains, in words (lora_print) */
    struct weights_4bit stored;  /* the weights that the model's folder has in 4 bits */
    struct ranks *ranks;         /* run_options.ranks */
    int tensor;                  /* ranks that compute parts of the same products: parallel.tensor (mesh_choice.c) */
    int shares;                  /* of a step's batch, over all ranks (shares.c) */
    int effective_batch;
    int64_t prompt_chunk;        /* tokens that program prompt takes at once; 0: the run does not generate */
    int64_t prompts;             /* that are answered at once */
    bool has_adapter;
    bool defined;                /* by run_options.define */
    bool no_files;               /* run_options.no_files */
    bool serial_steps;           /* PLIMSOLL_PIPELINE=0: a step is retired before the next is submitted */
    bool forward;                /* run_options.forward */
    bool trains;                 /* run_options.train */
    bool answers;                /* it trains, and its evaluations answer prompts (train.eval_samples) */
    /* what it is planned for */
    enum device_kind kind;
    struct profile profile;      /* of the device; a plan needs no device */
    uint64_t budget;             /* device memory; 0: no bound */
    uint64_t host_budget;        /* host memory, on a CPU the offload file; 0: no bound */
    const char *host_rule;       /* where the bound comes from if memory.host_budget is auto; else NULL */
    /* the result */
    struct source source;        /* of the graph, for searches of the space */
    struct plan_space space;     /* with has_space: all settings that the plan was chosen from */
    struct graph graph;          /* with has_graph */
    struct plan plan;
    bool has_space, has_graph;
    struct remedy remedy[REMEDY_MOST]; /* changes that would fit, if nothing fits */
    int n_remedies;
    char warning[WARNINGS_MOST][WARNING_ROOM]; /* in what the plan exceeds its machine (memory_budget.c) */
    int n_warnings;
    struct bump memory;          /* of the update rules, of `batches` and of the profile */
};

/* Generation of text: up to `cache` tokens, of a prompt and its answer. */
struct run_generation {
    int64_t cache;
    /* tokens of the longest prompt and of its answer, for which the plan's time is predicted */
    int64_t prompt, answer;
    int64_t chunk;               /* tokens of prompts that are processed at once; 0: the planner chooses */
    int64_t prompts, tokens;     /* prompts that will be answered, and the tokens of all; 0: one */
    int64_t batch;               /* prompts that are answered at once; 0: the planner chooses */
    /* a prompt has inputs besides its tokens (run_options.holds): prompts are processed one by
     * one */
    bool apart;
};
/* prompts that the planner answers at once at most: the products of more rows take longer in
 * proportion */
enum { PROMPTS_MOST = 32 };

/* Options of a command beyond the configuration. */
struct run_options {
    const char *plan;            /* a plan file to follow instead of searching */
    bool train;                  /* false: one forward and backward, outputs kept, no update */
    bool forward;                /* with train false: only the outputs, no loss and no gradient */
    const struct run_generation *generate; /* with forward: programs prompt and next instead; NULL: none */
    bool evaluate;               /* the same on batches of the configuration's data: loss and mask statistics */
    /* with evaluate, of a mask model: the logits of the best candidates are an output,
     * picked_masks */
    bool picks;
    /* plan as if the data were a packed store with image embeddings, which need a frozen encoder */
    bool embedded;
    int64_t B, T;                /* with train false: the batch size and sequence length */
    const struct definition *define; /* the model, instead of model.preset; NULL: none */
    const char *loss_output;     /* of a vision tower; NULL: its default */
    describe_batches *describe;  /* with train and evaluate; NULL: the batches are given here: */
    const struct contents *holds; /* batch.holds, which is copied */
    bool packed;                 /* batch.packed */
    bool partial;                /* run_batches.partial */
    const int64_t *size;         /* batch.size, valid until planned_close; NULL: the family's defaults */
    bool ablation;               /* also compute what each technique saves and costs */
    /* a trial: no search for remedies if nothing fits, and no check for keys without effect */
    bool probe;
    bool fitting;                /* make no plan if none fits */
    bool unsized;                /* plan.smallest is only asked for if no plan fits */
    bool several;                /* planned_within will be called */
    uint64_t gpu_memory;         /* of the plan's GPU; 0: what its profile says */
    bool no_files;               /* what a CPU offloads lives in memory: the command writes no files */
    /* the ranks of this run; NULL: there is one process, or the plan is for ranks that are not
     * there */
    struct ranks *ranks;
    bool whole;                  /* the program writes its own batches: no shares */
    const char *config_json;     /* the model's config.json itself, instead of a folder or a preset; NULL: none */
};

/* Returns what `memory.budget: auto` is on a CPU with `free` bytes of memory: less a reserve; 0:
 * too few are free. */
uint64_t planned_cpu_budget(uint64_t free);
/* The GPU memory less a reserve for the CUDA context and code: GPU_RESERVE, or half of the
 * memory of a GPU that has less than twice that. */
enum { GPU_RESERVE = 1 << 30 };
uint64_t planned_gpu_budget(uint64_t memory);

/* --- memory for offload: memory.host_budget (memory_budget.c) -------------------------------- */

/* Returns the folder of the CPU's offload file for a run that writes to `out`; NULL or "": it has
 * no output folder, and the file is in /tmp. The folder need not exist yet. */
const char *offload_folder(const char *out);

/* Finds memory.host_budget in bytes, 0: none, and in *rule where auto's comes from, for messages;
 * NULL unless the bound is auto's. The `local` ranks of a host share what it has; `ranks` NULL:
 * they are only planned for. `auto` is:
 *     the CPU, which offloads to a file   half of the free disk space of the file's folder, at most
 *                                         half of this machine's memory: copies are priced at the
 *                                         speed of the page cache, in which a larger file does not
 *                                         stay
 *     a GPU of this machine               the memory that is free for this process, less 1 GiB
 *     a GPU elsewhere                     no bound: the memory of its machine is not known */
int offload_budget(const struct config *c, enum device_kind kind, bool gpu_here, const struct ranks *ranks, int local,
                   uint64_t *bytes, const char **rule, struct error *e);

/* Estimates the host memory of a machine with a GPU of `gpu_memory` bytes: twice as much, at least
 * 32 GiB. */
uint64_t offload_likely(uint64_t gpu_memory);

/* --- planning ------------------------------------------------------------------------------- */

/* Opens the model and finds the plan. On PL_NOFIT the smallest plan is in `r`. */
int planned_open(struct planned *r, const struct config *c, const struct run_options *o, struct error *e);
/* Finds the plan of a run planned with run_options.several within another budget (0: none). It
 * replaces the run's plan, on PL_NOFIT by the smallest one. Few graphs are compiled for it. */
int planned_within(struct planned *r, uint64_t budget, struct error *e);
/* Finds the plan within another bound of host memory, as planned_open with that bound does. */
int planned_with_host(struct planned *r, uint64_t host_budget, struct error *e);
/* Frees all of it. A zeroed struct is allowed. */
void planned_close(struct planned *r);

/* Compares arenas with the memory that is free now; with `no_files` a CPU's host arena is in memory
 * too. The arenas of all ranks of this host are added. PL_FAIL names both.
 * planned_check_room does it for the run's plan, and names a remedy. */
int machine_room(enum device_kind kind, const uint64_t arena[SPACE_COUNT], bool no_files, const struct ranks *ranks,
                 struct error *e);
int planned_check_room(const struct planned *r, struct error *e);

/* Lets planned_open log, once, which device it chose and why. */
void planned_explain_device(void);
/* Returns PL_FAIL if the run is for a GPU and this machine has none that can be used; the message
 * says what is missing. */
int planned_check_device(const struct planned *r, struct error *e);
/* Returns the smallest micro-batch of a planned run: a CUDA graph limits their number, and groups
 * that share statistics lie within one. */
int planned_least_micro_batch(const struct planned *r);

/* Fills r->remedy for a run planned with run_options.several that does not fit its budget. */
void planned_find_remedies(struct planned *r, const struct run_options *o);
/* Prints "KEY: VALUE (SIZE), or KEY: VALUE (SIZE, host memory SIZE)". */
void remedies_print(const struct remedy *remedy, int n, const char *host_name, struct text *out);

/* Reports whether memory.host_budget is the bound that a plan which does not fit exceeds. */
bool planned_exceeds_host(const struct planned *r);
/* Returns the facts that plan_write prints. */
struct plan_note planned_note(const struct planned *r, bool fits);

/* Returns the samples that a step computes together, which share batch normalization statistics or
 * the loss that balances experts: they lie within a micro-batch, and no step is short; 0: each
 * sample is by itself. */
int64_t planned_group(const struct planned *r);
/* Returns the samples of such a group where the key is auto: the largest of 8, 4, 2 and 1 that
 * divides the samples of a share, and memory.micro_batch where that is given. With model.bn_group
 * auto this is for layers whose weights are in no folder. */
int64_t planned_usual_group(const struct config *c, int64_t shares);

/* Appends the keys that the planner chose and the order of sums depends on: "memory.head_chunks: 4,
 * memory.micro_batch: 2". Runs with the same order have the same bits (docs/guides/ranks.md).
 * False: there are none. */
bool planned_print_order(const struct planned *r, struct text *out);
/* Prints a note if the effective batch is outside of what recipes for fine-tuning use: 8 samples a
 * step to 32 on each rank. False: it is not, or the run does not fine-tune: it starts from random
 * weights, or reads texts or tokens one after the other, whose batches are counted in tokens. */
bool planned_print_batch(const struct planned *r, struct text *out);

/* --- the inputs of a step (planned_inputs.c) ------------------------------------------------ */

struct planned_input {
    id storage;
    enum dtype dtype;
    int axis;                    /* the dimension that counts samples; INPUT_SHARED: all of them share the input */
    uint64_t sample;             /* bytes of one sample; of all, if it is shared */
    /* A micro-batch is [outer][entries][entry bytes], and a sample some consecutive entries of each
     * outer one. */
    uint64_t outer, entries, entry;
    int64_t below;               /* ids are below this; 0: they index nothing */
    bool ignores;                /* -100 is a label with weight 0 */
};
/* Finds an input of the step by its name, without its last two members; false: there is none. */
bool planned_input(const struct planned *r, const char *name, struct planned_input *out);
/* Fills the last two members, from the layers that read the input. Allocates: not for use in a
 * step. */
void planned_input_ids(const struct planned *r, struct planned_input *x);
/* Reports whether any program reads the input: otherwise it has no storage. */
bool planned_input_used(const struct planned *r, const struct planned_input *x);
/* Returns the number of rows in the step's inputs: the effective batch and the padding of the last
 * micro-batch; with shares, this rank's shares, each with its padding. */
int64_t planned_samples(const struct planned *r);
/* Samples of a share, but for the last ones: the effective batch if there is one share. Rows of a
 * share in the inputs, with its padding; the shares of this rank, and the first of them. */
int planned_share_samples(const struct planned *r);
int64_t planned_share_rows(const struct planned *r);
int planned_own_shares(const struct planned *r);
int planned_first_share(const struct planned *r);
/* Returns the mesh of the ranks, the place of this rank among those that have other samples, and
 * their number. */
struct mesh planned_mesh(const struct planned *r);
int planned_data_place(const struct planned *r);
int planned_data_ranks(const struct planned *r);
/* Reports whether this rank counts what it reads: one of those that read the same samples does. */
bool planned_speaks(const struct planned *r);
/* The samples of a whole step that this rank has. */
struct planned_part {
    int64_t first, n;
};
struct planned_part planned_part(const struct planned *r);

/* --- this machine ---------------------------------------------------------------------------- */

/* What this build can use, and the machine that it runs on. */
/* Print the version and the libraries, and this machine. */
void environment_print_version(bool json);
void environment_print_machine(bool json);

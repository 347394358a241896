/*
 * plan_request.h: the plan of a run, or a table of plans (tables.c), as a command asks for it:
 * planned and printed. And ways of fine-tuning a model, with the commands that run them (ways.c).
 */
#pragma once

#include "compare/trial.h"

/* --- tables ---------------------------------------------------------------------------------- */

/* Plans of one run side by side.
 *
 *     plan_ladder      adds one technique in each row, then says what adapters and 4 bits would do
 *     plan_frontier    the best plan for each of many budgets
 *     plan_devices     GPUs, by memory in GiB or by name
 *     plan_ranks       numbers of ranks, which need not be there
 *
 * The caller frees rows->list, also after a failure.
 */
/* Each row of the ladder adds a technique to the row before (techniques.def). What-ifs change what
 * is trained: they have the techniques of the ladder but offload. */
struct ladder {
    struct plan_rows rows;            /* the rungs, then the what-ifs */
    uint32_t rungs;
    uint32_t base;               /* the last rung without offload, which the what-ifs are compared with */
};

/* Plans all rows. The first row has no technique and computes all samples of a step at once; of
 * several ranks, all of a rank's share. A run's own 4-bit weights stay: they are no step of the
 * ladder. */
int plan_ladder(const struct plan_source *s, struct ladder *l, struct error *e);

/* Plans for budgets from the smallest possible up to the one that no longer limits the plan:
 * common memory sizes, in the largest unit of 1 GiB / 16^k that leaves several rows. */
int plan_frontier(const struct plan_source *s, struct plan_rows *rows, struct error *e);

struct counts {
    VEC(int64_t) list;
};
/* Plans for a list of GPUs with commas, for each number of images and of frames; no numbers: as the
 * run has them. */
int plan_devices(const struct plan_source *s, const char *gpus, const struct counts *images,
                 const struct counts *frames, struct plan_rows *rows, struct error *e);
/* Finds the GPU of a row and the name of its profile: `gpu` is a name, with a measured or published
 * profile; or GiB of memory, with the profile of a GPU of about that memory. */
int plan_row_gpu(const char *gpu, struct plan_row *row, char profile[64], struct error *e);

/* Plans for n numbers of ranks. *without: one rank, which the efficiency is relative to, does not
 * fit the budget, and was planned without. */
int plan_ranks(const struct plan_source *s, const int64_t *ranks, int n, struct plan_rows *rows, bool *without,
               struct error *e);

/* Rows count in multiples of this; none is longer than the second. */
enum { ROW_UNIT = 64, ROW_MOST = 1 << 20 };
/* Finds the longest row within the budget of the run, or on each GPU of a list with commas. */
int plan_longest(const struct plan_source *s, const char *gpus, struct plan_rows *rows, struct error *e);
/* Finds the longest row that fits with a change: tokens in multiples of 64. Fills *row with its
 * plan, and with what 64 tokens more need, which is too much; without row->fits, no row fits, and
 * row->arena is what the shortest one needs. `quick`: a row that fits with settings that need
 * little memory; a longer one may fit. */
int plan_longest_row(const struct plan_source *s, const struct plan_change *change, bool quick, struct plan_row *row,
                     struct error *e);

/* Append two of these tables as JSON, as `plimsoll plan --json` prints them. */
int plan_frontier_json(const struct plan_source *s, struct text *out, struct error *e);
int plan_devices_json(const struct plan_source *s, const char *gpus, struct text *out, struct error *e);

struct plan_request {
    struct plan_source source;   /* `read` and `of` are given; plan_request_read sets the rest */
    const char *devices, *images, *frames, *image_size, *masks; /* as given; NULL: not given */
    const char *ranks;           /* numbers with commas, of a table; NULL: not given */
    const char *plan, *output;   /* plan files: to follow, to write; NULL: none */
    bool budget;                 /* one is given */
    bool explain, explain_all, compare, frontier, longest, json;
};

/* Plans and prints. PL_USAGE names options that do not go together. */
int plan_request_run(struct plan_request *r, struct error *e);
/* Reads the numbers and sizes into r->source; `several`: those of --images and --frames are a
 * table's. */
int plan_request_read(struct plan_request *r, bool several, struct error *e);

/* Say how good the times of a table are, and which GPUs' figures were used for rows given by
 * memory. */
void plan_note_times(const struct plan_rows *rows, struct text *out);
void plan_note_gpus(const struct plan_rows *rows, struct text *out);

/* --- ways of fine-tuning (ways.c) ------------------------------------------------------------- */

/* What is asked: a model or a run, and GPUs. */
struct ways_request {
    const struct config *config;
    const struct model *model;
    const struct plan_source *source;
    const char *gpus;            /* a list with commas */
    const char *run;             /* the file of the commands that are printed */
    struct text first, keys;     /* commands before these; " --set key=value" of what was asked */
    int64_t tokens;              /* of a sample; 0: it has none */
    bool json;
};
/* Plans and prints every way that the model has something for on each GPU, with the host memory
 * that a machine with such a GPU is likely to have, or if that does not suffice with any. PL_NOFIT:
 * none fits. */
int ways_request_run(const struct ways_request *r, struct error *e);

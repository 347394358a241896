/*
 * tables.h: plans of one run side by side.
 *
 *     plan_ladder      adds one technique in each row, then says what adapters and 4 bits would do
 *     plan_frontier    the best plan for each of many budgets
 *     plan_devices     GPUs, by memory in GiB or by name
 *     plan_ranks       numbers of ranks, which need not be there
 *
 * The caller frees rows->list, also after a failure.
 */
#pragma once

#include "compare/trial.h"

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

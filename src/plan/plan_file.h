/*
 * plan_file.h: a plan as JSON: printed by --json, stored in the run folder, read by `train --plan`.
 *
 * The file holds the planner's decisions and a digest of every offset. plan_read returns the
 * decisions. Compiling them must give the same digest; otherwise the plan is refused, because it
 * was made for another model, batch or program version.
 */
#pragma once

#include "io/value.h"
#include "plan/plan.h"

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
    int ranks, shares;        /* ranks, and shares of a step on each of them */
    int per_host;             /* with parallel.group host: ranks of a host */
    char profile[64];
};
int plan_read(const char *path, struct plan_file *out, struct error *e);

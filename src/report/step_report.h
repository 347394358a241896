/*
 * step_report.h: a measured step by op and tensor: tables, a page, and files for common viewers.
 *
 *     DIR/profile.html      tables, the live bytes over time, a plot of the arena
 *     DIR/trace.json        Chrome's trace events with a memory track
 *     DIR/snapshot.pickle   for PyTorch's memory_viz page
 */
#pragma once

#include "calibrate/bench.h"
#include "io/table.h"

struct step_report {
    const struct bench *bench;
    int n;                      /* ranks */
    struct text *events;        /* [n] of each rank, for the trace */
    struct rank_times *times;   /* [n] */
    struct report_table ops;    /* by time */
    struct report_table tensors; /* the largest transient ones at the peak, of... */
    uint32_t live;              /* ...these */
    struct report_table ranks;  /* the work of each in a step, without exchanges and the wait for others */
};

/* Runs steps of a bench, timed by node, and gathers the events and times of all ranks `r` (NULL:
 * this is the only process). On rank 0 it then lists the tables. step_report_close is called in any
 * case. */
int step_report_measure(struct step_report *s, struct bench *b, int64_t steps, struct ranks *r, struct error *e);
void step_report_close(struct step_report *s);

/* Prints the tables. */
void step_report_print(const struct step_report *s, struct text *out);
/* Prints the kernels as the plan names them, and what the device chose when it recorded the
 * programs. */
void step_report_kernels(const struct run *r, struct text *out);
/* Writes the files into a folder. `title`: the run file; NULL: there is none. */
int step_report_write(const struct step_report *s, const struct config *c, const char *dir, const char *title,
                      struct error *e);

/* Prints measured steps beside their prediction: time, memory, ops, and of several ranks the times
 * of each. */
void bench_report(const struct bench *b, const struct ranks *ranks, const struct rank_times *each, bool json);

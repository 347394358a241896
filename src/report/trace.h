/*
 * trace.h: exports a measured step to common viewers.
 *
 *     trace_write      Chrome's trace events: one slice per launch, and the live bytes by kind
 *                      as a counter; Perfetto and chrome://tracing open it. A rank is a process,
 *                      and
 *                      a lane a thread of it
 *     snapshot_write   the allocation history in the format of PyTorch's memory snapshots, for
 *                      its memory_viz page: the arena is a segment, storages are blocks
 */
#pragma once

#include "report/lives.h"
#include "run/tape.h"

/* One process of a trace. */
struct trace_process {
    int number;
    const char *name;
    double zero;         /* clock_seconds() of its time 0 */
};
/* Writes the events of a process, as a list. */
void trace_events(const struct graph *g, const struct lives *l, const struct timing *t, const struct trace_process *of,
                  struct text *out);
/* The trace of n processes, from their events. */
void trace_write(const struct plan *p, const struct text *processes, int n, struct text *out);
void snapshot_write(const struct plan *p, const struct graph *g, const struct lives *l, struct text *out);

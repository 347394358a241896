/*
 * trace.h: exports a measured step to common viewers.
 *
 *     trace_write      Chrome's trace events: one slice per launch, and the live bytes by kind
 *                      as a counter; Perfetto and chrome://tracing open it
 *     snapshot_write   the allocation history in the format of PyTorch's memory snapshots, for
 *                      its memory_viz page: the arena is a segment, storages are blocks
 */
#ifndef REPORT_TRACE_H
#define REPORT_TRACE_H

#include "report/lives.h"
#include "run/timing.h"

void trace_write(const struct plan *p, const struct graph *g, const struct lives *l, const struct timing *t, struct text *out);
void snapshot_write(const struct plan *p, const struct graph *g, const struct lives *l, struct text *out);

#endif

/*
 * lives.h: what comes and goes in the compute device's memory while a step runs.
 *
 * The planner's lifetimes as a list of events in the order in which they happen: programs
 * step and update one after the other, births before a node, deaths behind it. The trace,
 * the snapshot and the arena's image are drawn from it.
 */
#ifndef REPORT_LIVES_H
#define REPORT_LIVES_H

#include "plan/plan.h"

struct lives_event {
    uint8_t program;
    bool birth;
    uint32_t position;      /* of the node in the program's order */
    id storage;             /* 0: the workspace of `node` */
    id node;                /* at whose run it happens; 0: the program is empty */
    uint64_t offset, bytes; /* in the arena; bytes are aligned as the planner does it */
};

struct lives {
    VEC(struct lives_event) events;
    uint64_t lasting[KIND_COUNT]; /* what lives through every program */
};

void lives_collect(struct lives *l, const struct plan *p, const struct graph *g);
void lives_free(struct lives *l);

/* Whether a storage has a place in the compute space for the whole run. */
bool lives_lasts(const struct plan *p, const struct graph *g, id storage);

/* Bytes alive while each node of a program runs, by kind: [position * KIND_COUNT + kind].
 * The caller frees it. */
uint64_t *lives_by_position(const struct lives *l, const struct graph *g, enum program p);

/* What an event is about, for people. */
const char *lives_name(const struct graph *g, const struct lives_event *v);
enum kind lives_kind(const struct graph *g, const struct lives_event *v);

#endif

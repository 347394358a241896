/*
 * lives.h: the allocations and frees in the compute device's memory during a step.
 *
 * The planner's lifetimes as a list of events in time order, through the programs of a step;
 * a storage is allocated (`birth`) before a node and freed after one. The trace, the snapshot and
 * the plot of the arena are made from this list.
 */
#pragma once

#include "plan/plan.h"

struct lives_event {
    uint8_t program;
    bool birth;
    uint32_t position;      /* of the node in the program's order */
    id storage;             /* 0: the workspace of `node` */
    id node;                /* the node at that position; 0: the program is empty */
    uint64_t offset, bytes; /* in the arena; bytes are rounded up to PLAN_ALIGN */
};

struct lives {
    VEC(struct lives_event) events;
    uint64_t persistent[KIND_COUNT]; /* bytes of the storages that live through every program */
};

void lives_collect(struct lives *l, const struct plan *p, const struct graph *g);
void lives_free(struct lives *l);

/* Reports whether a storage occupies the device arena for the whole run. */
bool lives_is_persistent(const struct plan *p, const struct graph *g, id storage);

/* Returns the live bytes while each node of a program runs, by kind: [position * KIND_COUNT +
 * kind]. The caller frees the array. */
uint64_t *lives_by_position(const struct lives *l, const struct graph *g, enum program p);

/* The name and the kind of the storage or workspace of an event. */
const char *lives_name(const struct graph *g, const struct lives_event *v);
enum kind lives_kind(const struct graph *g, const struct lives_event *v);

/* Appends the plot to an open page (page.h). `seconds`: time of each node in one step, the width of
 * its instant. */
void arena_draw(const struct plan *p, const struct graph *g, const struct lives *l, const double *seconds,
                struct text *out);

/* Appends a curve of the live bytes over the time of a step. */
void arena_curve(const struct graph *g, const struct lives *l, const double *seconds, struct text *out);

/* Peaks of the live bytes of each program or phase of a step. */
struct step_peaks {
    uint64_t forward_only, forward, backward, update; /* evaluation; `backward` has the forward too */
};
struct step_peaks lives_peaks(const struct plan *plan, const struct graph *g);

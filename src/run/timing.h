/*
 * timing.h: how long each node of a tape took, and when.
 *
 * A tape with a timing takes the clock before and after every launch and adds up, by
 * node, and where there is room for it notes the launch itself; without one (the usual
 * case) the runner pays a test of a pointer. A device that replays whole programs has no
 * nodes to time: given a timing it launches node by node instead (src/cuda/nodes.c), so
 * that what it times is the nodes, and no longer the step.
 */
#ifndef TIMING_H
#define TIMING_H

#include "graph/graph.h"

/* One launch. */
struct timing_event {
    id node;
    uint32_t position;     /* in its program's order */
    uint8_t program, lane;
    double from, to;       /* clock_seconds() */
};

struct timing {
    uint32_t nodes;
    double *seconds;       /* by node, over all its launches */
    uint32_t *calls;
    struct timing_event *events;
    uint32_t n_events, room; /* launches beyond the room are only added up */
};

void timing_init(struct timing *t, const struct graph *g);
/* One launch more. */
void timing_add(struct timing *t, const struct timing_event *v);
/* Makes room for the next `launches` to be noted, and forgets those that were. */
void timing_note(struct timing *t, uint32_t launches);
/* Sums only; what was noted stays. */
void timing_clear(struct timing *t);
/* `to` becomes what `from` is. Both were made for the same graph. */
void timing_copy(struct timing *to, const struct timing *from);
void timing_free(struct timing *t);

#endif

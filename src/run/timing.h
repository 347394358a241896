/*
 * timing.h: the time of each node of a tape.
 *
 * A tape with a timing reads the clock before and after every launch and sums the seconds by node;
 * while there is room, it records the launch as an event. Without a timing (the usual case) the
 * cost is one pointer test. A device that replays whole programs cannot time nodes: with a timing
 * it launches node by node instead (src/cuda/device/nodes.c), so the times are those of nodes, not
 * of the step.
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
    uint32_t n_events, room; /* further launches are summed but not recorded */
};

void timing_init(struct timing *t, const struct graph *g);
/* Adds one launch. */
void timing_add(struct timing *t, const struct timing_event *v);
/* Makes room for `launches` events and drops the recorded ones. */
void timing_record_events(struct timing *t, uint32_t launches);
/* Clears the sums; the recorded events stay. */
void timing_clear(struct timing *t);
/* Copies the sums of `from`. Both belong to the same graph. */
void timing_copy(struct timing *to, const struct timing *from);
void timing_free(struct timing *t);

#endif

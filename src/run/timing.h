/*
 * timing.h: how long each node of a tape took.
 *
 * A tape with a timing takes the clock before and after every launch and adds up, by
 * node; without one (the usual case) the runner pays a test of a pointer. The CPU's
 * runner alone knows it: a device that replays a whole program at once has no nodes
 * to time.
 */
#ifndef TIMING_H
#define TIMING_H

#include "graph/graph.h"

struct timing {
    uint32_t nodes;
    double *seconds;   /* by node, over all its launches */
    uint32_t *calls;
};

void timing_init(struct timing *t, const struct graph *g);
void timing_clear(struct timing *t);
/* `to` becomes what `from` is. Both were made for the same graph. */
void timing_copy(struct timing *to, const struct timing *from);
void timing_free(struct timing *t);

#endif

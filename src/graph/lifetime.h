/*
 * lifetime.h: from when to when a storage holds something, in one program.
 */
#ifndef LIFETIME_H
#define LIFETIME_H

#include "graph/graph.h"

/* First and last instant (position in the program's order) of a storage. */
struct life {
    uint32_t start, end;
    bool used;
};

/* Fills life[] by storage (g->storages.n elements). A storage that a loop's
 * iterations hand on, or that a loop fills slice by slice, lives through the
 * whole loop; one that is written and last read within one iteration does not. */
void graph_lifetimes(const struct graph *g, enum program p, struct life *life);

#endif

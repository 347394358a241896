/*
 * lifetime.h: the live range of each storage in one program.
 */
#pragma once

#include "graph/graph.h"

/* First and last position of a storage's live range in the program's order. */
struct life {
    uint32_t start, end;
    bool used;
};

/* Fills life[], indexed by storage (g->storages.n elements). A storage that a loop carries from
 * iteration to iteration, or that a loop fills slice by slice, is live through the whole loop; a
 * storage that is written and last read within one iteration is not. */
void graph_lifetimes(const struct graph *g, enum program p, struct life *life);

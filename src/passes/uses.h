/*
 * uses.h: who touches what in a program, counted. The caller frees what it gets.
 */
#ifndef USES_H
#define USES_H

#include "graph/graph.h"

/* By tensor: how often nodes read it, and once more for each output, and for the update where it is a gradient. */
uint32_t *readers_by_tensor(const struct graph *g, enum program p);
/* By storage: how often nodes read it, and once more for each output. */
uint32_t *readers_by_storage(const struct graph *g, enum program p);
/* The same, with how often nodes write it. */
uint32_t *uses_by_storage(const struct graph *g, enum program p);
/* By node: its place in the order, from 1; 0: it has none. */
uint32_t *places_by_node(const struct graph *g, enum program p);

#endif

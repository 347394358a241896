/*
 * uses.h: counts of reads and writes in a program. The caller frees the results.
 */
#pragma once

#include "graph/graph.h"

/* Counts, by tensor, the reads by nodes, plus one for each output, plus one for the update if it is
 * a gradient. */
uint32_t *readers_by_tensor(const struct graph *g, enum program p);
/* Counts, by storage, the reads by nodes, plus one for each output. */
uint32_t *readers_by_storage(const struct graph *g, enum program p);
/* Counts the same plus the writes by nodes. */
uint32_t *uses_by_storage(const struct graph *g, enum program p);
/* Returns, by node, its position in the order, from 1; 0: not in the program. */
uint32_t *positions_by_node(const struct graph *g, enum program p);

/* Returns the position behind the block, or the loop inside `body`, that the node at position k
 * belongs to in the backward: what that node completes can be sent from there on. */
uint32_t block_end(const struct graph *g, enum program p, uint32_t k, id body);

/* Marks, by tensor, what depends on the step's batch, not only on weights, tables and inputs that
 * all samples share. */
bool *tensors_from_batch(const struct graph *g, enum program p);

/*
 * regions.h: which nodes of the forward are computed in parts by the ranks of AXIS_TENSOR.
 *
 *     norm - LINEAR along N - heads, rotated - ATTENTION by heads - LINEAR along K - residual
 *
 * A region begins with products along N, which read all of their inputs, and ends with products
 * along K, whose results are terms of a sum. Every node between them can be cut along the
 * dimension that follows (node_cuts.h). It is found backwards from its end, in all programs at
 * once, because they share weights. What cannot be cut stays whole.
 *
 * A vocabulary is a region too: the table of an embedding, whose rows are terms of a sum, and the
 * head, along the columns of its logits, up to the cross-entropy or the output of a program that
 * generates. Its last part may be shorter than the others.
 */
#pragma once

#include "graph/node_cuts.h"

struct use {
    id node;
    int slot;
};

struct regions {
    const struct graph *g;
    int parts, here;      /* of all ranks, of each rank */
    struct axis_cut *cut; /* by tensor; sections 0: it is whole */
    bool *partial;        /* by tensor: a term of a sum over the parts */
    uint8_t *inside;      /* by node: it is computed in parts; 1: in the region that is being found */
    uint8_t *known;       /* by node inside: a slot that is cut (node_cut) */
    uint32_t *first;      /* by tensor: the first of its uses */
    struct use *uses;
    uint32_t found;  /* regions of blocks */
    bool vocabulary; /* the region that is being found is that of a vocabulary */
    VEC(id) touched; /* tensors of the region that is being found, or to be visited */
    VEC(id) nodes;
};

/* Finds the regions of a graph before differentiation. */
void regions_find(struct regions *r, const struct graph *g, int parts, int here);
void regions_free(struct regions *r);
/* Returns how a node inside is cut. */
struct node_cut regions_cut(const struct regions *r, id node);

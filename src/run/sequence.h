/*
 * sequence.h: which launches run over what is there of a sequence (graph.sequence): the patches of
 * images of any size, of which a batch may have fewer than planned.
 *
 *     planned      |------------------------------------| P     memory, the predicted time
 *     of a step    |--- images ---|.|                           the launches
 *                                  ^ the rest of a bucket: padding, which sees nothing
 *
 * A launch of the tower has one dimension along the sequence in most of its tensors. It runs over
 * the leading entries and leaves the others as they are: nothing reads them. A sum over entries
 * has the order that it has over all of them, and padding adds zeros, so the bits are those of a
 * run over the whole sequence.
 *
 *     pixels [1,P,K]   LINEAR  x [1,P,C]   follows: M is the extent
 *     dy [1,P,C] x     MATMUL  dw [C,C]    follows: K is the extent
 *     features [1,P/4,C]  REPLACE_ROWS     reads features by an index, which points at no others
 *
 * Where the rest of the program reads the sequence in another way, no launch follows it.
 */
#pragma once

#include "graph/graph.h"

struct sequence {
    int64_t entries;        /* of the sequence, or of a section of it; 0: no launch follows it */
    int64_t whole, bucket;  /* entries of all sections; of a bucket */
    int64_t sections;       /* which a loop visits one after another; 1: there is no such loop */
    id loop;                /* the loop over micro-batches, each with a sequence; 0: none */
    uint8_t *along;         /* by tensor: 1 + the dimension along the sequence; 0: none */
    bool *follows;          /* by node */
};

/* Finds the launches that follow the graph's sequence. */
void sequence_find(struct sequence *s, const struct graph *g);
void sequence_free(struct sequence *s);
/* Returns the entries to run over if the batch has n. */
int64_t sequence_extent(const struct sequence *s, int64_t n);

/*
 * division.h: how a weight is divided among the ranks of AXIS_TENSOR: along one dimension, section
 * by section, in parts of equal length.
 *
 *     whole     [ q: 8 heads            | k: 2  | v: 2  ]    rows of queries, keys and values in one matrix
 *     part 0    [ q: 4      | k: 1 | v: 1 ]                  of 2 parts
 *     part 1    [ q: 4      | k: 1 | v: 1 ]
 *
 * If a section is not divisible, its last part ends in zeros. If it has fewer heads than there are
 * parts, parts that follow each other hold copies of the same. A weight that each part needs whole
 * has one section, and as many copies as there are parts.
 *
 * A storage of a part has `division` set. The tensor of the weight, or of its state, which then no
 * node reads, has the shape of the whole: loading and saving count the whole's elements
 * (folder/transfer.c).
 */
#pragma once

#include "graph/graph.h"

/* Returns the length of a section in each part, and of all sections. */
int64_t division_section(const struct division *d, int section);
int64_t division_length(const struct division *d);
/* Reports whether the parts differ: along a dimension, and not only by who has them. */
bool division_cuts(const struct division *d);

/* Returns the division of a tensor's storage; NULL: it is the whole. */
static inline const struct division *division_of(const struct graph *g, id tensor)
{
    const uint16_t number = storage_of(g, tensor)->division;
    return number ? &g->divisions.at[number - 1] : NULL;
}
/* Returns which part of a divided weight a storage is, for the ops of the update. */
struct part_number division_number(const struct graph *g, id tensor);
/* Divides the state of a weight's optimizer as its storage `like` is. blocks: it has a pair of
 * numbers for each block of 8-bit state. Returns false if blocks would lie in two parts. */
bool division_copy(struct graph *g, id storage, id like, bool blocks);

/* Consecutive elements of the whole that follow each other in a part too. */
struct division_run {
    int64_t n;
    int part, copies; /* the first part that has them, and how many have them */
    int64_t at;       /* the first of them in that part */
};
/* Returns the longest run that begins at element `at` of the whole. */
struct division_run division_run(const struct division *d, int64_t at);

/*
 * node_cuts.h: how a node can be computed in parts along a dimension, as CUT rows of ops.def say.
 *
 *     LINEAR   "N K+"    y[...,N] = x[...,K] w[N,K]^T
 *         along N: parts of w's rows and of y's columns, all of x
 *         along K: parts of x's columns and of w's, and each y is a term of a sum over the parts
 */
#pragma once

#include "graph/graph.h"

/* A tensor in parts: along an axis, section by section (struct division). sections 0: it is not
 * cut. */
struct axis_cut {
    uint8_t axis, sections;
    bool ragged; /* the last part may be shorter, and is padded */
    struct section section[SECTIONS_MOST];
};

/* The tensors of a node: of each input and, from MAX_IN on, output how it is cut. */
struct node_cut {
    struct axis_cut tensor[MAX_IN + MAX_OUT];
    bool partial; /* the outputs are terms of a sum over the parts */
};

/* Sets how the tensors of a node are cut if that of a slot, an input or MAX_IN + an output, is cut
 * as `known`. Returns false if the node cannot be computed so. */
bool node_cut(const struct graph *g, const struct node *n, int slot, const struct axis_cut *known, int parts,
              struct node_cut *out);

/* Returns a cut of one section along an axis of `length`; sections 0: it is not divisible among the
 * parts. */
struct axis_cut axis_cut_even(int axis, int64_t length, int parts);
/* Returns the length of a part. */
int64_t axis_cut_length(const struct axis_cut *c, int parts);
bool axis_cuts_alike(const struct axis_cut *a, const struct axis_cut *b);
/* Returns the cut of the elements [start, start + length) along the axis, which is some of the
 * sections; sections 0: it is not. */
struct axis_cut axis_cut_part(const struct axis_cut *c, int64_t start, int64_t length);
/* Returns where element `start` along the axis, at which a section begins, is in a part. */
int64_t axis_cut_start(const struct axis_cut *c, int64_t start, int parts);

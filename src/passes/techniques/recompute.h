/*
 * recompute.h: shared by recompute.c and selective.c: which nodes of the step are recomputed
 * together, which may be recomputed one by one, and the walk that repeats them.
 */
#pragma once

#include "passes/passes.h"

/* By node of program step; only forward nodes have values. */
struct units {
    uint32_t *of;    /* the unit with which it is recomputed, from 1; 0: none */
    uint32_t n;      /* units */
    bool *selective; /* may be recomputed by itself, where that is cheap */
    bool any;        /* some node may */
};

/* Fills `u` from the settings and module rules (recompute_units.c). */
void units_find(struct units *u, const struct graph *g, const struct settings *s);
void units_free(struct units *u);

/* Emits a repetition of node `made`: n, which may read other inputs. copy, by tensor, gets its
 * outputs. */
void repeat_node(struct graph *g, id made, const struct node *n, id *copy);
/* Calls `before` for each backward node of program step, with its position: what it emits precedes
 * the node. */
typedef void repeat_before(void *to, id node, uint32_t position);
void repeat_in_backward(struct graph *g, const char *pass, repeat_before *before, void *to);

/* Updates a view node of the backward after a pass replaced its input: the view's storage and
 * strides follow the input. Does nothing for other nodes. */
void view_follow_input(struct graph *g, const struct node *n);

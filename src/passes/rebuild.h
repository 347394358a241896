/*
 * rebuild.h: what recompute.c and selective.c share: which nodes of the step are rebuilt,
 * together with which others, and which may be made again one by one.
 */
#ifndef REBUILD_H
#define REBUILD_H

#include "passes/passes.h"

/* By node of program step; only nodes of the forward have any. */
struct units {
    uint32_t *of;    /* the unit it is rebuilt with, from 1; 0: none */
    uint32_t n;      /* units */
    bool *selective; /* may be made again by itself, where that is cheap */
    bool any;        /* some node may */
};

/* From settings and rules of modules (units.c). */
void units_find(struct units *u, const struct graph *g, const struct settings *s);
void units_free(struct units *u);

/* A view in the backward, where a pass exchanged what it views, lies where that now lies.
 * Nothing happens to any other node. */
void rebuild_follow(struct graph *g, const struct node *n);

#endif

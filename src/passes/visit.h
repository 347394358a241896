/*
 * visit.h: storages whose home is host memory, and their visits to the compute space.
 *
 * A program's order is cut into units: the nodes of one block in one direction, an inner
 * loop as a whole, the update of one weight. Within a unit a home storage has one visitor, a
 * transient of the compute space that a copy fills before the unit and, where the unit wrote
 * to it, a copy empties behind it. Everything is done by nodes put between those there are;
 * these only get other operands.
 *
 *     struct visits v;
 *     visits_begin(&v, g, program, accumulated);
 *     ... visit_unit, or visit_fetch and visit_rewrite ...
 *     visits_end(&v);
 */
#ifndef VISIT_H
#define VISIT_H

#include "graph/graph.h"

/* A node that will stand before the node that is now at a position. */
struct insertion {
    uint32_t at, turn;      /* turn: which of those of one position comes first */
    id node;
};

struct visitor {
    id storage;             /* in the compute space; 0: none in this unit */
    id fetch;               /* the node that fills it */
    id writer;              /* the last node that wrote to it; 0: none */
};

struct visits {
    struct graph *g;
    enum program program;
    id level;               /* the loop whose body copies may stand in; 0: none */
    bool beside;            /* copies run beside arithmetic, and both ways at once; else they only take their time */
    uint32_t count;         /* nodes of the program, and themselves, before anything is put in */
    id *nodes;
    uint32_t units, *unit;  /* their number; by position */
    uint32_t *first;        /* by unit: its first position; one more: the end */
    uint32_t *rank;         /* by unit: how many came before it that are no updates */
    uint32_t tensors, storages; /* that there were at the beginning */
    id *home;               /* by tensor: the storage that it lay in at the beginning */
    id *leaf, *some;        /* by storage: a tensor from outside that is all of it, or 0; any one */
    struct visitor *here;   /* by storage: its visitor in the unit that is worked on */
    uint32_t *stored;       /* by storage: the position before which its home is not whole */
    id *clone;              /* by tensor: its like on the visitor... */
    uint32_t *stamp;        /* ...in the unit of this number + 1 */
    VEC(struct insertion) insertions;
    struct cursor before;
};

/* Cuts program `p` into units. `accumulated`: its last nodes are the body of the loop over
 * micro-batches, and that body is where copies stand. */
void visits_begin(struct visits *v, struct graph *g, enum program p, bool accumulated, const char *pass);
/* Puts the new nodes in their places and frees what was taken. */
void visits_end(struct visits *v);

/* The node at a position, and the loop in which a copy beside it stands. */
const struct node *visit_node(const struct visits *v, uint32_t position);
/* Where a fetch for unit `u` stands: before the unit in front of it, updates in between not counted, where both
 * are in the level's body or both outside of it; else before `u` itself. For an update: before the unit in front of
 * it, whatever that is, where copies run beside; else before `u`. */
uint32_t visit_from(const struct visits *v, uint32_t u);

/* All tensors of a home storage as one dense tensor: the leaf where there is one. */
id visit_whole(struct visits *v, id home);
/* A COPY into `space`, into `to` where it is not 0, to stand before position `at`; marked as
 * made for the node at `origin`. Returns the node. */
id visit_copy(struct visits *v, id from, id to, enum space space, uint32_t at, uint32_t origin);

/* The storage's visitor from here on: a copy of `whole`, to stand before position `at`. */
void visit_fetch(struct visits *v, id home, id whole, uint32_t at, uint32_t origin);
/* The node at position `k` works on the visitors that there are; `number` tells one group of
 * nodes with the same visitors from another, and is never 0. */
void visit_rewrite(struct visits *v, uint32_t k, uint32_t number);

/* The home storages marked in `away` (by storage) that unit `u` touches visit for it. */
void visit_unit(struct visits *v, uint32_t u, const bool *away);

#endif

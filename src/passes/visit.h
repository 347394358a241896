/*
 * visit.h: offloaded storages and their temporary copies in device memory.
 *
 * An offloaded storage has its home in host memory (on a CPU: in the offload file). A visitor is a
 * transient device copy of it. A program's order is cut into units: the nodes of one block in one
 * direction, a whole inner loop, or the update of one weight. In a fused step updates cut the
 * backward of a block into several units. Where visitors are held these are one run, to which the
 * updates among and behind them belong too; elsewhere a run is one of them, which keeps less in
 * memory and copies more. Within a run a home of the block has one visitor, and an update
 * has its own. A copy fills the visitor before the run, or the update; if a unit writes to it, a
 * copy writes it back after that unit. Only COPY nodes are inserted; existing nodes keep their
 * order and get other operands.
 *
 *     unit   | block 3 | update | block 3 | update | block 2 | update ...
 *     run    |-------------- 1 -------------------|------ 2 ------         held
 *            |------- 1 --------|------- 2 -------|------ 3 ------
 *
 * A home may also be a shard of a weight (shard_weights.c): then ALL_GATHER fills the visitor with
 * the whole, and units do not write to it.
 *
 * A node may also go to where homes are: visit_host moves it to the host's processor, and copies
 * its other operands there.
 *
 *     struct visits v;
 *     visits_begin(&v, g, program, levels, overlaps, holds, pass);
 *     ... visit_unit and visit_host, or visit_fetch and visit_rewrite ...
 *     visits_end(&v);
 */
#pragma once

#include "graph/graph.h"

/* A node to insert before the node at a position. */
struct insertion {
    uint32_t at, turn;      /* turn: the order of insertions at one position */
    id node;
};

struct visitor {
    id storage;             /* in device memory; 0: none now */
    id fetch;               /* the COPY or ALL_GATHER that fills it */
    id writer;              /* the last node that writes to it; 0: none */
};

struct visits {
    struct graph *g;
    enum program program;
    id level;               /* the loop whose body may hold copies; 0: none */
    bool overlaps;          /* copies overlap with compute */
    bool holds;             /* updates do not end a run */
    bool spread;            /* visitors are fetched from the last unit with visitors on */
    int ranks, axis, host;  /* ranks that homes are sharded over, as in attr.group; 0: copies */
    const id *shard;        /* by storage: the shard, a vector */
    uint32_t count;         /* number of the program's nodes before insertions, and the nodes */
    id *nodes;
    uint32_t units, *unit;  /* number of units; unit by position */
    uint32_t *first;        /* by unit: its first position; one more entry for the end */
    uint32_t visited;       /* the last unit that visit_unit gave visitors, + 1; 0: none */
    uint32_t *run;          /* by unit: the number of its run */
    VEC(id) held;           /* the homes with visitors of the current run */
    uint32_t tensors, storages; /* counts at the beginning */
    id *home;               /* by tensor: its storage at the beginning */
    id *leaf, *some;        /* by storage: a tensor that no node writes and that covers it, or 0; any tensor */
    struct visitor *here;   /* by storage: its visitor */
    uint32_t *stored;       /* by storage: the position from which its home is up to date */
    id *clone;              /* by tensor: the same view on the visitor... */
    uint32_t *stamp;        /* ...for the unit with this number + 1 */
    const bool *stays;      /* by position: the node reads and writes homes, not visitors; NULL: none does */
    id *hosted;             /* by tensor: its copy in host memory, for nodes that only read it; 0: none */
    VEC(struct insertion) insertions;
    struct cursor before;
};

/* Cuts program `p` into units. `levels`: the number of loops around a micro-batch (over shares,
 * over micro-batches); copies are inserted in the body of the innermost of these. `overlaps`: they
 * overlap with compute and with each other (GPU). `holds`: a run holds what it has fetched through
 * the updates in it. */
void visits_begin(struct visits *v, struct graph *g, enum program p, int levels, bool overlaps, bool holds,
                  const char *pass);
/* Inserts the new nodes and frees everything. */
void visits_end(struct visits *v);

/* Returns the node at a position. */
const struct node *visit_node(const struct visits *v, uint32_t position);
/* Returns the position of a fetch for unit `u`: before the previous run, if both are in the level's
 * body or both outside; else before `u` itself. For an update: before the previous unit of any kind
 * if copies overlap with compute; else before `u`. */
uint32_t visit_from(const struct visits *v, uint32_t u);

/* Returns a dense tensor that covers a home storage: the leaf if there is one. */
id visit_whole(struct visits *v, id home);
/* Emits a COPY of `from` into `space`, into tensor `to` unless it is 0, to be inserted before
 * position `at`. Its origin is the node at `origin`. Returns the node. */
id visit_copy(struct visits *v, id from, id to, enum space space, uint32_t at, uint32_t origin);

/* Sets the storage's visitor: a copy of `whole`, inserted before position `at`. */
void visit_fetch(struct visits *v, id home, id whole, uint32_t at, uint32_t origin);
/* Lets the node at position `k` use the current visitors. `number`, never 0, identifies a group of
 * nodes with the same visitors. */
void visit_rewrite(struct visits *v, uint32_t k, uint32_t number);

/* Gives unit `u` visitors for the storages marked in `offloaded` (by storage) that it accesses, or
 * that its run does. Units are visited in their order. */
void visit_unit(struct visits *v, uint32_t u, const bool *offloaded);
/* Moves the node at position `k`, which is in no loop, to LANE_HOST: what it reads of device memory
 * is copied to host memory before it, and what it writes there is copied back after it. Weights
 * whose master it updates are only written; returns whether there are any, which have no value
 * before it. */
bool visit_host(struct visits *v, uint32_t k);

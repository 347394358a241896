/*
 * builder.h: the state of a model that is being built, shared by build.c and loops.c.
 */
#pragma once

#include "lib/session.h"

enum { DEPTH_MOST = 32, NAME_MOST = 200 };

/* An open scope. */
struct open_scope {
    id outer;      /* the scope around it */
    size_t prefix; /* length of the prefix of names around it */
};

struct pl_builder {
    struct graph *g;
    int64_t batch;
    struct open_scope open[DEPTH_MOST];
    int depth;
    char prefix[NAME_MOST + 1]; /* of the names of parameters: "layers.3." */
};

/* Returns a required tensor; 0, with the graph's error: it is none. */
id builder_tensor(struct pl_builder *b, pl_tensor x);
/* Sets an error of the graph and returns false if `what` has no name or one that is too long. */
bool builder_named(struct pl_builder *b, const char *what, const char *name);
/* Opens a scope with flags of graph.h; false: too many are open. */
bool builder_open(struct pl_builder *b, const char *name, int flags);
void builder_close(struct pl_builder *b);
/* Returns why a model cannot use an op, as the end of a sentence; NULL: it can. */
const char *builder_op_refused(int op);

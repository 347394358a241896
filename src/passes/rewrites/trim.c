/*
 * trim.c: removes outputs that no node reads, when all readers are known.
 *
 * A LINEAR_ACT (fuse.c) does not write z if no node reads it; one of which only z is read, as in a
 * recomputed block, becomes a LINEAR.
 */
#include "graph/ops.h"
#include "passes/passes.h"
#include "passes/uses.h"

static void trim_program(struct graph *g, enum program p)
{
    uint32_t *readers = readers_by_storage(g, p);
    for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
        struct node *n = node_at(g, g->order[p].nodes.at[k]);
        if (n->op != OP_LINEAR_ACT || !n->out[1]) continue;
        if (!readers[tensor_at(g, n->out[1])->storage]) {
            n->out[1] = 0;
        } else if (!readers[tensor_at(g, n->out[0])->storage]) {
            n->op = OP_LINEAR;
            n->out[0] = n->out[1];
            n->out[1] = 0;
            n->nout = 1;
        }
    }
    mem_free(readers);
}

void pass_trim(struct graph *g, const struct settings *s)
{
    (void)s;
    FOR_PROGRAMS(p, PROGRAM_FORWARD) trim_program(g, p);
}

/*
 * offload.c: optimizer state lives in the second space and visits the compute
 * space for its own update.
 *
 *     m, v (host) --copy--> staging --AdamW--> staging --copy--> m, v (host)
 *
 * The staging tensors are ordinary transients of the update program, so at any
 * instant one weight's moments (plus the copies in flight) are in the compute
 * space instead of all of them. Copies are nodes of the copy lane.
 */
#include "graph/ops.h"
#include "passes/passes.h"

/* Copies `t` to the device and makes the node read the copy as input `i`. */
static void fetch(struct graph *g, struct node *n, int i)
{
    id here = op_copy(g, n->in[i], SPACE_DEVICE);
    n->in[i] = here;
}

static void store(struct graph *g, id from, id to)
{
    union attr a = {.copy = {SPACE_HOST}};
    graph_emit(g, OP_COPY, &a, (id[]){from, to}, 2);
}

void pass_offload(struct graph *g, const struct settings *s)
{
    if (!(s->offload & AWAY_STATE)) return;
    for (id st = 1; st < g->storages.n; st++)
        if (g->storages.at[st].kind == KIND_STATE) g->storages.at[st].space = SPACE_HOST;

    struct order *order = &g->order[PROGRAM_UPDATE];
    uint32_t count = order->nodes.n;
    id *nodes = mem_copy(order->nodes.at, count * sizeof(id));
    struct cursor before = graph_move(g, PROGRAM_UPDATE, PHASE_UPDATE, "offload");
    order->nodes.n = 0;
    for (uint32_t k = 0; k < count; k++) {
        struct node n = *node_at(g, nodes[k]);
        bool adam = n.op == OP_ADAMW;
        id home[2] = {n.in[2], n.in[3]};
        g->at.scope = n.scope;
        g->at.origin = nodes[k];
        if (adam) {
            fetch(g, &n, 2);
            fetch(g, &n, 3);
            graph_redirect(g, n.out[1], n.in[2]);
            graph_redirect(g, n.out[2], n.in[3]);
            *node_at(g, nodes[k]) = n;
        }
        vec_push(&order->nodes, nodes[k]);
        if (adam) {
            store(g, n.out[1], home[0]);
            store(g, n.out[2], home[1]);
        }
    }
    g->at = before;
    mem_free(nodes);
}

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

static void store(struct graph *g, id from, id to)
{
    union attr a = {.copy = {SPACE_HOST}};
    graph_emit(g, OP_COPY, &a, (id[]){from, to}, 2);
}

/* Is output `o` the new value of a state? Then `*from` is the input that was the old one. */
static bool is_state(const struct graph *g, const struct node *n, int o, int *from)
{
    *from = n->out[o] ? op_must_alias(g, n, o) : -1;
    return *from >= 0 && storage_of(g, n->in[*from])->kind == KIND_STATE;
}

/* Puts a node into the order with copies of its states before it and back behind it. */
static void visit(struct graph *g, struct order *order, id node)
{
    struct node n = *node_at(g, node);
    id home[MAX_OUT] = {0};
    g->at.scope = n.scope;
    g->at.origin = node;
    for (int o = 0, from; o < n.nout; o++) {
        if (!is_state(g, &n, o, &from)) continue;
        home[o] = n.in[from];
        n.in[from] = op_copy(g, home[o], SPACE_DEVICE);
        graph_redirect(g, n.out[o], n.in[from]);
    }
    *node_at(g, node) = n;
    vec_push(&order->nodes, node);
    for (int o = 0; o < n.nout; o++)
        if (home[o]) store(g, n.out[o], home[o]);
}

static void visit_all(struct graph *g, enum program p)
{
    struct order *order = &g->order[p];
    uint32_t count = order->nodes.n;
    id *nodes = mem_copy(order->nodes.at, count * sizeof(id));
    struct cursor before = graph_move(g, p, PHASE_UPDATE, "offload");
    order->nodes.n = 0;
    for (uint32_t k = 0; k < count; k++) visit(g, order, nodes[k]);
    g->at = before;
    mem_free(nodes);
}

void pass_offload(struct graph *g, const struct settings *s)
{
    if (!(s->offload & AWAY_STATE)) return;
    for (id st = 1; st < g->storages.n; st++)
        if (g->storages.at[st].kind == KIND_STATE) g->storages.at[st].space = SPACE_HOST;
    visit_all(g, PROGRAM_STEP);
    visit_all(g, PROGRAM_UPDATE);
}

/*
 * recompute.c: a block's activations are rebuilt in the backward instead of kept.
 *
 *     forward    x0 -[block 0]- x1 -[block 1]- x2 ...        only x0, x1, x2 kept
 *     backward   ... [block 1 again from x1] [its backward] [block 0 again from x0] ...
 *
 * For each block: the forward nodes that lead from outside the block to what its
 * backward reads are repeated just before that backward, and the backward reads
 * the repetition. The same kernels on the same bytes give the same bits; random
 * numbers are keyed by the stable id that a repetition shares with its original.
 */
#include "graph/ops.h"
#include "passes/passes.h"

struct block {
    struct graph *g;
    id scope;
    id *copy;    /* by tensor: its repetition; 0: none */
    bool *need;  /* by node: must be repeated */
};

static bool in_block(const struct block *b, const struct node *n) { return graph_block_of(b->g, n->scope) == b->scope; }

/* The forward node of this block that made `t`; 0: it comes from outside. */
static id made_inside(const struct block *b, id t)
{
    id n = t ? tensor_at(b->g, t)->node : 0;
    if (!n) return 0;
    const struct node *x = node_at(b->g, n);
    return x->phase == PHASE_FORWARD && in_block(b, x) ? n : 0;
}

static void mark_needed(struct block *b, id t)
{
    id n = made_inside(b, t);
    if (!n || b->need[n]) return;
    CHECK(!(op_table[node_at(b->g, n)->op].flags & OPF_EFFECT), "a node with effects inside a block");
    b->need[n] = true;
    for (int i = 0; i < node_at(b->g, n)->nin; i++) mark_needed(b, node_at(b->g, n)->in[i]);
}

/* Repeats node `n` at the end of the order, reading repetitions where there are. */
static void repeat(struct block *b, id n)
{
    struct graph *g = b->g;
    struct node x = *node_at(g, n);
    id in[MAX_IN];
    for (int i = 0; i < x.nin; i++) in[i] = x.in[i] && b->copy[x.in[i]] ? b->copy[x.in[i]] : x.in[i];
    g->at.scope = x.scope;
    g->at.origin = n;
    id again = graph_emit(g, x.op, &x.attr, in, x.nin);
    CHECK(again, "a node that was valid is not when repeated");
    for (int o = 0; o < x.nout; o++)
        if (x.out[o]) b->copy[x.out[o]] = node_at(g, again)->out[o];
}

static void recompute_block(struct block *b)
{
    struct graph *g = b->g;
    struct order *order = &g->order[PROGRAM_STEP];
    uint32_t count = order->nodes.n, first = count;
    id *old = mem_copy(order->nodes.at, count * sizeof(id));
    for (uint32_t k = 0; k < count; k++) {
        const struct node *n = node_at(g, old[k]);
        if (n->phase != PHASE_BACKWARD || !in_block(b, n)) continue;
        if (first == count) first = k;
        for (int i = 0; i < n->nin; i++) mark_needed(b, n->in[i]);
    }
    if (first < count) {
        order->nodes.n = first;
        g->at.loop = node_at(g, old[first])->loop;
        for (uint32_t k = 0; k < first; k++)
            if (b->need[old[k]]) repeat(b, old[k]);
        for (uint32_t k = first; k < count; k++) {
            struct node *n = node_at(g, old[k]);
            for (int i = 0; i < n->nin && in_block(b, n); i++)
                if (n->in[i] && b->copy[n->in[i]]) n->in[i] = b->copy[n->in[i]];
            vec_push(&order->nodes, old[k]);
        }
    }
    mem_free(old);
}

void pass_recompute(struct graph *g, const struct settings *s)
{
    if (s->recompute.kind != REBUILD_ALL) return;
    struct cursor before = graph_move(g, PROGRAM_STEP, PHASE_RECOMPUTE, "recompute");
    for (id sc = 1; sc < g->scopes.n; sc++) {
        if (!(g->scopes.at[sc].flags & SCOPE_BLOCK)) continue;
        /* Repetitions are read by this block alone: tensors made meanwhile need no slot. */
        struct block b = {g, sc, mem_alloc(g->tensors.n * sizeof(id)), mem_alloc(g->nodes.n)};
        recompute_block(&b);
        mem_free(b.copy);
        mem_free(b.need);
    }
    g->at = before;
    graph_prune(g, PROGRAM_STEP);
}

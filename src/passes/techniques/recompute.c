/*
 * recompute.c: gradient (activation) checkpointing: the activations of a block are recomputed in
 * the backward instead of kept.
 *
 *     forward    x0 -[block 0]- x1 -[block 1]- x2 ...        only x0, x1, x2 kept
 *     backward   ... [recompute block 1 from x1] [its backward] [recompute block 0 from x0] ...
 *
 * A unit is recomputed at once (recompute_units.c): a block, a part of one, or a run of several.
 * For each unit, the forward nodes that lead from its inputs to what its backward reads are
 * repeated just before the first backward node that reads any of it, and the backward reads the
 * repetition. Other readers of the unit (the next block) read the original. The same kernels on the
 * same bytes give the same bits; random numbers are keyed by an attribute of the node, which its
 * repetition shares.
 *
 * Nodes with side effects, and nodes that overwrite a tensor from outside the unit, are never
 * repeated: their results are kept. All units are handled in one pass over the order.
 */
#include "graph/ops.h"
#include "passes/techniques/recompute.h"

struct recompute_pass {
    struct graph *g;
    struct units units;
    uint32_t tensors; /* number of tensors before the pass */
    id *copy;         /* by tensor: its recomputed copy; 0: none */
    bool *need;       /* by node: must be repeated */
    id *next;         /* by node: the next node of its unit to repeat */
    /* By unit: the backward node before which it is recomputed, its loop, and the list of nodes to
     * repeat. */
    id *at, *loop, *first;
};

/* Returns the unit of a node; for a backward node, that of the node that it differentiates. */
static uint32_t unit_of(const struct recompute_pass *r, id node)
{
    const struct node *n = node_at(r->g, node);
    return r->units.of[n->phase == PHASE_BACKWARD ? n->origin : node];
}

static id maker_inside(const struct recompute_pass *r, id t, uint32_t u);

/* Reports whether a node can be repeated. A node that overwrites an input can be repeated only if
 * that input is recomputed too: then it overwrites the copy. */
static bool repeats(const struct recompute_pass *r, const struct node *n, uint32_t u)
{
    if (n->phase != PHASE_FORWARD || op_table[n->op].flags & OPF_EFFECT || (r->at[u] && n->loop != r->loop[u]))
        return false;
    for (int o = 0; o < n->nout; o++) {
        int from = op_must_alias(n, o);
        if (from >= 0 && !maker_inside(r, n->in[from], u)) return false;
    }
    return true;
}

/* Finds the node of unit `u` that computes `t` and can be repeated; 0: there is none, as where `t`
 * comes from outside. */
static id maker_inside(const struct recompute_pass *r, id t, uint32_t u)
{
    id made = t && t < r->tensors ? tensor_at(r->g, t)->node : 0;
    if (!made || r->units.of[made] != u) return 0;
    const struct node *n = node_at(r->g, made);
    bool output = false; /* else a slice of an output */
    for (int o = 0; o < n->nout; o++) output |= n->out[o] == t;
    return output && repeats(r, n, u) ? made : 0;
}

/* Marks what the backward reads of its own unit; the first reader is where the unit is
 * recomputed. */
static void mark_read(struct recompute_pass *r, id node)
{
    const struct node *n = node_at(r->g, node);
    uint32_t u = n->phase == PHASE_BACKWARD ? unit_of(r, node) : 0;
    for (int i = 0; i < n->nin && u; i++) {
        id made = maker_inside(r, n->in[i], u);
        if (!made || node_at(r->g, made)->loop != n->loop) continue;
        if (!r->at[u]) r->at[u] = node, r->loop[u] = n->loop;
        r->need[made] = true;
    }
}

/* Marks what a needed node reads, and adds the node to the list of its unit. Called from the last
 * node to the first, so that the lists end up in the order of the forward. */
static void mark_inputs(struct recompute_pass *r, id node)
{
    if (!r->need[node]) return;
    const struct node *n = node_at(r->g, node);
    uint32_t u = r->units.of[node];
    for (int i = 0; i < n->nin; i++) {
        id made = maker_inside(r, n->in[i], u);
        if (made) r->need[made] = true;
    }
    r->next[node] = r->first[u];
    r->first[u] = node;
}

void repeat_node(struct graph *g, id made, const struct node *n, id *copy)
{
    g->at.scope = n->scope;
    g->at.origin = made;
    id repeated = graph_emit(g, n->op, &n->attr, n->in, n->nin);
    CHECK(repeated, "the repetition of a valid node is not valid");
    for (int o = 0; o < n->nout; o++)
        if (n->out[o]) copy[n->out[o]] = node_at(g, repeated)->out[o];
}

/* Emits a repetition of a node; it reads recomputed inputs where they exist. */
static void repeat(struct recompute_pass *r, id node)
{
    struct node n = *node_at(r->g, node);
    for (int i = 0; i < n.nin; i++)
        if (maker_inside(r, n.in[i], r->units.of[node])) n.in[i] = r->copy[n.in[i]];
    repeat_node(r->g, node, &n, r->copy);
}

/* Redirects the inputs of a backward node to the recomputed copies; if it is the first reader of
 * its unit, emits the unit before it. */
static void redirect_backward(void *pass, id node, uint32_t position)
{
    struct recompute_pass *r = pass;
    struct graph *g = r->g;
    (void)position;
    uint32_t u = unit_of(r, node);
    if (!u || !r->at[u]) return;
    if (r->at[u] == node) {
        g->at.loop = r->loop[u];
        for (id k = r->first[u]; k; k = r->next[k]) repeat(r, k);
    }
    struct node *n = node_at(g, node);
    for (int i = 0; i < n->nin; i++)
        if (maker_inside(r, n->in[i], u) && r->copy[n->in[i]]) n->in[i] = r->copy[n->in[i]];
}

void repeat_in_backward(struct graph *g, const char *pass, repeat_before *before, void *to)
{
    struct cursor at = graph_move(g, PROGRAM_STEP, PHASE_RECOMPUTE, pass);
    struct order *order = &g->order[PROGRAM_STEP];
    uint32_t count = order->nodes.n;
    id *old = mem_copy(order->nodes.at, count * sizeof(id));
    order->nodes.n = 0;
    for (uint32_t k = 0; k < count; k++) {
        if (node_at(g, old[k])->phase == PHASE_BACKWARD) {
            before(to, old[k], k);
            view_follow_input(g, node_at(g, old[k]));
        }
        vec_push(&order->nodes, old[k]);
    }
    mem_free(old);
    g->at = at;
    graph_prune(g, PROGRAM_STEP);
}

void pass_recompute(struct graph *g, const struct settings *s)
{
    struct recompute_pass r = {.g = g, .tensors = g->tensors.n};
    const struct order *order = &g->order[PROGRAM_STEP];
    struct bump b = {0};
    units_find(&r.units, g, s);
    if (r.units.n) {
        size_t units = r.units.n + 1;
        r.copy = bump_alloc(&b, r.tensors * sizeof *r.copy);
        r.need = bump_alloc(&b, g->nodes.n);
        r.next = bump_alloc(&b, g->nodes.n * sizeof *r.next);
        r.at = bump_alloc(&b, units * sizeof *r.at);
        r.loop = bump_alloc(&b, units * sizeof *r.loop);
        r.first = bump_alloc(&b, units * sizeof *r.first);
        for (uint32_t k = 0; k < order->nodes.n; k++) mark_read(&r, order->nodes.at[k]);
        for (uint32_t k = order->nodes.n; k-- > 0;) mark_inputs(&r, order->nodes.at[k]);
        repeat_in_backward(g, "recompute", redirect_backward, &r);
        bump_free(&b);
    }
    units_free(&r.units);
}

void view_follow_input(struct graph *g, const struct node *n)
{
    if (!(op_table[n->op].flags & OPF_VIEW) || tensor_at(g, n->out[0])->storage == tensor_at(g, n->in[0])->storage)
        return;
    struct infer f = {.op = n->op, .attr = &n->attr, .in = {tensor_at(g, n->in[0])}, .nin = 1};
    op_infer(&f);
    struct tensor *t = tensor_at(g, n->out[0]);
    t->storage = f.in[0]->storage;
    t->offset = f.out[0].offset;
    for (int i = 0; i < t->rank; i++) t->stride[i] = f.out[0].stride[i];
}

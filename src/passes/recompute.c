/*
 * recompute.c: a block's activations are rebuilt in the backward instead of kept.
 *
 *     forward    x0 -[block 0]- x1 -[block 1]- x2 ...        only x0, x1, x2 kept
 *     backward   ... [block 1 again from x1] [its backward] [block 0 again from x0] ...
 *
 * What is rebuilt at once is a unit (units.c): a block, a part of one, or a run of several.
 * For each unit the forward nodes that lead from outside of it to what its backward reads are
 * repeated just before the first that reads any, and its backward reads the
 * repetition. What others read of the unit (the next block's input) stays as it was.
 * The same kernels on the same bytes give the same bits; random numbers are keyed by the
 * stable id that a repetition shares with its original.
 *
 * Nodes with effects, and those that write over what comes from outside, are never repeated:
 * their results are kept. All units are done in one walk over the order.
 */
#include "graph/ops.h"
#include "graph/rules.h"
#include "passes/rebuild.h"

struct recompute {
    struct graph *g;
    struct units units;
    uint32_t tensors; /* how many there were before */
    id *copy;         /* by tensor: its repetition; 0: none */
    bool *need;       /* by node: must be repeated */
    id *next;         /* by node: the next of its unit that must */
    /* By unit: the node of the backward before which it is rebuilt, its loop, and the list of what
     * is repeated there. */
    id *at, *loop, *first;
};

/* The unit that a node belongs to: of the backward, that of the node it differentiates. */
static uint32_t unit_of(const struct recompute *r, id node)
{
    const struct node *n = node_at(r->g, node);
    return r->units.of[n->phase == PHASE_BACKWARD ? n->origin : node];
}

static id made_inside(const struct recompute *r, id t, uint32_t u);

/* What writes over an input can be repeated where that is made again itself: then it writes
 * over the repetition. */
static bool repeats(const struct recompute *r, const struct node *n, uint32_t u)
{
    if (n->phase != PHASE_FORWARD || op_table[n->op].flags & OPF_EFFECT || (r->at[u] && n->loop != r->loop[u])) return false;
    for (int o = 0; o < n->nout; o++) {
        int from = op_must_alias(r->g, n, o);
        if (from >= 0 && !made_inside(r, n->in[from], u)) return false;
    }
    return true;
}

/* The node of unit `u` that makes `t` and can do so again; 0: it comes from outside. */
static id made_inside(const struct recompute *r, id t, uint32_t u)
{
    id made = t && t < r->tensors ? tensor_at(r->g, t)->node : 0;
    if (!made || r->units.of[made] != u) return 0;
    const struct node *n = node_at(r->g, made);
    bool output = false; /* else a slice of what it made */
    for (int o = 0; o < n->nout; o++) output |= n->out[o] == t;
    return output && repeats(r, n, u) ? made : 0;
}

/* What the backward reads of its own unit; the first that does says where the unit is rebuilt. */
static void mark_read(struct recompute *r, id node)
{
    const struct node *n = node_at(r->g, node);
    uint32_t u = n->phase == PHASE_BACKWARD ? unit_of(r, node) : 0;
    for (int i = 0; i < n->nin && u; i++) {
        id made = made_inside(r, n->in[i], u);
        if (!made || node_at(r->g, made)->loop != n->loop) continue;
        if (!r->at[u]) r->at[u] = node, r->loop[u] = n->loop;
        r->need[made] = true;
    }
}

/* From the last node to the first: what is needed needs what it reads. The lists come out in
 * the order of the forward. */
static void mark_led_to(struct recompute *r, id node)
{
    if (!r->need[node]) return;
    const struct node *n = node_at(r->g, node);
    uint32_t u = r->units.of[node];
    for (int i = 0; i < n->nin; i++) {
        id made = made_inside(r, n->in[i], u);
        if (made) r->need[made] = true;
    }
    r->next[node] = r->first[u];
    r->first[u] = node;
}

/* Repeats a node at the end of the order, reading repetitions where there are. */
static void repeat(struct recompute *r, id node)
{
    struct graph *g = r->g;
    struct node n = *node_at(g, node);
    for (int i = 0; i < n.nin; i++)
        if (made_inside(r, n.in[i], r->units.of[node])) n.in[i] = r->copy[n.in[i]];
    g->at.scope = n.scope;
    g->at.origin = node;
    id again = graph_emit(g, n.op, &n.attr, n.in, n.nin);
    CHECK(again, "a node that was valid is not when repeated");
    for (int o = 0; o < n.nout; o++)
        if (n.out[o]) r->copy[n.out[o]] = node_at(g, again)->out[o];
}

/* One node of the backward: before the first of its unit that reads any of it, the unit. */
static void serve(struct recompute *r, id node)
{
    struct graph *g = r->g;
    uint32_t u = unit_of(r, node);
    if (!u || !r->at[u]) return;
    if (r->at[u] == node) {
        g->at.loop = r->loop[u];
        for (id k = r->first[u]; k; k = r->next[k]) repeat(r, k);
    }
    struct node *n = node_at(g, node);
    for (int i = 0; i < n->nin; i++)
        if (made_inside(r, n->in[i], u) && r->copy[n->in[i]]) n->in[i] = r->copy[n->in[i]];
}

static void rebuild(struct recompute *r)
{
    struct graph *g = r->g;
    struct order *order = &g->order[PROGRAM_STEP];
    uint32_t count = order->nodes.n;
    id *old = mem_copy(order->nodes.at, count * sizeof(id));
    for (uint32_t k = 0; k < count; k++) mark_read(r, old[k]);
    for (uint32_t k = count; k-- > 0;) mark_led_to(r, old[k]);
    order->nodes.n = 0;
    for (uint32_t k = 0; k < count; k++) {
        if (node_at(g, old[k])->phase == PHASE_BACKWARD) {
            serve(r, old[k]);
            rebuild_follow(g, node_at(g, old[k]));
        }
        vec_push(&order->nodes, old[k]);
    }
    mem_free(old);
}

void pass_recompute(struct graph *g, const struct settings *s)
{
    struct recompute r = {.g = g, .tensors = g->tensors.n};
    units_find(&r.units, g, s);
    if (r.units.n) {
        size_t units = r.units.n + 1;
        r.copy = mem_alloc(r.tensors * sizeof *r.copy);
        r.need = mem_alloc(g->nodes.n);
        r.next = mem_alloc(g->nodes.n * sizeof *r.next);
        r.at = mem_alloc(units * sizeof *r.at);
        r.loop = mem_alloc(units * sizeof *r.loop);
        r.first = mem_alloc(units * sizeof *r.first);
        struct cursor before = graph_move(g, PROGRAM_STEP, PHASE_RECOMPUTE, "recompute");
        rebuild(&r);
        g->at = before;
        graph_prune(g, PROGRAM_STEP);
        mem_free(r.copy);
        mem_free(r.need);
        mem_free(r.next);
        mem_free(r.at);
        mem_free(r.loop);
        mem_free(r.first);
    }
    units_free(&r.units);
}

void rebuild_follow(struct graph *g, const struct node *n)
{
    if (!(op_table[n->op].flags & OPF_VIEW) || tensor_at(g, n->out[0])->storage == tensor_at(g, n->in[0])->storage) return;
    struct infer f = {.op = n->op, .attr = &n->attr, .in = {tensor_at(g, n->in[0])}, .nin = 1};
    op_table[n->op].infer(&f);
    struct tensor *t = tensor_at(g, n->out[0]);
    t->storage = f.in[0]->storage;
    t->offset = f.out[0].offset;
    for (int i = 0; i < t->rank; i++) t->stride[i] = f.out[0].stride[i];
}

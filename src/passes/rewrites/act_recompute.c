/*
 * act_recompute.c: an activation that is recomputed only for a weight's gradient is computed by its
 * own gradient op, which reads the same inputs.
 *
 *     before   y = SILU_GATE(g, u)   dW = MATMUL(do, y)
 *              dy = MATMUL(do, W)    dg, du = SILU_GATE_BWD(dy, g, u)
 *     after    dy = MATMUL(do, W)    dg, du, y = SILU_GATE_BWD_Y(dy, g, u)
 *              dW = MATMUL(do, y)
 *
 * The widest tensors of a block are read once less, and no more memory is alive: y may reuse the
 * bytes of dy. The same holds for ACT and ACT_BWD_SUM where they exist (bias_grad.c).
 *
 * Nodes that depend on y move after the gradient, within the block, because the search composes a
 * plan's time block by block (plan/survey.c). The bits stay: the same functions of the same
 * numbers, and sums in the same order. The pass runs after the optimizer pass, which sums the norm
 * in the order in which gradients were complete before.
 */
#include "graph/ops.h"
#include "passes/passes.h"

/* dW, views, a weight's update: more nodes would be delayed for too long */
enum { MOVED = 4 };

/* Reports whether `grad` is the gradient of node `made`. */
static bool is_gradient(const struct node *made, const struct node *grad)
{
    const bool gate = made->op == OP_SILU_GATE && grad->op == OP_SILU_GATE_BWD;
    const bool act = made->op == OP_ACT && grad->op == OP_ACT_BWD_SUM && grad->nout == 2 &&
                     made->attr.act.kind == grad->attr.act.kind;
    if ((!gate && !act) || made->lane != grad->lane) return false;
    for (int i = 0; i < made->nin; i++)
        if (grad->in[i + 1] != made->in[i]) return false;
    return true;
}

static bool writes(const struct graph *g, const struct node *n, id storage)
{
    for (int o = 0; o < n->nout && !(op_table[n->op].flags & OPF_VIEW); o++)
        if (n->out[o] && tensor_at(g, n->out[o])->storage == storage) return true;
    return false;
}

/* Reports whether one node writes a storage that the other reads or writes, so that their order is
 * fixed. */
static bool conflict(const struct graph *g, const struct node *a, const struct node *b)
{
    for (int i = 0; i < a->nin; i++)
        if (a->in[i] && writes(g, b, tensor_at(g, a->in[i])->storage)) return true;
    for (int i = 0; i < b->nin; i++)
        if (b->in[i] && writes(g, a, tensor_at(g, b->in[i])->storage)) return true;
    for (int o = 0; o < a->nout; o++)
        if (a->out[o] && writes(g, b, tensor_at(g, a->out[o])->storage)) return true;
    return false;
}

/* Returns the position of the gradient; 0: there is none that can compute y. `moved` receives the
 * nodes that must follow y, y's own node first. */
static uint32_t find_gradient(const struct graph *g, const struct order *order, uint32_t at, id moved[MOVED + 1],
                              int *count)
{
    const struct node *made = node_at(g, order->nodes.at[at]);
    moved[0] = order->nodes.at[at];
    *count = 1;
    for (uint32_t k = at + 1; k < order->nodes.n; k++) {
        const struct node *n = node_at(g, order->nodes.at[k]);
        const bool found = is_gradient(made, n);
        bool after = false;
        if (n->loop != made->loop || graph_block_of(g, n->scope) != graph_block_of(g, made->scope)) return 0;
        for (int i = 0; i < *count && !after; i++) after = conflict(g, node_at(g, moved[i]), n);
        if (found) return after ? 0 : k;
        if (!after) continue;
        if (*count > MOVED || op_table[n->op].flags & OPF_EFFECT) return 0;
        moved[(*count)++] = order->nodes.at[k];
    }
    return 0;
}

/* Removes the node at `from`; the gradient at `to` returns its result; the moved nodes follow
 * it. */
static void fuse(struct graph *g, struct order *order, uint32_t from, uint32_t to, const id *moved, int count)
{
    const id grad = order->nodes.at[to], y = node_at(g, moved[0])->out[0];
    uint32_t n = from;
    int next = 1;
    for (uint32_t k = from + 1; k <= to; k++) {
        if (next < count && order->nodes.at[k] == moved[next]) next++;
        else order->nodes.at[n++] = order->nodes.at[k];
    }
    for (int i = 1; i < count; i++) order->nodes.at[n++] = moved[i];
    for (uint32_t k = to + 1; k < order->nodes.n; k++) order->nodes.at[n++] = order->nodes.at[k];
    order->nodes.n = n;

    struct node *x = node_at(g, grad);
    if (x->op == OP_SILU_GATE_BWD) x->op = OP_SILU_GATE_BWD_Y;
    x->out[x->nout++] = y;
    x->made_by = graph_intern(g, "act_recompute");
    tensor_at(g, y)->node = grad;
}

void pass_act_recompute(struct graph *g, const struct settings *s)
{
    struct order *order = &g->order[PROGRAM_STEP];
    (void)s;
    for (uint32_t k = 0; k < order->nodes.n;) {
        const struct node *n = node_at(g, order->nodes.at[k]);
        id moved[MOVED + 1];
        int count = 0;
        const bool recomputed = n->phase == PHASE_RECOMPUTE && (n->op == OP_SILU_GATE || n->op == OP_ACT);
        const uint32_t to = recomputed ? find_gradient(g, order, k, moved, &count) : 0;
        if (to) fuse(g, order, k, to, moved, count);
        else k++;
    }
}

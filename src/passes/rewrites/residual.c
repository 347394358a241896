/*
 * residual.c: the gradient of a norm adds the gradient of the residual branch around the norm.
 *
 *     forward   x --------------------> +        before   d = NORM_BWD(dy, x, ...)
 *               `--> NORM --> ... -----'                  dx = ACCUMULATE(dr, d)
 *                                                after    dx = NORM_BWD(dy, x, ..., dr)
 *
 * This saves two passes over a tensor of the block's width. There is no setting: in f32 the bits
 * are those of the two ops; in lower precision dx is rounded once, where d was rounded before. (The
 * same holds in f32 if the CPU's reference kernel runs because an operand is strided.) The pass
 * runs before the passes that move or recompute nodes, so that the sums do not depend on them.
 */
#include "graph/ops.h"
#include "passes/passes.h"
#include "passes/uses.h"

struct residual {
    struct graph *g;
    uint32_t *readers, *position; /* by tensor; by node (uses.h) */
};

/* Returns the index of the input that a norm's gradient adds; 0: another op. */
static int slot_of(enum op op) { return op == OP_RMSNORM_BWD || op == OP_LAYERNORM_BWD ? op_table[op].max_in - 1 : 0; }

/* Reports whether no node between the norm's gradient and the sum writes the added tensor and, if
 * the result overwrites it (`written`), neither they nor the norm's gradient read it. */
static bool undisturbed(const struct residual *r, id norm, id sum, id add, bool written)
{
    const struct graph *g = r->g;
    const id s = tensor_at(g, add)->storage, *nodes = g->order[PROGRAM_STEP].nodes.at;
    for (uint32_t k = r->position[norm]; k + 1 < r->position[sum]; k++) {
        const struct node *n = node_at(g, nodes[k]);
        for (int i = 0; i < n->nin; i++)
            if (written && n->in[i] && tensor_at(g, n->in[i])->storage == s) return false;
        for (int o = 0; o < n->nout; o++)
            if (n->out[o] && !(op_table[n->op].flags & OPF_VIEW) && tensor_at(g, n->out[o])->storage == s) return false;
    }
    const struct node *n = node_at(g, norm);
    for (int i = 0; i < n->nin; i++)
        if (written && n->in[i] && tensor_at(g, n->in[i])->storage == s) return false;
    return true;
}

/* Finds the norm's gradient that computes input `i` of the sum and can add the other input; 0:
 * none. */
static id norm_of(const struct residual *r, id sum, int i)
{
    const struct graph *g = r->g;
    const struct node *n = node_at(g, sum);
    const id d = n->in[i], add = n->in[1 - i], norm = tensor_at(g, d)->node, before = tensor_at(g, add)->node;
    const struct node *m = node_at(g, norm);
    const int slot = norm ? slot_of(m->op) : 0;
    if (!slot || m->out[0] != d || m->nin > slot || m->loop != n->loop || r->readers[d] != 1) return 0;
    if (!r->position[norm] || (before && r->position[before] >= r->position[norm])) return 0;
    if (tensor_at(g, add)->dtype != tensor_at(g, d)->dtype || !tensor_is_dense(tensor_at(g, add))) return 0;
    return undisturbed(r, norm, sum, add, i == 0) ? norm : 0;
}

static bool fuse(struct residual *r, id sum)
{
    for (int i = 1; i >= 0; i--) {
        const id norm = norm_of(r, sum, i);
        if (!norm) continue;
        const struct node *n = node_at(r->g, sum);
        struct node *m = node_at(r->g, norm);
        while (m->nin < slot_of(m->op)) m->in[m->nin++] = 0;
        m->in[m->nin++] = n->in[1 - i];
        m->out[0] = n->out[0];
        m->made_by = graph_intern(r->g, "residual");
        tensor_at(r->g, m->out[0])->node = norm;
        return true;
    }
    return false;
}

void pass_residual(struct graph *g, const struct settings *s)
{
    struct order *order = &g->order[PROGRAM_STEP];
    struct residual r = {g, readers_by_tensor(g, PROGRAM_STEP), positions_by_node(g, PROGRAM_STEP)};
    bool *gone = mem_alloc(g->nodes.n);
    uint32_t kept = 0;
    (void)s;
    for (uint32_t k = 0; k < order->nodes.n; k++) {
        const id node = order->nodes.at[k];
        gone[node] = node_at(g, node)->op == OP_ACCUMULATE && fuse(&r, node);
    }
    for (uint32_t k = 0; k < order->nodes.n; k++)
        if (!gone[order->nodes.at[k]]) order->nodes.at[kept++] = order->nodes.at[k];
    order->nodes.n = kept;
    mem_free(r.readers);
    mem_free(r.position);
    mem_free(gone);
}

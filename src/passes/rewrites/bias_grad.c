/*
 * bias_grad.c: on a GPU the gradient of a bias is summed by the op that computes its input.
 *
 *     forward   z = LINEAR(x, w, b)   y = ACT(z)
 *     before    dz = ACT_BWD(dy, z)   db = SUM_TO(dz)
 *     after     dz, db = ACT_BWD_SUM(dy, z)
 *
 * This saves one pass over the widest tensor of a block. The sum is over the rounded dz, but in
 * another order. The pass runs before the passes that move or recompute nodes, so that the sums do
 * not depend on them. A CPU reads dz from its caches, and its kernels stay separate.
 */
#include "graph/ops.h"
#include "passes/passes.h"

/* Reports whether `sum` is [C] in f32, with C the last dimension of x: a sum over all other
 * dimensions. */
static bool is_columns(const struct graph *g, id sum, id x)
{
    const struct tensor *s = tensor_at(g, sum), *t = tensor_at(g, x);
    return t->rank >= 2 && tensor_is_dense(t) && s->rank == 1 && s->dim[0] == tensor_last(t) && s->dtype == DT_F32 &&
           t->dtype != DT_F64;
}

/* Finds the node that computes the summed tensor, if it can sum it too; 0: it cannot. */
static id maker_of(const struct graph *g, const struct node *sum)
{
    if (sum->op != OP_SUM_TO || (sum->nin > 1 && sum->in[1]) || !is_columns(g, sum->out[0], sum->in[0])) return 0;
    const id maker = tensor_at(g, sum->in[0])->node;
    const struct node *m = node_at(g, maker);
    return maker && m->op == OP_ACT_BWD && m->out[0] == sum->in[0] && m->loop == sum->loop && m->lane == sum->lane
               ? maker
               : 0;
}

void pass_bias_grad(struct graph *g, const struct settings *s)
{
    struct order *order = &g->order[PROGRAM_STEP];
    uint32_t kept = 0;
    if (!s->device.sums_columns) return;
    for (uint32_t k = 0; k < order->nodes.n; k++) {
        const id node = order->nodes.at[k], maker = maker_of(g, node_at(g, node));
        order->nodes.at[kept] = node;
        kept += !maker;
        if (!maker) continue;
        struct node *m = node_at(g, maker);
        m->op = OP_ACT_BWD_SUM;
        m->out[m->nout++] = node_at(g, node)->out[0];
        m->made_by = graph_intern(g, "bias_grad");
        tensor_at(g, m->out[1])->node = maker;
    }
    order->nodes.n = kept;
}

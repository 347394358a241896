/*
 * bias_grad.c: on a GPU the gradient of a bias is summed by the op that makes what is summed.
 *
 *     forward   z = LINEAR(x, w, b)   y = ACT(z)        before   dz = ACT_BWD(dy, z)    db = SUM_TO(dz)
 *                                                       after    dz, db = ACT_BWD_SUM(dy, z)
 *
 * One pass over the widest tensor of a block less. The sum is that of the rounded dz, but its order is another
 * one; so this comes early, before the passes that move nodes or make them again: whatever they do, the same
 * sums are made in the same way. A processor reads dz out of its caches, and its kernels stay two.
 */
#include "graph/ops.h"
#include "passes/passes.h"

/* [C], the last dimension of x, in f32: a sum over everything else. */
static bool is_columns(const struct graph *g, id sum, id x)
{
    const struct tensor *s = tensor_at(g, sum), *t = tensor_at(g, x);
    return t->rank >= 2 && tensor_is_dense(t) && s->rank == 1 && s->dim[0] == tensor_last(t) && s->dtype == DT_F32 && t->dtype != DT_F64;
}

/* The node whose result is summed, if it can do so itself; 0: it cannot. */
static id maker_of(const struct graph *g, const struct node *sum)
{
    if (sum->op != OP_SUM_TO || (sum->nin > 1 && sum->in[1]) || !is_columns(g, sum->out[0], sum->in[0])) return 0;
    const id maker = tensor_at(g, sum->in[0])->node;
    const struct node *m = node_at(g, maker);
    return maker && m->op == OP_ACT_BWD && m->out[0] == sum->in[0] && m->loop == sum->loop && m->lane == sum->lane ? maker : 0;
}

void pass_bias_grad(struct graph *g, const struct settings *s)
{
    struct order *order = &g->order[PROGRAM_STEP];
    uint32_t kept = 0;
    if (!s->host_staging) return; /* not a GPU's plan */
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

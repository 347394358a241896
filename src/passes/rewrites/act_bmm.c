/*
 * act_bmm.c: computes an activation in the product that reads it.
 *
 *     before   z --ACT--> f --BMM(a, f^T)--> y
 *     after    z --BMM_ACT(a, z)--> y
 *
 * f is never stored: BMM_ACT computes it as z is read, and its gradient computes it once more. This
 * pays where a has few rows, as filters over a map do, because f is then the largest tensor of the
 * product. There is no setting. On a CPU the bits are those of the two ops; on a GPU in lower
 * precision f is not rounded.
 *
 * A RESHAPE between the two becomes one of z. The pass runs before the precision is chosen, so that
 * everything after it sees one form. Strided operands are left alone: few kernels take them.
 */
#include "graph/ops.h"
#include "passes/passes.h"
#include "passes/uses.h"

enum { FEW_ROWS = 64 };

static bool is_filter(const struct graph *g, const struct node *n)
{
    const struct tensor *a = tensor_at(g, n->in[0]);
    return n->op == OP_BMM && n->nin == 2 && !n->attr.matmul.ta && n->attr.matmul.tb &&
           n->attr.matmul.dtype == DT_F32 && a->dim[a->rank - 2] <= FEW_ROWS && tensor_is_dense(a);
}

/* Finds the ACT that computes the product's second operand, through reshapes, and whose only reader
 * the product is; 0: there is none. */
static id activation_of(const struct graph *g, const uint32_t *readers, const struct node *product)
{
    id t = product->in[1], node = tensor_at(g, t)->node;
    uint32_t views = 0;
    for (; node && node_at(g, node)->op == OP_RESHAPE; node = tensor_at(g, t)->node, views++)
        t = node_at(g, node)->in[0];
    const struct node *act = node_at(g, node);
    if (!node || act->op != OP_ACT || act->loop != product->loop || readers[tensor_at(g, t)->storage] != 1 + views)
        return 0;
    return tensor_is_dense(tensor_at(g, act->in[0])) ? node : 0;
}

static void fuse(struct graph *g, struct node *product, const struct node *act)
{
    const id z = act->in[0];
    id *in = &product->in[1];
    while (*in != act->out[0]) {
        struct node *view = node_at(g, tensor_at(g, *in)->node);
        graph_redirect(g, *in, z);
        in = &view->in[0];
    }
    *in = z;
    product->op = OP_BMM_ACT;
    product->attr = act->attr;
    product->made_by = graph_intern(g, "act_bmm");
}

static void fuse_program(struct graph *g, enum program p)
{
    struct order *order = &g->order[p];
    uint32_t *readers = readers_by_storage(g, p), kept = 0;
    bool *gone = mem_alloc(g->nodes.n);
    for (uint32_t k = 0; k < order->nodes.n; k++) {
        struct node *n = node_at(g, order->nodes.at[k]);
        const id act = is_filter(g, n) ? activation_of(g, readers, n) : 0;
        if (!act) continue;
        fuse(g, n, node_at(g, act));
        gone[act] = true;
    }
    for (uint32_t k = 0; k < order->nodes.n; k++)
        if (!gone[order->nodes.at[k]]) order->nodes.at[kept++] = order->nodes.at[k];
    order->nodes.n = kept;
    mem_free(readers);
    mem_free(gone);
}

void pass_act_bmm(struct graph *g, const struct settings *s)
{
    (void)s;
    FOR_PROGRAMS(p, PROGRAM_FORWARD) fuse_program(g, p);
}

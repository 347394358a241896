/*
 * group_lora.c: the first factors of LoRA's layers that read the same rows are one product.
 *
 *     before   u = LINEAR(x, A)  SCALE     v = LINEAR(x, B)  SCALE     w = LINEAR(x, C)  SCALE
 *     after    z = LINEAR(x, CONCAT(A, B, C))  SCALE     u, v, w: SLICEs of z
 *
 * Such a product has as few columns as the rank, so its time is that of reading x, which is as wide
 * as the model: the queries, keys and values of a layer read it once instead of three times, and so
 * do their weight gradients. The gradient of x is one product instead of a sum of three. There is
 * no setting. The order of that sum changes.
 *
 * Layers are grouped if they have the same input and scope. With dropout each layer has an input of
 * its own, and nothing is grouped.
 */
#include "graph/ops.h"
#include "passes/passes.h"
#include "passes/uses.h"

struct group {
    id first[MAX_IN]; /* the products... */
    id scale[MAX_IN]; /* ...and the SCALE of each; 0: it is not the only reader */
    int n;
};

/*
 * Reports whether a node is the product of an adapter's first factor, whose rows are fewer than its
 * columns.
 */
static bool is_first_factor(const struct graph *g, const struct node *n)
{
    if (n->op != OP_LINEAR || n->nin != 2 || storage_of(g, n->out[0])->kind != KIND_ACT) return false;
    const struct tensor *w = tensor_at(g, n->in[1]);
    const struct param *p = graph_param_of(g, n->in[1]);
    return p && p->added && w->rank == 2 && w->dim[0] < w->dim[1];
}

/* Returns the SCALE that is the only reader of a product; 0: there is none. */
static id scale_of(const struct graph *g, const struct order *order, id y, const uint32_t *readers)
{
    for (uint32_t k = 0; k < order->nodes.n && readers[y] == 1; k++) {
        const struct node *n = node_at(g, order->nodes.at[k]);
        if (n->op == OP_SCALE && n->in[0] == y) return order->nodes.at[k];
    }
    return 0;
}

/* Finds the products of the same rows and scope from position k on. */
static struct group find_group(const struct graph *g, const struct order *order, uint32_t k, const uint32_t *readers,
                               const bool *taken)
{
    const struct node *first = node_at(g, order->nodes.at[k]);
    struct group found = {.n = 0};
    if (!is_first_factor(g, first)) return found;
    for (; k < order->nodes.n && found.n < MAX_IN; k++) {
        const id node = order->nodes.at[k];
        const struct node *n = node_at(g, node);
        if (taken[node] || !is_first_factor(g, n) || n->in[0] != first->in[0] || n->scope != first->scope ||
            n->loop != first->loop)
            continue;
        found.first[found.n] = node;
        found.scale[found.n++] = scale_of(g, order, n->out[0], readers);
    }
    return found;
}

/* Reports whether all products are scaled by the same factor and read by nothing else. */
static bool scaled_alike(const struct graph *g, const struct group *x)
{
    for (int i = 0; i < x->n; i++)
        if (!x->scale[i] || node_at(g, x->scale[i])->attr.scale.value != node_at(g, x->scale[0])->attr.scale.value)
            return false;
    return true;
}

/* Emits the product of a group, and fills by tensor what takes the place of the results. */
static void emit_group(struct graph *g, const struct group *x, id *instead, bool *gone)
{
    const struct node first = *node_at(g, x->first[0]);
    const bool scaled = scaled_alike(g, x);
    id weights[MAX_IN];
    int64_t at = 0;
    for (int i = 0; i < x->n; i++) weights[i] = node_at(g, x->first[i])->in[1];
    g->at.scope = first.scope;
    g->at.loop = first.loop;
    id z = op_linear(g, first.in[0], op_concat(g, weights, x->n, 0), 0);
    if (scaled) z = op_scale(g, z, node_at(g, x->scale[0])->attr.scale.value);
    for (int i = 0; i < x->n; i++) {
        const id replaced = scaled ? x->scale[i] : x->first[i], y = node_at(g, replaced)->out[0];
        const int64_t columns = tensor_last(tensor_at(g, y));
        instead[y] = op_slice(g, z, tensor_at(g, z)->rank - 1, at, columns);
        at += columns;
        gone[x->first[i]] = gone[replaced] = true;
    }
}

static void group_program(struct graph *g, enum program p)
{
    struct order *order = &g->order[p];
    const uint32_t count = order->nodes.n, tensors = g->tensors.n, nodes = g->nodes.n;
    uint32_t *readers = readers_by_tensor(g, p);
    struct group *groups = mem_alloc(nodes * sizeof *groups);
    bool *gone = mem_alloc(nodes), *taken = mem_alloc(nodes), any = false;
    id *instead = mem_alloc(tensors * sizeof *instead), *old = mem_copy(order->nodes.at, count * sizeof *old);
    for (uint32_t k = 0; k < count; k++) {
        if (taken[old[k]]) continue;
        const struct group x = find_group(g, order, k, readers, taken);
        for (int i = 0; i < x.n; i++) taken[x.first[i]] = true;
        if (x.n > 1) groups[old[k]] = x, any = true;
    }
    const struct cursor before = graph_move(g, p, PHASE_FORWARD, "group_lora");
    if (any) order->nodes.n = 0;
    for (uint32_t k = 0; any && k < count; k++) {
        struct node *n = node_at(g, old[k]);
        for (int i = 0; i < n->nin; i++)
            if (n->in[i] < tensors && instead[n->in[i]]) n->in[i] = instead[n->in[i]];
        if (groups[old[k]].n) emit_group(g, &groups[old[k]], instead, gone);
        if (!gone[old[k]]) vec_push(&order->nodes, old[k]);
    }
    g->at = before;
    if (any) graph_infer(g, p);
    mem_free(readers);
    mem_free(groups);
    mem_free(gone);
    mem_free(taken);
    mem_free(instead);
    mem_free(old);
}

void pass_group_lora(struct graph *g, const struct settings *s)
{
    (void)s;
    FOR_PROGRAMS(p, PROGRAM_FORWARD) group_program(g, p);
}

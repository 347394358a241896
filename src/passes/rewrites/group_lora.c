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

/* What is found in a program once, before its nodes change. */
struct found {
    const struct graph *g;
    const struct order *order;
    VEC(id) first;     /* products of adapters' first factors, in order... */
    id *scale;         /* ...and by tensor: the SCALE that is the only reader of it; 0: there is none */
};

/* Lists the products of adapters' first factors, whose rows are fewer than their columns. */
static void list_first_factors(struct found *f)
{
    const struct graph *g = f->g;
    bool *added = mem_alloc(g->tensors.n);
    for (uint32_t i = 0; i < g->params.n; i++) added[g->params.at[i].tensor] = g->params.at[i].added;
    for (uint32_t k = 0; k < f->order->nodes.n; k++) {
        const struct node *n = node_at(g, f->order->nodes.at[k]);
        if (n->op != OP_LINEAR || n->nin != 2 || !added[n->in[1]] || storage_of(g, n->out[0])->kind != KIND_ACT)
            continue;
        const struct tensor *w = tensor_at(g, n->in[1]);
        if (w->rank == 2 && w->dim[0] < w->dim[1]) vec_push(&f->first, f->order->nodes.at[k]);
    }
    mem_free(added);
}

static void find_scales(struct found *f, enum program p)
{
    uint32_t *readers = readers_by_tensor(f->g, p);
    f->scale = mem_alloc(f->g->tensors.n * sizeof *f->scale);
    for (uint32_t k = 0; k < f->order->nodes.n; k++) {
        const struct node *n = node_at(f->g, f->order->nodes.at[k]);
        if (n->op == OP_SCALE && readers[n->in[0]] == 1) f->scale[n->in[0]] = f->order->nodes.at[k];
    }
    mem_free(readers);
}

/* Finds the products with the rows and the scope of product `i`, from it on. */
static struct group find_group(const struct found *f, uint32_t i, const bool *taken)
{
    const struct node *first = node_at(f->g, f->first.at[i]);
    struct group group = {.n = 0};
    for (; i < f->first.n && group.n < MAX_IN; i++) {
        const id node = f->first.at[i];
        const struct node *n = node_at(f->g, node);
        if (taken[node] || n->in[0] != first->in[0] || n->scope != first->scope || n->loop != first->loop) continue;
        group.first[group.n] = node;
        group.scale[group.n++] = f->scale[n->out[0]];
    }
    return group;
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
    struct found found = {.g = g, .order = order};
    list_first_factors(&found);
    if (!found.first.n) return;
    find_scales(&found, p);
    struct group *groups = mem_alloc(nodes * sizeof *groups);
    bool *gone = mem_alloc(nodes), *taken = mem_alloc(nodes), any = false;
    id *instead = mem_alloc(tensors * sizeof *instead), *old = mem_copy(order->nodes.at, count * sizeof *old);
    for (uint32_t k = 0; k < found.first.n; k++) {
        if (taken[found.first.at[k]]) continue;
        const struct group x = find_group(&found, k, taken);
        for (int i = 0; i < x.n; i++) taken[x.first[i]] = true;
        if (x.n > 1) groups[found.first.at[k]] = x, any = true;
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
    vec_free(&found.first);
    mem_free(found.scale);
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

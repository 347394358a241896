/*
 * linear_add.c: the product that ends a branch adds the residual.
 *
 *     before   z = LINEAR(x, w, bias)    y = ADD(r, z)
 *     after    y = LINEAR(x, w, bias, r)
 *
 * If z has no other reader it is never written, which saves two passes over a tensor of the block's
 * width. There is no setting. In f32 only the order of the sum changes; in lower precision y is
 * rounded once, where z was rounded before. The pass runs before the passes that move or recompute
 * nodes, and before the backward, which passes the gradient of y on to r as it does for ADD.
 *
 * r is read earlier than before, with the same value: up to here an op that overwrites a tensor
 * returns a new tensor, and no node reads the old one afterwards (graph.h).
 */
#include "graph/ops.h"
#include "passes/passes.h"
#include "passes/uses.h"

struct linear_add {
    struct graph *g;
    uint32_t *readers, *position; /* by storage; by node (uses.h) */
};

/* Reports whether both nodes are in the same loop, block and row-wise scope, so that they are
 * recomputed, or cut into chunks, together. */
static bool together(const struct graph *g, const struct node *x, const struct node *y)
{
    return x->loop == y->loop && graph_block_of(g, x->scope) == graph_block_of(g, y->scope) &&
           graph_rows_of(g, x->scope) == graph_rows_of(g, y->scope);
}

/* The product whose result z is, and the one that can add r to it: z's own, or if that adds the
 * result of another product already (lora.c), that one. 0: none. */
struct place {
    id product, adds;
};

static struct place place_of(const struct linear_add *a, const struct node *sum, id z, id r)
{
    const struct graph *g = a->g;
    const id product = tensor_at(g, z)->node, before = tensor_at(g, r)->node;
    const struct node *n = node_at(g, product);
    if (!product || n->op != OP_LINEAR || n->out[0] != z || a->readers[tensor_at(g, z)->storage] != 1 ||
        !a->position[product])
        return (struct place){0, 0};
    if (!tensors_alike(tensor_at(g, r), tensor_at(g, z)) || !together(g, n, sum)) return (struct place){0, 0};
    if (n->nin > 3) return (struct place){product, place_of(a, sum, n->in[3], r).adds};
    return (struct place){product, before && a->position[before] >= a->position[product] ? 0 : product};
}

static bool fuse(struct linear_add *a, const struct node *sum)
{
    for (int i = 1; i >= 0; i--) {
        const struct place at = place_of(a, sum, sum->in[i], sum->in[1 - i]);
        if (!at.adds) continue;
        struct node *n = node_at(a->g, at.adds), *last = node_at(a->g, at.product);
        while (n->nin < 3) n->in[n->nin++] = 0;
        n->in[n->nin++] = sum->in[1 - i];
        n->made_by = last->made_by = graph_intern(a->g, "linear_add");
        last->out[0] = sum->out[0];
        tensor_at(a->g, last->out[0])->node = at.product;
        return true;
    }
    return false;
}

static void fuse_program(struct graph *g, enum program p)
{
    struct order *order = &g->order[p];
    struct linear_add a = {g, readers_by_storage(g, p), positions_by_node(g, p)};
    uint32_t kept = 0;
    for (uint32_t k = 0; k < order->nodes.n; k++) {
        const id node = order->nodes.at[k];
        if (node_at(g, node)->op != OP_ADD || !fuse(&a, node_at(g, node))) order->nodes.at[kept++] = node;
    }
    order->nodes.n = kept;
    mem_free(a.readers);
    mem_free(a.position);
}

void pass_linear_add(struct graph *g, const struct settings *s)
{
    (void)s;
    FOR_PROGRAMS(p, PROGRAM_FORWARD) fuse_program(g, p);
}

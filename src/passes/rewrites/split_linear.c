/*
 * split_linear.c: splits a product over a sum with a constant.
 *
 *     before   s = ADD(x, c)            y = LINEAR(s, w, bias)
 *     after    z = LINEAR(x, w, bias)   d = LINEAR(c, w)          y = ADD(z, d)
 *
 * c is the same for all samples: position encodings, for example. A product is linear, so the sum,
 * as large as x, is never stored; the backward reads x, which is stored anyway. c has one sample's
 * rows or fewer, so its own product is small. There is no setting. The order of the sum changes.
 *
 * The pass runs before the precision is chosen, so that everything after it sees one form. It
 * leaves a sum that something else reads too, and a product that is wider than the sum: adding
 * after it would cost more than adding before it.
 */
#include "graph/ops.h"
#include "passes/passes.h"
#include "passes/uses.h"

/* Marks, by tensor, what depends on the batch or on the step. */
static bool *mark_varying(const struct graph *g, enum program p)
{
    bool *varies = mem_alloc(g->tensors.n);
    for (id t = 1; t < g->tensors.n; t++) {
        const enum kind kind = storage_of(g, t)->kind;
        varies[t] = kind == KIND_INPUT || kind == KIND_STEP;
    }
    for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[p].nodes.at[k]);
        bool any = op_table[n->op].flags & OPF_EFFECT;
        for (int i = 0; i < n->nin; i++) any |= varies[n->in[i]];
        for (int o = 0; o < n->nout; o++) varies[n->out[o]] |= any;
    }
    return varies;
}

struct split {
    struct graph *g;
    bool *varies;      /* by tensor */
    uint32_t *readers; /* by storage */
};

/* The sum that a product's operand is, and which of its inputs is the constant. */
struct found {
    id sum; /* 0: the product is not split */
    int constant;
};

/* Finds the sum that is the product's operand, if the product can be split, and sets `constant` to
 * its input that does not vary; 0: it cannot. */
static id sum_of(const struct split *s, const struct node *product, int *constant)
{
    const struct graph *g = s->g;
    if (product->op != OP_LINEAR || product->nin > 3) return 0;
    const id sum = product->in[0], node = tensor_at(g, sum)->node;
    const struct node *add = node_at(g, node);
    if (!node || add->op != OP_ADD || add->loop != product->loop || s->readers[tensor_at(g, sum)->storage] != 1)
        return 0;
    *constant = s->varies[add->in[1]] ? 0 : 1;
    const id c = add->in[*constant], x = add->in[1 - *constant], y = product->out[0];
    if (s->varies[c] || !s->varies[x] || !tensors_alike(tensor_at(g, x), tensor_at(g, sum)) ||
        !tensor_is_dense(tensor_at(g, c)) || tensor_at(g, c)->rank < 2)
        return 0;
    const int64_t width = tensor_last(tensor_at(g, x));
    return tensor_last(tensor_at(g, c)) == width && tensor_last(tensor_at(g, y)) <= width &&
                   storage_of(g, y)->kind == KIND_ACT
               ? node
               : 0;
}

/* Fills by node what is found, and which sums are not needed any more. */
static bool find_sums(const struct split *s, enum program p, struct found *found, bool *gone)
{
    bool any = false;
    for (uint32_t k = 0; k < s->g->order[p].nodes.n; k++) {
        const id node = s->g->order[p].nodes.at[k];
        struct found *f = &found[node];
        f->sum = sum_of(s, node_at(s->g, node), &f->constant);
        if (f->sum) any = gone[f->sum] = true;
    }
    return any;
}

/* Splits one product, after which the order ends; returns the tensor that replaces its result. */
static id split(struct graph *g, id product, const struct found *f)
{
    const struct node sum = *node_at(g, f->sum);
    struct node *n = node_at(g, product);
    const id z = n->out[0], w = n->in[1];
    n->in[0] = sum.in[1 - f->constant];
    g->at.scope = n->scope;
    g->at.loop = n->loop;
    const id d = op_linear(g, sum.in[f->constant], w, 0);
    return op_add(g, z, d);
}

static void split_program(struct graph *g, enum program p)
{
    struct order *order = &g->order[p];
    const struct split s = {g, mark_varying(g, p), readers_by_storage(g, p)};
    const uint32_t count = order->nodes.n, tensors = g->tensors.n;
    struct found *found = mem_alloc(g->nodes.n * sizeof *found);
    bool *gone = mem_alloc(g->nodes.n);
    id *instead = mem_alloc(tensors * sizeof *instead), *old = mem_copy(order->nodes.at, count * sizeof *old);
    if (find_sums(&s, p, found, gone)) {
        const struct cursor before = graph_move(g, p, PHASE_FORWARD, "split_linear");
        order->nodes.n = 0;
        for (uint32_t k = 0; k < count; k++) {
            struct node *n = node_at(g, old[k]);
            for (int i = 0; i < n->nin; i++)
                if (n->in[i] < tensors && instead[n->in[i]]) n->in[i] = instead[n->in[i]];
            if (gone[old[k]]) continue;
            vec_push(&order->nodes, old[k]);
            const id y = n->out[0];
            if (found[old[k]].sum) instead[y] = split(g, old[k], &found[old[k]]);
        }
        g->at = before;
        graph_infer(g, p); /* a view of the product is now one of the sum */
    }
    mem_free(s.varies);
    mem_free(s.readers);
    mem_free(found);
    mem_free(gone);
    mem_free(instead);
    mem_free(old);
}

void pass_split_linear(struct graph *g, const struct settings *s)
{
    (void)s;
    FOR_PROGRAMS(p, PROGRAM_FORWARD) split_program(g, p);
}

/*
 * labelled_first.c: the rows with labels come first in the LM head, so that a head in chunks
 * (chunk.c) leaves out the chunks without labels.
 *
 *     before   LINEAR(hidden) ─ XENT(labels)                 rows   . q q a a a . q a .
 *     after    LABELLED_FIRST(labels): labels', index        rows'  a a a a . . . . . .
 *              LINEAR(GATHER(hidden, index)) ─ XENT(labels')        |chunk|chunk| not run
 *
 * In conversations only the answers have labels (a), and everything that the head computes of the
 * other rows is multiplied by 0. Memory is planned for rows that all have labels. How many have
 * them is known on the host when the batch is written, and so is the number of iterations
 * (loop.counted). A row's logits are the same; the sums over rows have another order. The gradient
 * of a row without a label is 0: no row of the head's gradient is read for it.
 *
 * The pass changes a row-wise scope if its labels are an input, shifted or not, all other inputs
 * with rows have one row for each label, and nothing leaves it but the sums of its loss, to which
 * rows without labels add 0. A head in one chunk stays as it is: there is nothing to leave out.
 */
#include "graph/ops.h"
#include "passes/passes.h"
#include "passes/uses.h"

struct head {
    struct graph *g;
    enum program program;
    id scope;                /* the row-wise scope... */
    uint32_t from, to;       /* ...and its positions in the order */
    id labels;               /* of its loss, [rows] */
    bool *from_batch;        /* by tensor (uses.h) */
};

static const struct node *node_of(const struct head *h, uint32_t k)
{
    return node_at(h->g, h->g->order[h->program].nodes.at[k]);
}
static bool is_in_scope(const struct head *h, const struct node *n)
{
    return graph_rows_of(h->g, n->scope) == h->scope;
}
static bool is_made_inside(const struct head *h, id t)
{
    return tensor_at(h->g, t)->node && is_in_scope(h, node_at(h->g, tensor_at(h->g, t)->node));
}

/* Reports whether `t` is an input of the scope that the chunks slice. */
static bool has_rows(const struct head *h, id t)
{
    return t && h->from_batch[t] && tensor_at(h->g, t)->rank && tensor_at(h->g, t)->dim[0] > 1 && !is_made_inside(h, t);
}

/* Reports whether the labels `t` are an input, or its label shift, or views of these. */
static bool is_input(const struct graph *g, id t)
{
    while (storage_of(g, t)->kind != KIND_INPUT) {
        const struct node *n = node_at(g, tensor_at(g, t)->node);
        if (!tensor_at(g, t)->node || (n->op != OP_SHIFT_LABELS && !(op_table[n->op].flags & OPF_VIEW))) return false;
        t = n->in[0];
    }
    return true;
}

/* Reports whether a node is a cross-entropy, whose second input has the labels. */
static bool is_loss(const struct node *n) { return n->op == OP_XENT || n->op == OP_XENT_JOIN; }

/* Finds the next loss in a row-wise scope, from position h->to on. */
static bool find_head(struct head *h)
{
    const uint32_t count = h->g->order[h->program].nodes.n;
    uint32_t k = h->to;
    while (k < count && !(is_loss(node_of(h, k)) && graph_rows_of(h->g, node_of(h, k)->scope))) k++;
    if (k == count) return false;
    h->scope = graph_rows_of(h->g, node_of(h, k)->scope);
    h->labels = node_of(h, k)->in[1];
    for (h->from = k; h->from && is_in_scope(h, node_of(h, h->from - 1));) h->from--;
    for (h->to = k; h->to < count && is_in_scope(h, node_of(h, h->to));) h->to++;
    return true;
}

static bool leaves_scope(const struct head *h, id t)
{
    for (uint32_t i = 0; i < h->g->outputs.n; i++)
        if (h->g->outputs.at[i].tensor == t) return true;
    for (uint32_t k = h->to; k < h->g->order[h->program].nodes.n; k++)
        for (int i = 0; i < node_of(h, k)->nin; i++)
            if (node_of(h, k)->in[i] == t) return true;
    return false;
}

/* Reports whether the rows of the scope may be in another order. */
static bool is_sum_over_rows(const struct head *h)
{
    const struct graph *g = h->g;
    const int64_t rows = tensor_at(g, h->labels)->dim[0];
    if (tensor_at(g, h->labels)->rank != 1 || !has_rows(h, h->labels) || !is_input(g, h->labels)) return false;
    for (uint32_t k = h->from; k < h->to; k++) {
        const struct node *n = node_of(h, k);
        if (n->loop || n->op == OP_RESHAPE || op_table[n->op].flags & OPF_EFFECT) return false;
        for (int i = 0; i < n->nin; i++) {
            const struct tensor *x = tensor_at(g, n->in[i]);
            if (!has_rows(h, n->in[i]) || n->in[i] == h->labels) continue;
            if (x->dim[0] != rows || x->rank < 2 || !tensor_is_dense(x)) return false;
        }
        for (int o = 0; o < n->nout; o++)
            if (n->out[o] && leaves_scope(h, n->out[o]) && (!is_loss(n) || tensor_at(g, n->out[o])->rank))
                return false;
    }
    return true;
}

/* Gathers the rows of x [rows,...] by `index`, the inverse of which is `position`. */
static id gather_rows(struct graph *g, id x, id index, id position)
{
    const struct tensor t = *tensor_at(g, x);
    const int64_t rows = t.dim[0];
    const int64_t by_row[2] = {1, rows};
    id y = op_reshape(g, x, 3, (int64_t[]){1, rows, tensor_elements(&t) / rows});
    id inverse = op_reshape(g, position, 2, by_row);
    y = op_gather_unique(g, y, op_reshape(g, index, 2, by_row), inverse);
    return op_reshape(g, y, t.rank, t.dim);
}

/* Inserts nodes before the scope that put the rows with labels first; the scope reads their
 * results, and the rest of the order stays as it was. */
static void put_first(struct head *h)
{
    struct graph *g = h->g;
    struct order *order = &g->order[h->program];
    const uint32_t count = order->nodes.n, tensors = g->tensors.n;
    id *nodes = mem_copy(order->nodes.at, count * sizeof(id)), *instead = mem_alloc(tensors * sizeof(id));
    const struct cursor before = graph_move(g, h->program, PHASE_FORWARD, "labelled_first");
    order->nodes.n = h->from;
    const id first = graph_emit(g, OP_LABELLED_FIRST, NULL, &h->labels, 1);
    instead[h->labels] = node_at(g, first)->out[0];
    const id index = node_at(g, first)->out[1], position = node_at(g, first)->out[2];
    for (uint32_t k = h->from; k < h->to; k++) {
        const struct node n = *node_at(g, nodes[k]);
        for (int i = 0; i < n.nin; i++) {
            const id x = n.in[i];
            if (x < tensors && has_rows(h, x) && !instead[x]) instead[x] = gather_rows(g, x, index, position);
            if (x < tensors && instead[x]) node_at(g, nodes[k])->in[i] = instead[x];
        }
    }
    const uint32_t added = order->nodes.n - h->from;
    for (uint32_t k = h->from; k < count; k++) vec_push(&order->nodes, nodes[k]);
    h->to += added;
    g->at = before;
    mem_free(nodes);
    mem_free(instead);
}

void pass_labelled_first(struct graph *g, const struct settings *s)
{
    if (!s->sparse_labels || s->head_chunks < 2) return;
    FOR_PROGRAMS(p, PROGRAM_FORWARD) {
        struct head h = {.g = g, .program = p, .from_batch = tensors_from_batch(g, p)};
        while (find_head(&h) && !g->error.code)
            if (is_sum_over_rows(&h)) put_first(&h);
        mem_free(h.from_batch);
    }
}

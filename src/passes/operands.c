/*
 * operands.c: puts each operand of a product into the form in which the product reads it.
 *
 * A weight that is stored in fewer bits (quantize.c) is dequantized for each reader:
 *
 *     before   y = LINEAR(x, w)              dx = MATMUL(dy, w)
 *     after    v = DEQUANTIZE(bytes of w)    u = DEQUANTIZE(bytes of w)
 *              y = LINEAR(x, v)              dx = MATMUL(dy, u)
 *
 * Each reader in forward, recomputation and backward gets a dequantized weight of its own, a
 * transient that lives from the DEQUANTIZE before the reader to the reader: none is alive between
 * forward and backward.
 *
 * Where weights are offloaded, because memory is scarce, the experts of a layer are dequantized and
 * multiplied group by group, each time in the same memory. A row has the same bits:
 *
 *     v = DEQUANTIZE(experts 0 to 15)     y  = GROUPED_LINEAR(x, v, their offsets)
 *     u = DEQUANTIZE(experts 16 to 31)    y' = GROUPED_LINEAR(x, u, their offsets, into y)   ...
 *
 * The dequantized weights of a matrix [inputs,outputs] (param.transposed), which is stored as its
 * transpose, are transposes too: their views have other strides.
 */
#include "base/nf4.h"
#include "graph/ops.h"
#include "graph/stored.h"
#include "passes/passes.h"

struct quantized {
    id bytes;  /* the u8 tensor over the storage; 0: the storage is plain */
    id weight; /* the tensor that was read */
    bool transposed; /* the bytes are of its transpose */
};

/* Makes a view of the matrix w one of its transpose, which has the same elements in another order.
 * A stride is an index too: that of the element behind the first. */
static void turn_view(struct tensor *view, const struct tensor *w)
{
    const uint32_t size = dtype_size(view->dtype);
    for (int i = 0; i < view->rank; i++) view->stride[i] = transposed_index(view->stride[i], w->dim[0], w->dim[1]);
    view->offset = (uint64_t)transposed_index((int64_t)(view->offset / size), w->dim[0], w->dim[1]) * size;
}

/* Emits a dequantized weight, and returns the reader's view `t` on it. */
static id dequantized(struct graph *g, const struct quantized *q, id t)
{
    const struct tensor w = *tensor_at(g, q->weight);
    const bool nested = storage_of(g, q->bytes)->form == STORED_NF4;
    const int64_t turned[] = {w.dim[1], w.dim[0]};
    const id whole = op_dequantize(g, q->bytes, nested, w.dtype, w.rank, q->transposed ? turned : w.dim,
                                   (struct weight_range){0, tensor_elements(&w)});
    CHECK(whole, "%s", g->error.text);
    storage_of(g, whole)->name = tensor_at(g, whole)->name = w.name;
    if (t == q->weight && !q->transposed) return whole;
    struct tensor view = *tensor_at(g, t);
    if (q->transposed) turn_view(&view, &w);
    view.storage = tensor_at(g, whole)->storage;
    view.node = tensor_at(g, whole)->node;
    vec_push(&g->tensors, view);
    return g->tensors.n - 1;
}

/* Groups in which the experts of a layer are dequantized, at most. */
enum { EXPERT_GROUPS = 8 };

/* Returns the experts of a group of w [experts,rows,columns], each group at the begin of a block of
 * NF4; 0: w is not divided. */
static int64_t group_experts(const struct tensor *w)
{
    const int64_t E = w->dim[0], matrix = tensor_elements(w) / E;
    int64_t each = (E + EXPERT_GROUPS - 1) / EXPERT_GROUPS;
    while (each < E && each * matrix % NF4_BLOCK) each++;
    return each < E ? each : 0;
}

/* Emits `n` dequantized experts from `first` on, and returns the reader's view `t` on them. */
static id dequantized_experts(struct graph *g, const struct quantized *q, id t, int64_t first, int64_t n)
{
    const struct tensor w = *tensor_at(g, q->weight);
    const int64_t dim[] = {n, w.dim[1], w.dim[2]};
    const bool nested = storage_of(g, q->bytes)->form == STORED_NF4;
    const id part = op_dequantize(g, q->bytes, nested, w.dtype, 3, dim,
                                  (struct weight_range){first * w.dim[1] * w.dim[2], tensor_elements(&w)});
    CHECK(part, "%s", g->error.text);
    storage_of(g, part)->name = tensor_at(g, part)->name = w.name;
    struct tensor view = *tensor_at(g, t);
    view.dim[0] = n;
    view.storage = tensor_at(g, part)->storage;
    view.node = tensor_at(g, part)->node;
    vec_push(&g->tensors, view);
    return g->tensors.n - 1;
}

/* Emits all groups of a GROUPED_LINEAR but the last, which becomes the node's own. */
static void divide_experts(struct graph *g, const struct quantized *q, id node, int64_t each)
{
    const struct node n = *node_at(g, node);
    const int64_t E = tensor_at(g, n.in[1])->dim[0];
    const union attr a = {.grouped_linear = {E}};
    id y = 0;
    for (int64_t first = 0; first < E; first += each) {
        const int64_t some = min_i64(each, E - first);
        id in[] = {n.in[0], 0, 0, y};
        in[1] = dequantized_experts(g, q, n.in[1], first, some);
        in[2] = op_slice(g, n.in[2], 0, first, some + 1);
        if (first + some == E) {
            struct node *last = node_at(g, node);
            memcpy(last->in, in, sizeof in);
            last->nin = COUNT(in);
            last->attr = a;
            return;
        }
        const id next = op_apply(g, OP_GROUPED_LINEAR, &a, in, y ? 4 : 3);
        CHECK(next, "%s", g->error.text);
        if (!y) graph_redirect(g, next, n.out[0]);
        y = next;
    }
}

static void rewrite_program(struct graph *g, enum program p, const struct quantized *by_storage, uint32_t storages,
                            bool scarce)
{
    struct order *order = &g->order[p];
    const uint32_t count = order->nodes.n;
    id *old = mem_copy(order->nodes.at, count * sizeof(id));
    struct cursor before = graph_move(g, p, PHASE_FORWARD, "operands");
    order->nodes.n = 0;
    for (uint32_t k = 0; k < count; k++) {
        const struct node n = *node_at(g, old[k]);
        bool reads = false;
        for (int i = 0; i < n.nin; i++) {
            const id s = n.in[i] ? tensor_at(g, n.in[i])->storage : 0;
            if (s >= storages || !by_storage[s].bytes) continue;
            reads = true;
            if (op_table[n.op].flags & OPF_VIEW) continue; /* its reader gets the view of a dequantized weight */
            g->at.phase = n.phase;
            g->at.scope = n.scope;
            g->at.loop = n.loop;
            g->at.origin = old[k];
            const bool divides = scarce && n.op == OP_GROUPED_LINEAR && i == 1;
            const int64_t each = divides ? group_experts(tensor_at(g, by_storage[s].weight)) : 0;
            if (each) {
                divide_experts(g, &by_storage[s], old[k], each);
                continue;
            }
            const id here = dequantized(g, &by_storage[s], n.in[i]);
            node_at(g, old[k])->in[i] = here;
        }
        if (!reads || !(op_table[n.op].flags & OPF_VIEW)) vec_push(&order->nodes, old[k]);
    }
    g->at = before;
    mem_free(old);
}

/* Returns, by storage, the weights that are stored in a form of their own; NULL: none are. */
static struct quantized *list_quantized(struct graph *g)
{
    const uint32_t storages = g->storages.n;
    struct quantized *by_storage = NULL;
    for (uint32_t i = 0; i < g->params.n; i++) {
        const struct param *p = &g->params.at[i];
        const struct tensor w = *tensor_at(g, p->tensor);
        const int64_t bytes = (int64_t)g->storages.at[w.storage].bytes;
        if (!g->storages.at[w.storage].form) continue;
        if (!by_storage) by_storage = mem_alloc(storages * sizeof *by_storage);
        const id raw = graph_tensor(g, graph_name(g, w.name), w.storage, DT_U8, 1, &bytes, 0);
        by_storage[w.storage] = (struct quantized){raw, p->tensor, p->transposed};
    }
    return by_storage;
}

void pass_operands(struct graph *g, const struct settings *s)
{
    const uint32_t storages = g->storages.n;
    struct quantized *by_storage = list_quantized(g);
    const bool scarce = s->offload & OFFLOAD_WEIGHTS;
    for (int p = 0; p < PROGRAM_COUNT && by_storage; p++) rewrite_program(g, p, by_storage, storages, scarce);
    mem_free(by_storage);
}

/*
 * dense.c: on a GPU, a strided view that no kernel accepts is copied before the node that reads it.
 *
 *     before   LAYERNORM(SLICE(x))              after   LAYERNORM(COPY(SLICE(x)))
 *
 * On a CPU the reference kernels accept any strides. A GPU has only its own kernels, and many need
 * dense operands; the pass queries them. The built-in models copy where needed; this pass serves
 * graphs built with the library, and gradients of views. It runs before differentiation, so that
 * the gradient reads the copy too, and again after the passes that change the operands of nodes.
 */
#include "graph/ops.h"
#include "passes/passes.h"
#include "run/kernel.h"

/* Reports whether the node does not write to input i. */
static bool is_read(const struct node *n, int i)
{
    for (int o = 0; o < n->nout; o++)
        if (op_must_alias(n, o) == i) return false;
    return true;
}

/* Returns the set of inputs that must be dense for the node to run on a GPU; 0: it runs as it is,
 * or not even then. Kernels that run on every GPU decide: the others take no layout that these do
 * not. */
static unsigned inputs_to_copy(const struct graph *g, const struct node *n)
{
    static const struct profile every_gpu = {.kind = DEVICE_CUDA};
    struct tensor dense[MAX_IN];
    struct query q;
    unsigned some = 0;
    for (int i = 0; i < n->nin; i++)
        if (n->in[i] && !tensor_is_dense(tensor_at(g, n->in[i])) && is_read(n, i)) some |= 1u << i;
    if (!some || op_table[n->op].flags & OPF_VIEW) return 0;
    query_fill(&q, g, n, &every_gpu);
    if (kernel_find(DEVICE_CUDA, n->op, &q)) return 0;
    for (int i = 0; i < n->nin; i++) {
        if (!(some >> i & 1)) continue;
        dense[i] = *q.in[i];
        tensor_dense_strides(&dense[i]);
        q.in[i] = &dense[i];
    }
    return kernel_find(DEVICE_CUDA, n->op, &q) ? some : 0;
}

/* Rewrites the order with the copies inserted; a tensor is copied once per loop. */
static void insert_copies(struct graph *g, enum program p, id *copy)
{
    struct order *order = &g->order[p];
    const uint32_t count = order->nodes.n, tensors = g->tensors.n;
    id *old = mem_copy(order->nodes.at, count * sizeof *old);
    order->nodes.n = 0;
    for (uint32_t k = 0; k < count; k++) {
        const struct node n = *node_at(g, old[k]);
        const unsigned some = inputs_to_copy(g, &n);
        for (int i = 0; i < n.nin && some; i++) {
            if (!(some >> i & 1) || n.in[i] >= tensors) continue;
            id *dense = &copy[n.in[i]];
            graph_move(g, p, n.phase, "dense");
            g->at.loop = n.loop;
            g->at.scope = n.scope;
            g->at.origin = n.origin;
            if (!*dense || node_at(g, tensor_at(g, *dense)->node)->loop != n.loop) *dense = op_dense(g, n.in[i]);
            node_at(g, old[k])->in[i] = *dense;
        }
        vec_push(&order->nodes, old[k]);
    }
    mem_free(old);
}

void pass_dense(struct graph *g, const struct settings *s)
{
    if (!s->device.dense_operands) return;
    const struct cursor before = g->at;
    for (enum program p = 0; p < PROGRAM_COUNT; p++) {
        id *copy = mem_alloc(g->tensors.n * sizeof *copy);
        insert_copies(g, p, copy);
        mem_free(copy);
    }
    g->at = before;
}

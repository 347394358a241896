/*
 * precision.c: bf16 compute with f32 masters.
 *
 *     master f32  --update-->  working copy bf16  --forward/backward-->
 *
 * Every weight the forward reads becomes a bf16 working copy; the f32 tensor
 * stays behind it as the master that the optimizer updates. Shapes rules then
 * carry the dtype through the forward by themselves: what follows a bf16 weight
 * is bf16, statistics and losses are f32. Weight gradients are f32 (vjp.c).
 * A frozen weight has no master: it is kept in bf16 alone.
 *
 * Where an f32 input of the step (pixels) meets a weight, it is cast on the way. A model
 * may ask for f32 at a place (a loss); where that is what there is, the cast goes.
 */
#include <string.h>

#include "graph/ops.h"
#include "passes/passes.h"

static id working_copy(struct graph *g, const struct tensor *master, enum dtype t)
{
    const char *name = graph_name(g, master->name);
    struct tensor x = *master;
    x.dtype = t;
    id storage = graph_storage(g, name, KIND_PARAM, SPACE_DEVICE, tensor_bytes(&x));
    return graph_tensor(g, graph_name(g, g->storages.at[storage].name), storage, t, x.rank, x.dim, 0);
}

/* True when `t` is elements of an input, however viewed or copied. */
static bool is_input(const struct graph *g, id t)
{
    while (tensor_at(g, t)->node) {
        const struct node *n = node_at(g, tensor_at(g, t)->node);
        if (!(op_table[n->op].flags & OPF_VIEW) && n->op != OP_COPY) return false;
        t = n->in[0];
    }
    return storage_of(g, t)->kind == KIND_INPUT;
}

/* A cast before each product of an input with a weight. */
static void cast_inputs(struct graph *g, enum program p, enum dtype to)
{
    struct order *order = &g->order[p];
    struct cursor before = graph_move(g, p, PHASE_FORWARD, "precision");
    for (uint32_t k = 0; k < order->nodes.n; k++) {
        id node = order->nodes.at[k];
        const struct node n = *node_at(g, node);
        if ((n.op != OP_CONV && n.op != OP_LINEAR) || tensor_at(g, n.in[0])->dtype != DT_F32 || !is_input(g, n.in[0])) continue;
        g->at.scope = n.scope;
        id cast = op_cast(g, n.in[0], to);
        if (!cast) break;
        /* It was appended: its place is before the product. */
        id made = order->nodes.at[order->nodes.n - 1];
        memmove(order->nodes.at + k + 1, order->nodes.at + k, (order->nodes.n - 1 - k) * sizeof(id));
        order->nodes.at[k++] = made;
        node_at(g, node)->in[0] = cast;
    }
    g->at = before;
}

static void drop_idle_casts(struct graph *g, enum program p)
{
    for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
        const struct node n = *node_at(g, g->order[p].nodes.at[k]);
        if (n.op == OP_CAST && tensor_at(g, n.in[0])->dtype == tensor_at(g, n.out[0])->dtype) graph_replace(g, p, n.out[0], n.in[0]);
    }
    graph_prune(g, p);
}

static void split_weights(struct graph *g, const struct settings *s)
{
    for (uint32_t i = 0; i < g->params.n; i++) {
        struct param *p = &g->params.at[i];
        id master = p->tensor;
        if (storage_of(g, master)->kind != KIND_PARAM || tensor_at(g, master)->dtype != DT_F32) continue;
        struct tensor m = *tensor_at(g, master);
        id work = working_copy(g, &m, s->precision);
        p = &g->params.at[i];
        p->tensor = work;
        p->master = p->frozen ? work : master;
        storage_of(g, master)->kind = p->frozen ? KIND_NONE : KIND_MASTER;
        graph_replace(g, PROGRAM_STEP, master, work);
        graph_replace(g, PROGRAM_EVAL, master, work);
    }
    for (enum program p = 0; p < PROGRAM_COUNT; p++) {
        cast_inputs(g, p, s->precision);
        graph_infer(g, p);
    }
}

void pass_precision(struct graph *g, const struct settings *s)
{
    if (s->precision != DT_F32) split_weights(g, s);
    drop_idle_casts(g, PROGRAM_STEP);
    drop_idle_casts(g, PROGRAM_EVAL);
}

/*
 * precision.c: bf16 compute with f32 masters.
 *
 *     master f32  --update-->  working copy bf16  --forward/backward-->
 *
 * Every weight the forward reads becomes a bf16 working copy; the f32 tensor
 * stays behind it as the master that the optimizer updates. Shapes rules then
 * carry the dtype through the forward by themselves: what follows a bf16 weight
 * is bf16, statistics and losses are f32. Weight gradients are f32 (vjp.c).
 * A frozen weight has no master: it is kept in bf16 alone. Running statistics stay
 * f32: they move by steps that bf16 would round away. So do coordinates and their
 * frequencies, which become angles; what FOURIER makes of them is bf16.
 * Inputs that are f32 stay so, and are rounded by a cast at the head of the program.
 * A model may ask for f32 at a place (a loss); where that is what there is, the cast goes.
 */
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

/* The first input that stays f32, with the one behind it; -1: none. Running statistics of
 * normalisations, and what becomes an angle. */
static int first_kept(const struct node *n)
{
    switch (n->op) {
    case OP_BATCHNORM_FROZEN: return 3;
    case OP_BATCHNORM_UPDATE: return 2;
    case OP_FOURIER: case OP_PROMPT_NEXT: return 0;
    default: return -1;
    }
}

/* Marks, by tensor, what stays f32: from its readers back through copies and views. */
static bool *mark_kept(const struct graph *g)
{
    bool *kept = mem_alloc(g->tensors.n);
    for (int p = 0; p < PROGRAM_COUNT; p++)
        for (uint32_t k = g->order[p].nodes.n; k-- > 0;) {
            const struct node *n = node_at(g, g->order[p].nodes.at[k]);
            int at = first_kept(n);
            for (int i = at; at >= 0 && i < at + 2; i++) kept[n->in[i]] = true;
            if ((op_table[n->op].flags & OPF_VIEW || n->op == OP_COPY) && kept[n->out[0]]) kept[n->in[0]] = true;
        }
    return kept;
}

/* Ops that make floats of something else say in which type. */
static void set_made(struct node *n, enum dtype t)
{
    if (n->op == OP_FOURIER) n->attr.fourier.dtype = (uint8_t)t;
    if (n->op == OP_CAST && !n->attr.cast.dtype) n->attr.cast.dtype = (uint8_t)t;
    if (n->op == OP_IMAGE) n->attr.image.dtype = (uint8_t)t;
}

static void cast_inputs(struct graph *g, enum program p, enum dtype t, const bool *kept)
{
    struct order *order = &g->order[p];
    uint32_t count = order->nodes.n, tensors = g->tensors.n;
    id *old = mem_copy(order->nodes.at, count * sizeof(id)), *cast = mem_alloc(tensors * sizeof(id));
    struct cursor before = graph_move(g, p, PHASE_FORWARD, "precision");
    order->nodes.n = 0;
    for (uint32_t k = 0; k < count; k++) {
        set_made(node_at(g, old[k]), t);
        for (int i = 0; i < node_at(g, old[k])->nin; i++) {
            id x = node_at(g, old[k])->in[i];
            if (!x || kept[x] || storage_of(g, x)->kind != KIND_INPUT || tensor_at(g, x)->node || tensor_at(g, x)->dtype != DT_F32) continue;
            if (!cast[x]) cast[x] = op_cast(g, x, t);
            node_at(g, old[k])->in[i] = cast[x];
        }
    }
    for (uint32_t k = 0; k < count; k++) vec_push(&order->nodes, old[k]);
    g->at = before;
    mem_free(old);
    mem_free(cast);
}

static void drop_idle_casts(struct graph *g, enum program p)
{
    bool any = false;
    for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
        const struct node n = *node_at(g, g->order[p].nodes.at[k]);
        if (n.op != OP_CAST || tensor_at(g, n.in[0])->dtype != tensor_at(g, n.out[0])->dtype) continue;
        graph_replace(g, p, n.out[0], n.in[0]);
        any = true;
    }
    if (any) graph_infer(g, p); /* a view of the cast's result is one of its input now */
    graph_prune(g, p);
}

static void lower(struct graph *g, const struct settings *s)
{
    bool *kept = mark_kept(g); /* of the tensors there are now; the loop adds others */
    for (uint32_t i = 0; i < g->params.n; i++) {
        struct param *p = &g->params.at[i];
        id master = p->tensor;
        if (storage_of(g, master)->kind != KIND_PARAM || tensor_at(g, master)->dtype != DT_F32 || kept[master]) continue;
        struct tensor m = *tensor_at(g, master);
        id work = working_copy(g, &m, s->precision);
        p = &g->params.at[i];
        p->tensor = work;
        p->master = p->frozen ? work : master;
        storage_of(g, master)->kind = p->frozen ? KIND_NONE : KIND_MASTER;
        graph_replace(g, PROGRAM_STEP, master, work);
        graph_replace(g, PROGRAM_EVAL, master, work);
    }
    bool *stays = mark_kept(g);
    cast_inputs(g, PROGRAM_STEP, s->precision, stays);
    cast_inputs(g, PROGRAM_EVAL, s->precision, stays);
    mem_free(stays);
    mem_free(kept);
    graph_infer(g, PROGRAM_STEP);
    graph_infer(g, PROGRAM_EVAL);
}

void pass_precision(struct graph *g, const struct settings *s)
{
    if (s->precision != DT_F32) lower(g, s);
    drop_idle_casts(g, PROGRAM_STEP);
    drop_idle_casts(g, PROGRAM_EVAL);
}

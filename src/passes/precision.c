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
 * f32: they move by steps that bf16 would round away.
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

/* Marks, by tensor, what normalisations read or update as running statistics. */
static bool *mark_running(const struct graph *g)
{
    bool *running = mem_alloc(g->tensors.n);
    for (int p = 0; p < PROGRAM_COUNT; p++)
        for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
            const struct node *n = node_at(g, g->order[p].nodes.at[k]);
            int at = n->op == OP_BATCHNORM_FROZEN ? 3 : n->op == OP_BATCHNORM_UPDATE ? 2 : -1;
            for (int i = at; at >= 0 && i < at + 2; i++) running[n->in[i]] = true;
        }
    return running;
}

void pass_precision(struct graph *g, const struct settings *s)
{
    if (s->precision == DT_F32) return;
    bool *running = mark_running(g); /* of the tensors there are now; the loop adds others */
    for (uint32_t i = 0; i < g->params.n; i++) {
        struct param *p = &g->params.at[i];
        id master = p->tensor;
        if (storage_of(g, master)->kind != KIND_PARAM || tensor_at(g, master)->dtype != DT_F32 || running[master]) continue;
        struct tensor m = *tensor_at(g, master);
        id work = working_copy(g, &m, s->precision);
        p = &g->params.at[i];
        p->tensor = work;
        p->master = p->frozen ? work : master;
        storage_of(g, master)->kind = p->frozen ? KIND_NONE : KIND_MASTER;
        graph_replace(g, PROGRAM_STEP, master, work);
        graph_replace(g, PROGRAM_EVAL, master, work);
    }
    mem_free(running);
    graph_infer(g, PROGRAM_STEP);
    graph_infer(g, PROGRAM_EVAL);
}

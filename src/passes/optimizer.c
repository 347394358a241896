/*
 * optimizer.c: the update program.
 *
 *     norm² = Σ over gradients of their sums of squares    (one carried scalar)
 *     clip  = {norm, min(1, clip_norm / norm)}
 *     for each trained weight: AdamW on master, m, v; the working copy follows
 *
 * The two moments are storages of kind STATE, zero at the start of a run.
 * Weights that no gradient reaches are left alone, as PyTorch leaves them.
 */
#include <stdio.h>
#include <string.h>

#include "graph/ops.h"
#include "passes/passes.h"

static bool decays(const struct settings *s, const char *name)
{
    for (const char *const *p = s->no_decay; p && *p; p++)
        if (pattern_match(*p, name)) return false;
    return true;
}

static id moment(struct graph *g, const struct tensor *p, const char *weight, const char *which)
{
    char name[300];
    snprintf(name, sizeof name, "%s.%s", weight, which);
    id storage = graph_storage(g, name, KIND_STATE, SPACE_DEVICE, tensor_bytes(p));
    return graph_tensor(g, name, storage, DT_F32, p->rank, p->dim, 0);
}

static void update_one(struct graph *g, const struct settings *s, const struct param *p, id clip)
{
    char name[256];
    snprintf(name, sizeof name, "%s", graph_name(g, tensor_at(g, p->tensor)->name));
    struct tensor shape = *tensor_at(g, p->master);
    id m = moment(g, &shape, name, "exp_avg"), v = moment(g, &shape, name, "exp_avg_sq");
    union attr a = {.adamw = {s->beta1, s->beta2, s->eps, decays(s, name) ? s->weight_decay : 0, 1}};
    id in[7] = {p->master, p->grad, m, v, graph_step(g), clip, p->tensor};
    id previous = graph_scope_push(g, name, 0);
    graph_emit(g, OP_ADAMW, &a, in, p->tensor == p->master ? 6 : 7);
    graph_scope_pop(g, previous);
}

void pass_optimizer(struct graph *g, const struct settings *s)
{
    if (!s->train) return;
    struct cursor before = graph_move(g, PROGRAM_UPDATE, PHASE_UPDATE, "optimizer");
    id sum = op_fill(g, DT_F64, 0, NULL, 0);
    for (uint32_t i = 0; i < g->params.n; i++) {
        if (!g->params.at[i].grad) continue;
        id n = graph_emit(g, OP_SUMSQ, NULL, (id[]){g->params.at[i].grad, sum}, 2);
        if (n) sum = node_at(g, n)->out[0];
    }
    id n = graph_emit(g, OP_CLIP, NULL, (id[]){sum, graph_step(g)}, 2);
    id clip = n ? node_at(g, n)->out[0] : 0;
    graph_output(g, "clip", clip);
    for (uint32_t i = 0; i < g->params.n; i++)
        if (g->params.at[i].grad) {
            struct param p = g->params.at[i];
            update_one(g, s, &p, clip);
        }
    g->at = before;
}

/*
 * wholes.c: the tensors by which weights and optimizer state are loaded and saved have the shape of
 * the whole, also where this rank holds parts of it (graph/division.h). Nodes read other tensors on
 * the same storages.
 *
 * The parts of a weight on this rank are one parameter again: the first part's. The others are
 * storages with the same name and division.
 */
#include "graph/division.h"
#include "graph/sizes.h"
#include "passes/passes.h"

static void give_shape(struct tensor *t, const struct division *d)
{
    int64_t n = 1;
    for (int i = 0; i < d->rank; i++) n *= t->dim[i] = d->dim[i];
    t->rank = d->rank;
    if (d->blocks) {
        t->rank = 2;
        t->dim[0] = state_blocks(n);
        t->dim[1] = 2;
    }
    tensor_dense_strides(t);
}

/* Returns a tensor of the whole on the storage of a part. */
static id whole_of(struct graph *g, id part)
{
    struct tensor t = *tensor_at(g, part);
    give_shape(&t, division_of(g, part));
    vec_push(&g->tensors, t);
    return g->tensors.n - 1;
}

/* Gives the first tensor of each storage of optimizer state, by which it is saved, the shape of the
 * whole; nodes read a copy of what it was. */
static void widen_state(struct graph *g)
{
    const uint32_t count = g->tensors.n;
    id *instead = mem_alloc(count * sizeof *instead);
    bool *seen = mem_alloc(g->storages.n);
    for (id t = 1; t < count; t++) {
        const struct tensor x = *tensor_at(g, t);
        if (g->storages.at[x.storage].kind != KIND_STATE || x.node || seen[x.storage] || !division_of(g, t)) continue;
        seen[x.storage] = true;
        vec_push(&g->tensors, x);
        instead[t] = g->tensors.n - 1;
        give_shape(tensor_at(g, t), division_of(g, t));
    }
    for (enum program p = 0; p < PROGRAM_COUNT; p++) graph_replace_all(g, p, instead, count);
    mem_free(instead);
    mem_free(seen);
}

void pass_wholes(struct graph *g, const struct settings *s)
{
    (void)s;
    if (!g->divisions.n || g->error.code) return;
    while (g->params.n && g->params.at[g->params.n - 1].main) g->params.n--;
    for (uint32_t i = 0; i < g->params.n; i++) {
        struct param *p = &g->params.at[i];
        const bool alone = p->master == p->tensor;
        if (!division_of(g, p->tensor)) continue;
        const id whole = whole_of(g, p->tensor);
        g->params.at[i].master = alone ? whole : whole_of(g, g->params.at[i].master);
        g->params.at[i].tensor = whole;
    }
    widen_state(g);
}

/*
 * optimizer.c: the update program.
 *
 *     norm² = Σ over gradients of their sums of squares    (one carried scalar)
 *     clip  = {norm, min(1, clip_norm / norm)}
 *     for each trained weight: AdamW on master, m, v; the working copy follows
 *
 * The two moments are storages of kind STATE, zero at the start of a run.
 * Weights that no gradient reaches are left alone, as PyTorch leaves them.
 *
 * Layers. With layer_decay d a weight's rate is times d^(L - l), where l is its
 * layer: that of its first use in the forward.
 *
 *     embed | block 1 | block 2 | norm between | block 3 | head
 *       0        1         2           2            3        4 = L
 *
 * Blocks are the scopes that say so, numbered as they come; before the first one
 * is layer 0, between two is the one before, behind the last one is L.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "graph/ops.h"
#include "passes/passes.h"

/* --- layers ------------------------------------------------------------------------ */

struct layers {
    int *of;        /* by storage: its layer; -1: not used yet */
    int last;       /* L */
};

/* The layer of what the forward first reads in a node; the count of blocks grows. */
static int layer_here(const struct graph *g, id scope, int *number, int *blocks)
{
    id block = graph_block_of(g, scope);
    if (block && !number[block]) number[block] = ++*blocks;
    return block ? number[block] : *blocks;
}

static struct layers number_layers(const struct graph *g)
{
    struct layers l = {mem_alloc(g->storages.n * sizeof *l.of), 0};
    bool *outside = mem_alloc(g->storages.n * sizeof *outside); /* first read between blocks */
    int *number = mem_alloc(g->scopes.n * sizeof *number), blocks = 0;
    for (id s = 0; s < g->storages.n; s++) l.of[s] = -1;
    for (uint32_t k = 0; k < g->order[PROGRAM_STEP].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[PROGRAM_STEP].nodes.at[k]);
        if (n->phase != PHASE_FORWARD) continue;
        int layer = layer_here(g, n->scope, number, &blocks);
        for (int i = 0; i < n->nin; i++) {
            id s = n->in[i] ? tensor_at(g, n->in[i])->storage : 0;
            if (!s || l.of[s] >= 0) continue;
            l.of[s] = layer;
            outside[s] = !graph_block_of(g, n->scope);
        }
    }
    /* Behind the last block is only known now that it was the last. */
    l.last = blocks + 1;
    for (id s = 0; s < g->storages.n; s++)
        if (outside[s] && l.of[s] == blocks) l.of[s] = l.last;
    mem_free(outside);
    mem_free(number);
    return l;
}

/* --- one weight ------------------------------------------------------------------------ */

static bool rule_matches(const struct update_rule *r, const char *name)
{
    for (uint32_t i = 0; i < r->n_match; i++)
        if (pattern_match(r->match[i], name)) return true;
    return false;
}

/* The attributes of a weight's update; `depth` is its layer's factor on the rate. */
static union attr attributes(const struct settings *s, const char *name, double depth)
{
    union attr a = {.adamw = {s->beta1, s->beta2, s->eps, s->weight_decay, depth}};
    for (uint32_t i = 0; i < s->n_rules; i++) {
        const struct update_rule *r = &s->rules[i];
        if (!rule_matches(r, name)) continue;
        if (r->has_rate) a.adamw.lr_scale = r->lr_scale * (r->absolute ? 1 : depth);
        if (r->has_decay) a.adamw.weight_decay = r->weight_decay;
    }
    return a;
}

static id moment(struct graph *g, const struct tensor *p, const char *weight, const char *which)
{
    char name[300];
    snprintf(name, sizeof name, "%s.%s", weight, which);
    id storage = graph_storage(g, name, KIND_STATE, SPACE_DEVICE, tensor_bytes(p));
    return graph_tensor(g, name, storage, DT_F32, p->rank, p->dim, 0);
}

static void update_one(struct graph *g, const struct settings *s, const struct param *p, double depth, id clip)
{
    char name[256];
    snprintf(name, sizeof name, "%s", graph_name(g, tensor_at(g, p->tensor)->name));
    struct tensor shape = *tensor_at(g, p->master);
    bool rounded = shape.dtype == DT_BF16; /* a weight without a master */
    shape.dtype = DT_F32;
    id m = moment(g, &shape, name, "exp_avg"), v = moment(g, &shape, name, "exp_avg_sq");
    union attr a = attributes(s, name, depth);
    if (rounded) a.adamw.key = hash_bytes(name, strlen(name), 0);
    id in[7] = {p->master, p->grad, m, v, graph_step(g), clip, p->tensor};
    id previous = graph_scope_push(g, name, 0);
    graph_emit(g, OP_ADAMW, &a, in, p->tensor == p->master ? 6 : 7);
    graph_scope_pop(g, previous);
}

/* --- the program ------------------------------------------------------------------------- */

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
    struct layers layers = number_layers(g);
    double decay = s->layer_decay > 0 ? s->layer_decay : 1;
    for (uint32_t i = 0; i < g->params.n; i++)
        if (g->params.at[i].grad) {
            struct param p = g->params.at[i];
            int layer = layers.of[tensor_at(g, p.tensor)->storage];
            CHECK(layer >= 0, "%s has a gradient and no use", graph_name(g, tensor_at(g, p.tensor)->name));
            update_one(g, s, &p, pow(decay, layers.last - layer), clip);
        }
    mem_free(layers.of);
    g->at = before;
}

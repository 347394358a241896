/*
 * shard_weights.c: weights are divided among ranks too (ZeRO-3). What lasts is the rank's shard of
 * each weight, trained or frozen (graph/shard.h). A unit, the nodes of one block in one direction,
 * reads the whole weights, which ALL_GATHER puts together for it, a unit ahead:
 *
 *     compute   ... [ block 1         ][ block 2         ][ block 3 ...
 *     ranks         | gather 2         | gather 3         |
 *     weights       |-- 1 --|-------- 2 -------|
 *
 * So the weights of two units are in memory at a time, as transients that the planner places. A
 * block's recomputation and its backward are one unit. The update writes the shard itself, and
 * nothing is gathered behind it. Weights in 4 bits are divided by bytes, and gathered so. Running
 * statistics, which the step writes, stay whole.
 *
 * The same kernels run on the same values: no bit changes against shard_gradients.c.
 */
#include "graph/shard.h"
#include "graph/ops.h"
#include "passes/passes.h"
#include "passes/visit.h"

/* Makes a vector over the shard of a weight's storage, whose bytes are set after the last program
 * has been rewritten. */
static id make_shard(struct graph *g, const struct param *p, int ranks)
{
    const struct tensor t = *tensor_at(g, p->tensor);
    const struct storage s = g->storages.at[t.storage];
    const int64_t part = s.form ? (int64_t)shard_bytes(s.bytes, ranks) : shard_part(tensor_elements(&t), ranks);
    struct tensor x = {.storage = t.storage, .name = t.name, .dtype = s.form ? DT_U8 : t.dtype, .rank = 1,
                       .dim = {part}};
    tensor_dense_strides(&x);
    vec_push(&g->tensors, x);
    return g->tensors.n - 1;
}

static bool touches(const struct graph *g, const struct node *n, const bool *home, uint32_t homes)
{
    for (int i = 0; i < n->nin + n->nout; i++) {
        const id s = tensor_at(g, i < n->nin ? n->in[i] : n->out[i - n->nin])->storage;
        if (s < homes && home[s]) return true;
    }
    return false;
}

static void rewrite_program(struct graph *g, enum program p, const struct settings *s, const bool *home,
                            const id *shard, uint32_t homes)
{
    struct visits v;
    bool any = false;
    for (uint32_t k = 0; k < g->order[p].nodes.n && !any; k++)
        any = touches(g, node_at(g, g->order[p].nodes.at[k]), home, homes);
    if (!any) return;
    bool *of = mem_alloc(g->storages.n);
    for (id h = 1; h < homes; h++) of[h] = home[h];
    visits_begin(&v, g, p, program_is(p, PROGRAM_TRAINS) ? (s->shares > 1) + (s->accumulation > 1) : 0, false, false,
                 "shard_weights");
    v.ranks = settings_holders(s);
    v.axis = settings_axis(s);
    v.host = settings_holders_host(s);
    v.shard = shard;
    for (uint32_t u = 0; u < v.units; u++) visit_unit(&v, u, of);
    visits_end(&v);
    mem_free(of);
}

/* Makes the update work on the shards themselves, without gathering them. */
static void rewrite_update(struct graph *g, const bool *home, uint32_t homes)
{
    struct order *order = &g->order[PROGRAM_UPDATE];
    uint32_t kept = 0;
    for (uint32_t k = 0; k < order->nodes.n; k++) {
        const struct node *n = node_at(g, order->nodes.at[k]);
        if (n->op == OP_ALL_GATHER && touches(g, n, home, homes)) continue;
        for (int i = 0; i < n->nin + n->nout; i++) {
            struct tensor *t = tensor_at(g, i < n->nin ? n->in[i] : n->out[i - n->nin]);
            if (t->storage < homes && home[t->storage]) t->loop = 0, t->advance = 0;
        }
        order->nodes.at[kept++] = order->nodes.at[k];
    }
    order->nodes.n = kept;
}

void pass_shard_weights(struct graph *g, const struct settings *s)
{
    if (!s->train || s->ranks < 2 || s->shard < SHARD_WEIGHTS || g->error.code) return;
    const uint32_t homes = g->storages.n; /* storages of visitors have higher ids */
    bool *home = mem_alloc(homes);
    id *shard = mem_alloc(homes * sizeof *shard);
    for (uint32_t i = 0; i < g->params.n; i++) {
        const struct param *p = &g->params.at[i];
        const id storage = tensor_at(g, p->tensor)->storage;
        if (g->storages.at[storage].kind != KIND_PARAM || p->running || home[storage]) continue;
        home[storage] = true;
        shard[storage] = make_shard(g, p, settings_holders(s));
    }
    FOR_PROGRAMS(p, PROGRAM_FORWARD) rewrite_program(g, p, s, home, shard, homes);
    rewrite_update(g, home, homes);
    for (id h = 1; h < homes; h++)
        if (home[h]) {
            g->storages.at[h].bytes = tensor_bytes(tensor_at(g, shard[h]));
            g->storages.at[h].shard = (uint8_t)settings_axis(s);
        }
    mem_free(home);
    mem_free(shard);
}

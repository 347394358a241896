/*
 * offload.c: what has its home in host memory.
 *
 *     optimizer     state (KIND_STATE) visits for the update of its weight
 *     masters       f32 masters (KIND_MASTER) likewise
 *     weights       weights of blocks visit for their block's forward, again for its
 *                   backward, and for their update
 *     activations   what a block saves goes out behind it and comes back for its backward
 *                   (offload_activations.c)
 *
 *     compute   ... [ block 1         ][ block 2         ][ block 3 ...
 *     copies        | fetch 2          | fetch 3          |
 *     weights       |-- 1 --|-------- 2 -------|
 *
 * All of it is copies between the two spaces, in a lane of their own. A block's weights are
 * fetched while the block before it computes, so two blocks' are in the compute space at a
 * time, as transients that the planner places. Nothing here knows an op: a storage's
 * kind says where its home is, and the alias table what a node writes. The same kernels work
 * on the same values, so no bit changes.
 */
#include "passes/offload.h"

#include "graph/ops.h"

/* Weights that something outside of all blocks reads or writes in the step or the
 * evaluation: they stay. */
static void keep_outsiders(const struct graph *g, enum program p, bool *away, bool *inside)
{
    for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[p].nodes.at[k]);
        bool block = graph_block_of(g, n->scope) != 0;
        for (int i = 0; i < n->nin + n->nout; i++) {
            id t = i < n->nin ? n->in[i] : n->out[i - n->nin];
            id s = t ? tensor_at(g, t)->storage : 0;
            if (!s || n->phase == PHASE_UPDATE) continue;
            if (block) inside[s] = true;
            else if (g->storages.at[s].kind == KIND_PARAM) away[s] = false;
        }
    }
}

/* By storage: its home is host memory. */
static bool *choose_homes(const struct graph *g, unsigned offload)
{
    bool *away = mem_alloc(g->storages.n), *inside = mem_alloc(g->storages.n);
    for (id s = 1; s < g->storages.n; s++) {
        enum kind k = g->storages.at[s].kind;
        away[s] = (k == KIND_STATE && offload & OFFLOAD_STATE) || (k == KIND_MASTER && offload & OFFLOAD_MASTERS) ||
                  (k == KIND_PARAM && offload & OFFLOAD_WEIGHTS);
    }
    keep_outsiders(g, PROGRAM_STEP, away, inside);
    keep_outsiders(g, PROGRAM_EVAL, away, inside);
    for (id s = 1; s < g->storages.n; s++)
        if (g->storages.at[s].kind == KIND_PARAM && !inside[s]) away[s] = false;
    mem_free(inside);
    return away;
}

unsigned offload_ladder(int i)
{
    static const unsigned rungs[OFFLOAD_RUNGS] = {0, OFFLOAD_STATE, OFFLOAD_STATE | OFFLOAD_MASTERS, OFFLOAD_STATE | OFFLOAD_MASTERS | OFFLOAD_WEIGHTS, OFFLOAD_ALL};
    CHECK(i >= 0 && i < OFFLOAD_RUNGS, "%d", i);
    return rungs[i];
}

bool offload_repeats(int i, const struct settings *s)
{
    return i > 0 && (offload_ladder(i) ^ offload_ladder(i - 1)) == OFFLOAD_MASTERS && (s->precision == DT_F32 || s->pure);
}

/* Whether a node of the program reads or writes one of the first `homes` storages that is away. */
static bool touches_away(const struct graph *g, enum program p, const bool *away, uint32_t homes)
{
    for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[p].nodes.at[k]);
        for (int i = 0; i < n->nin + n->nout; i++) {
            id s = tensor_at(g, i < n->nin ? n->in[i] : n->out[i - n->nin])->storage;
            if (s < homes && away[s]) return true;
        }
    }
    return false;
}

void pass_offload(struct graph *g, const struct settings *s)
{
    if (!s->offload) return;
    bool *away = choose_homes(g, s->offload);
    uint32_t homes = g->storages.n; /* visitors come behind them */
    for (id h = 1; h < homes; h++)
        if (away[h]) g->storages.at[h].space = SPACE_HOST;
    for (int p = 0; p < PROGRAM_COUNT; p++) {
        const bool activations = p == PROGRAM_STEP && s->offload & OFFLOAD_ACTIVATIONS;
        if (!activations && !touches_away(g, p, away, homes)) continue;
        struct visits v;
        bool *of = mem_alloc(g->storages.n);
        for (id h = 1; h < homes; h++) of[h] = away[h];
        visits_begin(&v, g, p, p == PROGRAM_STEP && s->accumulation > 1, "offload");
        v.beside = s->host_staging;
        for (uint32_t u = 0; u < v.units; u++) visit_unit(&v, u, of);
        if (activations) offload_activations(&v);
        visits_end(&v);
        mem_free(of);
    }
    mem_free(away);
}

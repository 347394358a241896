/*
 * offload.c: offloads storages to host memory (on a CPU: to the offload file).
 *
 *     optimizer     state (KIND_STATE) is fetched for the update of its weight
 *     masters       f32 master weights (KIND_MASTER) likewise
 *     weights       weights of blocks are fetched for their block's forward, for its backward, and
 *                   for their update; weights:N those of N blocks, evenly spread
 *     activations   saved activations of a block are copied out after it and fetched for its
 *                   backward (below)
 *     update        the host's processor updates the weights whose state and masters are offloaded:
 *                   only gradients are copied out, and weights that are not offloaded back in
 *
 *     compute   ... [ block 1         ][ block 2         ][ block 3 ...
 *     copies        | fetch 2          | fetch 3          |
 *     weights       |-- 1 --|-------- 2 -------|
 *
 *     backward  ... [ block 3         ][ block 2         ][ block 1 ...
 *     copies                           | gradients of 3   | gradients of 2
 *     host                                  [ update of 3     ][ update of 2 ...     a fused step
 *
 * The pass inserts copies between the two spaces, in lanes of their own. A block's weights are
 * fetched while the block before it computes, or from the last block with offloaded weights on, so
 * the weights of two blocks are in device memory at a time, as transients that the planner places.
 * The pass does not depend on ops: the storage's
 * kind decides its home, and the alias table shows what a node writes. The same kernels run on the
 * same values, or on the host kernels with the same arithmetic (OPF_HOST), so no bit changes.
 */
#include "graph/ops.h"
#include "passes/passes.h"
#include "passes/visit.h"

/* --- activations ------------------------------------------------------------------------------ */

/* Saved activations smaller than OFFLOAD_LEAST stay in device memory: two copies cost more than the
 * bytes are worth. So do those that are used again within OFFLOAD_GAP runs. */
enum { OFFLOAD_LEAST = 16 << 10, OFFLOAD_GAP = 4 };

/*
 * Offloads saved activations until their backward.
 *
 *     forward    block 1: x --------+ last reader      backward   block 2    block 1
 *                                   | copy out                    | fetch    ^ first reader
 *     host memory                   |-----------------------------|
 *
 * A storage is offloaded if it is a transient in device memory that only the forward writes and
 * that the backward or its recomputation reads; all its nodes are in the body of the loop over
 * micro-batches itself or in loops over tokens, not in another loop within it; it is large enough;
 * and its first reader in the backward is at least OFFLOAD_GAP runs (visit.h) after its last reader
 * in the forward.
 */

/* The uses of a storage in the program; `stays`: it cannot be offloaded. */
struct use {
    bool used, stays;
    uint32_t last_forward, first_backward, last_backward;
};

static void note_forward(struct use *x, uint32_t k)
{
    if (x->first_backward) x->stays = true; /* forward and backward reads alternate */
    x->last_forward = k;
}

static void note_backward(struct use *x, uint32_t k, bool writes)
{
    if (!x->first_backward) x->first_backward = k;
    x->last_backward = k;
    x->stays |= writes;
}

static void note_node(const struct visits *v, uint32_t k, struct use *uses)
{
    const struct graph *g = v->g;
    const struct node *n = visit_node(v, k);
    for (int i = 0; i < n->nin + n->nout; i++) {
        id t = i < n->nin ? n->in[i] : n->out[i - n->nin];
        if (!t || t >= v->tensors) continue;
        struct use *x = &uses[v->home[t]];
        bool writes = i >= n->nin && !(op_table[n->op].flags & OPF_VIEW);
        /* Only storages that a forward node writes first qualify. */
        if (!x->used) x->stays = !writes || n->phase != PHASE_FORWARD;
        x->used = true;
        x->stays |= loop_body(g, n->loop) != v->level || loop_body(g, tensor_at(g, t)->loop);
        if (n->phase == PHASE_FORWARD) note_forward(x, k);
        else note_backward(x, k, writes);
    }
}

static bool qualifies(const struct visits *v, id s, const struct use *x)
{
    const struct storage *st = &v->g->storages.at[s];
    if (!x->used || x->stays || !x->first_backward || st->kind != KIND_ACT || st->space != SPACE_DEVICE) return false;
    return st->bytes >= OFFLOAD_LEAST &&
           v->run[v->unit[x->first_backward]] - v->run[v->unit[x->last_forward]] >= OFFLOAD_GAP;
}

/* Returns the first position behind `at` that is in no loop with it. */
static uint32_t behind(const struct visits *v, uint32_t at)
{
    const id loop = visit_node(v, at++)->loop;
    while (loop != v->level && at < v->count && visit_node(v, at)->loop == loop) at++;
    return at;
}

static void offload_storage(struct visits *v, id s, const struct use *x)
{
    struct graph *g = v->g;
    id out = visit_copy(v, visit_whole(v, s), 0, SPACE_HOST, behind(v, x->last_forward), x->last_forward);
    id there = node_at(g, out)->out[0];
    storage_of(g, there)->name = tensor_at(g, there)->name = g->storages.at[s].name;
    visit_fetch(v, s, there, visit_from(v, v->unit[x->first_backward]), x->first_backward);
    for (uint32_t k = x->first_backward; k <= x->last_backward; k++) visit_rewrite(v, k, v->units + s);
    v->here[s] = (struct visitor){0};
}

static void offload_activations(struct visits *v)
{
    struct use *uses = mem_alloc(v->storages * sizeof *uses);
    for (uint32_t k = 0; k < v->count; k++) note_node(v, k, uses);
    for (id s = 1; s < v->storages; s++)
        if (qualifies(v, s, &uses[s])) offload_storage(v, s, &uses[s]);
    mem_free(uses);
}

/* --- state and weights ------------------------------------------------------------------------ */

/* Unmarks the weights that a node outside of all blocks accesses in the program, which are not
 * offloaded; marks in `inside` what a node of a block accesses. */
static void keep_outsiders(const struct graph *g, enum program p, bool *offloaded, bool *inside)
{
    for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[p].nodes.at[k]);
        bool block = graph_block_of(g, n->scope) != 0;
        for (int i = 0; i < n->nin + n->nout; i++) {
            id t = i < n->nin ? n->in[i] : n->out[i - n->nin];
            id s = t ? tensor_at(g, t)->storage : 0;
            if (!s || n->phase == PHASE_UPDATE) continue;
            if (block) inside[s] = true;
            else if (g->storages.at[s].kind == KIND_PARAM) offloaded[s] = false;
        }
    }
}

bool offload_has_block(const struct settings *s, uint32_t number, uint32_t count)
{
    const uint64_t n = (uint64_t)s->offload_blocks;
    return !n || n >= count || number * n / count > (number - 1) * n / count;
}

/* Unmarks the weights of blocks of the program that keep them. */
static void keep_blocks(const struct graph *g, enum program p, const struct settings *s, bool *offloaded)
{
    uint32_t *number = mem_alloc(g->scopes.n * sizeof *number), count = 0;
    for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[p].nodes.at[k]);
        const id block = n->phase == PHASE_FORWARD ? graph_block_of(g, n->scope) : 0;
        if (block && !number[block]) number[block] = ++count;
    }
    for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[p].nodes.at[k]);
        const uint32_t block = number[graph_block_of(g, n->scope)];
        if (!block || n->phase == PHASE_UPDATE || offload_has_block(s, block, count)) continue;
        for (int i = 0; i < n->nin + n->nout; i++) {
            const id t = i < n->nin ? n->in[i] : n->out[i - n->nin], home = t ? tensor_at(g, t)->storage : 0;
            if (g->storages.at[home].kind == KIND_PARAM) offloaded[home] = false;
        }
    }
    mem_free(number);
}

/* Marks, by storage, what is offloaded. */
static bool *choose_homes(const struct graph *g, const struct settings *settings)
{
    const unsigned offload = settings->offload;
    bool *offloaded = mem_alloc(g->storages.n), *inside = mem_alloc(g->storages.n);
    for (id s = 1; s < g->storages.n; s++) {
        enum kind k = g->storages.at[s].kind;
        offloaded[s] = (k == KIND_STATE && offload & OFFLOAD_STATE) ||
                       (k == KIND_MASTER && offload & OFFLOAD_MASTERS) ||
                       (k == KIND_PARAM && offload & OFFLOAD_WEIGHTS);
    }
    FOR_PROGRAMS(p, PROGRAM_FORWARD) keep_outsiders(g, p, offloaded, inside);
    for (id s = 1; s < g->storages.n; s++)
        if (g->storages.at[s].kind == KIND_PARAM && !inside[s]) offloaded[s] = false;
    FOR_PROGRAMS(p, PROGRAM_FORWARD)
        if (settings->offload_blocks) keep_blocks(g, p, settings, offloaded);
    mem_free(inside);
    return offloaded;
}

bool offload_has_masters(const struct settings *s) { return policies[s->precision].masters; }

bool offload_is_whole(const struct settings *s, unsigned set)
{
    const unsigned updated = OFFLOAD_STATE | (offload_has_masters(s) ? OFFLOAD_MASTERS : 0);
    return !(set & OFFLOAD_UPDATE) || (set & updated) == updated;
}

bool offload_excluded(const struct settings *s, const struct step_limits *l, struct text *why)
{
    (void)l;
    if (!offload_is_whole(s, s->offload))
        text_printf(why, "the host's processor updates what is in its memory; add optimizer%s, or leave out update",
                    offload_has_masters(s) ? " and masters" : "");
    return why->n;
}

/* Reports whether a node of the program accesses one of the first `homes` storages that is
 * offloaded. */
static bool touches_offloaded(const struct graph *g, enum program p, const bool *offloaded, uint32_t homes)
{
    for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[p].nodes.at[k]);
        for (int i = 0; i < n->nin + n->nout; i++) {
            id s = tensor_at(g, i < n->nin ? n->in[i] : n->out[i - n->nin])->storage;
            if (s < homes && offloaded[s]) return true;
        }
    }
    return false;
}

/* Marks, by position, the updates that the host's processor computes: those whose state and master
 * weights are all offloaded. */
static bool *find_host_updates(const struct visits *v, const bool *offloaded)
{
    bool *found = mem_alloc(v->count + 1);
    for (uint32_t k = 0; k < v->count; k++) {
        const struct node *n = visit_node(v, k);
        bool some = false, all = op_table[n->op].flags & OPF_HOST && !n->loop;
        for (int i = 0; i < n->nin && all; i++) {
            const id s = n->in[i] ? tensor_at(v->g, n->in[i])->storage : 0;
            const enum kind kind = v->g->storages.at[s].kind;
            if (kind != KIND_STATE && kind != KIND_MASTER) continue;
            some = true;
            all = offloaded[s];
        }
        found[k] = some && all;
    }
    return found;
}

void pass_offload(struct graph *g, const struct settings *s)
{
    if (!s->offload) return;
    bool *offloaded = choose_homes(g, s);
    uint32_t homes = g->storages.n; /* storages of visitors have higher ids */
    for (id h = 1; h < homes; h++)
        if (offloaded[h]) g->storages.at[h].space = SPACE_HOST;
    for (int p = 0; p < PROGRAM_COUNT; p++) {
        const bool trains = program_is(p, PROGRAM_TRAINS), activations = trains && s->offload & OFFLOAD_ACTIVATIONS;
        if (!activations && !touches_offloaded(g, p, offloaded, homes)) continue;
        struct visits v;
        bool *of = mem_alloc(g->storages.n);
        for (id h = 1; h < homes; h++) of[h] = offloaded[h];
        const bool overlaps = s->device.copies_overlap;
        visits_begin(&v, g, p, trains ? (s->shares > 1) + (s->accumulation > 1) : 0, overlaps,
                     overlaps && !(s->offload & OFFLOAD_ACTIVATIONS), "offload");
        v.spread = v.overlaps && s->offload_blocks;
        bool *host = s->offload & OFFLOAD_UPDATE ? find_host_updates(&v, of) : NULL;
        v.stays = host;
        for (uint32_t u = 0; u < v.units; u++) {
            visit_unit(&v, u, of);
            for (uint32_t k = v.first[u]; k < v.first[u + 1] && host && s->device.separate_memory; k++)
                if (host[k]) node_at(g, v.nodes[k])->attr.adamw.fresh = visit_host(&v, k);
        }
        if (activations) offload_activations(&v);
        visits_end(&v);
        mem_free(host);
        mem_free(of);
    }
    mem_free(offloaded);
}

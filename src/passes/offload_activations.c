/*
 * offload_activations.c: saved activations wait for the backward in host memory.
 *
 *     forward    block 1: x --------+ last reader      backward   block 2    block 1
 *                                   | copy out                    | fetch    ^ first reader
 *     host memory                  |-----------------------------|
 *
 * Which: transients of the compute space that the forward alone writes and the backward, or
 * a repetition in it, reads again; whose nodes all stand in the micro-batches' body itself,
 * not in a loop within it; that are large enough; and of which the first reader in the
 * backward is at least OFFLOAD_GAP units behind the last one in the forward.
 */
#include "graph/ops.h"
#include "passes/offload.h"

/* How a storage is used by the program. */
struct use {
    bool used, stays;
    uint32_t last_forward, first_again, last_again;
};

static void note_forward(struct use *x, uint32_t k)
{
    if (x->first_again) x->stays = true; /* read by both in turns */
    x->last_forward = k;
}

static void note_again(struct use *x, uint32_t k, bool writes)
{
    if (!x->first_again) x->first_again = k;
    x->last_again = k;
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
        /* What a backward node or a copy makes first is none of ours. */
        if (!x->used) x->stays = !writes || n->phase != PHASE_FORWARD;
        x->used = true;
        x->stays |= n->loop != v->level || tensor_at(g, t)->loop;
        if (n->phase == PHASE_FORWARD) note_forward(x, k);
        else note_again(x, k, writes);
    }
}

static bool goes(const struct visits *v, id s, const struct use *x)
{
    const struct storage *st = &v->g->storages.at[s];
    if (!x->used || x->stays || !x->first_again || st->kind != KIND_ACT || st->space != SPACE_DEVICE) return false;
    return st->bytes >= OFFLOAD_LEAST && v->rank[v->unit[x->first_again]] - v->rank[v->unit[x->last_forward]] >= OFFLOAD_GAP;
}

static void send_away(struct visits *v, id s, const struct use *x)
{
    struct graph *g = v->g;
    id out = visit_copy(v, visit_whole(v, s), 0, SPACE_HOST, x->last_forward + 1, x->last_forward);
    id there = node_at(g, out)->out[0];
    storage_of(g, there)->name = tensor_at(g, there)->name = g->storages.at[s].name;
    visit_fetch(v, s, there, visit_from(v, v->unit[x->first_again]), x->first_again);
    for (uint32_t k = x->first_again; k <= x->last_again; k++) visit_rewrite(v, k, v->units + s);
    v->here[s] = (struct visitor){0};
}

void offload_activations(struct visits *v)
{
    struct use *uses = mem_alloc(v->storages * sizeof *uses);
    for (uint32_t k = 0; k < v->count; k++) note_node(v, k, uses);
    for (id s = 1; s < v->storages; s++)
        if (goes(v, s, &uses[s])) send_away(v, s, &uses[s]);
    mem_free(uses);
}

/*
 * offload_activations.c: offloads saved activations until their backward.
 *
 *     forward    block 1: x --------+ last reader      backward   block 2    block 1
 *                                   | copy out                    | fetch    ^ first reader
 *     host memory                   |-----------------------------|
 *
 * A storage is offloaded if it is a transient in device memory that only the forward writes and
 * that the backward or its recomputation reads; all its nodes are in the body of the loop over
 * micro-batches itself, not in a loop within it; it is large enough; and its first reader in the
 * backward is at least OFFLOAD_GAP units after its last reader in the forward.
 */
#include "graph/ops.h"
#include "passes/techniques/offload.h"

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
        x->stays |= n->loop != v->level || tensor_at(g, t)->loop;
        if (n->phase == PHASE_FORWARD) note_forward(x, k);
        else note_backward(x, k, writes);
    }
}

static bool qualifies(const struct visits *v, id s, const struct use *x)
{
    const struct storage *st = &v->g->storages.at[s];
    if (!x->used || x->stays || !x->first_backward || st->kind != KIND_ACT || st->space != SPACE_DEVICE) return false;
    return st->bytes >= OFFLOAD_LEAST &&
           v->rank[v->unit[x->first_backward]] - v->rank[v->unit[x->last_forward]] >= OFFLOAD_GAP;
}

static void offload_storage(struct visits *v, id s, const struct use *x)
{
    struct graph *g = v->g;
    id out = visit_copy(v, visit_whole(v, s), 0, SPACE_HOST, x->last_forward + 1, x->last_forward);
    id there = node_at(g, out)->out[0];
    storage_of(g, there)->name = tensor_at(g, there)->name = g->storages.at[s].name;
    visit_fetch(v, s, there, visit_from(v, v->unit[x->first_backward]), x->first_backward);
    for (uint32_t k = x->first_backward; k <= x->last_backward; k++) visit_rewrite(v, k, v->units + s);
    v->here[s] = (struct visitor){0};
}

void offload_activations(struct visits *v)
{
    struct use *uses = mem_alloc(v->storages * sizeof *uses);
    for (uint32_t k = 0; k < v->count; k++) note_node(v, k, uses);
    for (id s = 1; s < v->storages; s++)
        if (qualifies(v, s, &uses[s])) offload_storage(v, s, &uses[s]);
    mem_free(uses);
}

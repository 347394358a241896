/*
 * lifetime.c: see lifetime.h. Live ranges first go from the first to the last access; then each
 * loop, from the innermost outwards, extends the ranges that cross its iterations.
 *
 *     fill acc          acc |
 *     loop {            acc | .        carried: written before, updated inside
 *        t = f(slice)   acc | t        t is written in every iteration: its range stays short
 *        acc += t       acc | t
 *     }                 acc |
 */
#include "graph/lifetime.h"

struct access {
    bool fresh; /* the first access is a write without a read, */
    id loop;    /* to a tensor that advances with this loop (0: the tensor does not advance) */
};

static void touch(struct life *l, uint32_t at)
{
    if (!l->used) *l = (struct life){at, at, true};
    l->end = at;
}

static int depth(const struct graph *g, id loop)
{
    int d = 0;
    for (; loop; loop = g->loops.at[loop].parent) d++;
    return d;
}

/* The positions of a loop's nodes. */
struct span {
    uint32_t from, to;
    bool seen;
};

/* Extends, to the whole of the loops of one depth, the ranges that begin or end in them and are not
 * local to one iteration. `around`: by position, the loop of that depth; 0: none. Loops that lie
 * within a range do not change it. */
static void extend(const struct graph *g, const id *around, const struct span *span, struct life *life,
                   const struct access *first)
{
    for (id s = 1; s < g->storages.n; s++) {
        struct life *x = &life[s];
        if (!x->used) continue;
        const id begin = around[x->start], end = around[x->end];
        if (begin && begin == end && first[s].fresh && first[s].loop != begin) continue; /* local */
        if (begin) x->start = span[begin].from;
        if (end) x->end = span[end].to;
    }
}

/* Sets the range from the first to the last access of each storage, its first access, and the span
 * of each loop; returns the depth of the innermost loops. */
static int find_ranges(const struct graph *g, enum program p, struct life *life, struct access *first,
                       struct span *span)
{
    int deepest = 0;
    for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[p].nodes.at[k]);
        for (int i = 0; i < n->nin; i++) {
            if (!n->in[i]) continue;
            id s = tensor_at(g, n->in[i])->storage;
            if (!life[s].used) first[s] = (struct access){0};
            touch(&life[s], k);
        }
        for (int o = 0; o < n->nout; o++) {
            if (!n->out[o]) continue;
            id s = tensor_at(g, n->out[o])->storage;
            if (!life[s].used) first[s] = (struct access){true, tensor_at(g, n->out[o])->loop};
            touch(&life[s], k);
        }
        for (id l = n->loop; l; l = g->loops.at[l].parent) {
            if (!span[l].seen) span[l].from = k;
            span[l].seen = true;
            span[l].to = k;
        }
        if (n->loop && depth(g, n->loop) > deepest) deepest = depth(g, n->loop);
    }
    return deepest;
}

void graph_lifetimes(const struct graph *g, enum program p, struct life *life)
{
    const struct order *order = &g->order[p];
    memset(life, 0, g->storages.n * sizeof *life);
    if (!order->nodes.n) return;
    struct access *first = mem_resize(NULL, g->storages.n * sizeof *first); /* of storages that are used */
    struct span *span = mem_alloc(g->loops.n * sizeof *span);
    const int deepest = find_ranges(g, p, life, first, span);
    id *around = deepest ? mem_resize(NULL, order->nodes.n * sizeof *around) : NULL;
    for (int d = deepest; d > 0; d--) {
        for (uint32_t k = 0; k < order->nodes.n; k++) {
            around[k] = node_at(g, order->nodes.at[k])->loop;
            for (int more = depth(g, around[k]) - d; more > 0; more--) around[k] = g->loops.at[around[k]].parent;
            if (depth(g, around[k]) < d) around[k] = 0;
        }
        extend(g, around, span, life, first);
    }
    mem_free(around);
    mem_free(first);
    mem_free(span);
}

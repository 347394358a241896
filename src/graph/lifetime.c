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

/* Extends to the whole of loop `l`, positions [from, to], every range that is not local to one
 * iteration. A range that begins or ends inside has an access there; any other one that overlaps
 * goes on through the whole loop. */
static void extend(const struct graph *g, id l, uint32_t from, uint32_t to, struct life *life,
                   const struct access *first)
{
    for (id s = 1; s < g->storages.n; s++) {
        struct life *x = &life[s];
        if (!x->used || x->end < from || x->start > to) continue;
        if (x->start >= from && x->end <= to && first[s].fresh && first[s].loop != l) continue; /* local */
        if (x->start > from) x->start = from;
        if (x->end < to) x->end = to;
    }
}

void graph_lifetimes(const struct graph *g, enum program p, struct life *life)
{
    memset(life, 0, g->storages.n * sizeof *life);
    if (!g->order[p].nodes.n) return;
    struct access *first = mem_resize(NULL, g->storages.n * sizeof *first); /* of storages that are used */
    struct { uint32_t from, to; bool seen; } *range = mem_alloc(g->loops.n * sizeof *range);
    const struct order *order = &g->order[p];
    int deepest = 0;
    for (uint32_t k = 0; k < order->nodes.n; k++) {
        const struct node *n = node_at(g, order->nodes.at[k]);
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
            if (!range[l].seen) range[l].from = k;
            range[l].seen = true;
            range[l].to = k;
        }
        if (n->loop && depth(g, n->loop) > deepest) deepest = depth(g, n->loop);
    }
    for (int d = deepest; d > 0; d--)
        for (id l = 1; l < g->loops.n; l++)
            if (range[l].seen && depth(g, l) == d) extend(g, l, range[l].from, range[l].to, life, first);
    mem_free(first);
    mem_free(range);
}

/*
 * names.c: see names.h. Open addressing: a name's slot is the first free or equal one from
 * its hash on, and the table is at most half full.
 *
 *     names   \0 model \0 model.layers.0 \0 ...
 *                ^        ^
 *     slots   [ .  1  .  .  7  . ... ]            an id is an offset into names
 */
#include "graph/names.h"

#include <string.h>

static struct name_slot *find(const struct graph *g, const char *s, size_t n)
{
    const struct name_index *x = &g->index;
    uint32_t at = (uint32_t)hash_bytes(s, n, 0) & (x->slots - 1);
    while (x->slot[at].name && strcmp(graph_name(g, x->slot[at].name), s)) at = (at + 1) & (x->slots - 1);
    return &x->slot[at];
}

static void grow(struct graph *g)
{
    struct name_index old = g->index;
    g->index.slots = old.slots ? 2 * old.slots : 1024;
    g->index.slot = mem_alloc(g->index.slots * sizeof *g->index.slot);
    for (uint32_t i = 0; i < old.slots; i++) {
        const char *s = graph_name(g, old.slot[i].name);
        if (old.slot[i].name) *find(g, s, strlen(s)) = old.slot[i];
    }
    mem_free(old.slot);
}

/* `s` may itself lie in the table: it is located again after the table grew. */
static id append(struct graph *g, const char *s, uint32_t n)
{
    uint32_t at = g->names.n;
    bool ours = s >= g->names.at && s < g->names.at + at;
    size_t offset = ours ? (size_t)(s - g->names.at) : 0;
    vec_grow((void **)&g->names.at, &g->names.cap, at + n, 1);
    memcpy(g->names.at + at, ours ? g->names.at + offset : s, n);
    g->names.n += n;
    return at;
}

struct name_slot *names_slot(struct graph *g, const char *s)
{
    if (2 * (g->index.used + 1) > g->index.slots) grow(g);
    size_t n = strlen(s);
    struct name_slot *slot = find(g, s, n);
    if (slot->name) return slot;
    slot->name = append(g, s, (uint32_t)n + 1);
    g->index.used++;
    return slot;
}

id graph_intern(struct graph *g, const char *s) { return s && *s ? names_slot(g, s)->name : 0; }

const char *graph_name(const struct graph *g, id name) { return &g->names.at[name]; }

void name_index_copy(struct name_index *to, const struct name_index *from)
{
    *to = *from;
    to->slot = mem_copy(from->slot, from->slots * sizeof *from->slot);
}

void name_index_free(struct name_index *x)
{
    mem_free(x->slot);
    *x = (struct name_index){0};
}

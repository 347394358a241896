/*
 * names.c: see names.h. Open addressing: a name's slot is the first free or equal one from
 * its hash on, and the table is at most half full.
 *
 *     names   \0 model \0 model.layers.0 \0 ...
 *                ^        ^
 *     slots   [ .  1  .  .  7  . ... ]            an id is an offset into names
 */
#include "graph/names.h"

static struct name_slot *find(const struct graph *g, const char *s, uint32_t hash)
{
    const struct name_index *x = &g->index;
    uint32_t at = hash & (x->slots - 1);
    while (x->slot[at].name && (x->slot[at].hash != hash || strcmp(graph_name(g, x->slot[at].name), s)))
        at = (at + 1) & (x->slots - 1);
    return &x->slot[at];
}

static void grow(struct graph *g)
{
    struct name_index old = g->index;
    g->index.slots = old.slots ? 4 * old.slots : 1024;
    g->index.slot = mem_alloc(g->index.slots * sizeof *g->index.slot);
    for (uint32_t i = 0; i < old.slots; i++) {
        if (!old.slot[i].name) continue;
        uint32_t at = old.slot[i].hash & (g->index.slots - 1);
        while (g->index.slot[at].name) at = (at + 1) & (g->index.slots - 1);
        g->index.slot[at] = old.slot[i];
    }
    mem_free(old.slot);
}

/* Appends n bytes to the table and returns where they begin. `s` may itself lie in the table: it is
 * located again after the table grew. */
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
    uint32_t hash = (uint32_t)hash_bytes(s, n, 0);
    struct name_slot *slot = find(g, s, hash);
    if (slot->name) return slot;
    slot->hash = hash;
    slot->name = append(g, s, (uint32_t)n + 1);
    g->index.used++;
    return slot;
}

id graph_intern(struct graph *g, const char *s) { return s && *s ? names_slot(g, s)->name : 0; }

const char *graph_name(const struct graph *g, id name) { return &g->names.at[name]; }

/* Copies a table into the memory of another one if both have the same size; returns the copy. */
static void *copy_table(void *to, uint32_t to_slots, const void *from, uint32_t slots, size_t size)
{
    if (to_slots != slots) {
        mem_free(to);
        return mem_copy(from, slots * size);
    }
    return slots ? memcpy(to, from, slots * size) : to;
}

void name_index_copy_over(struct name_index *to, const struct name_index *from)
{
    struct name_slot *slot = copy_table(to->slot, to->slots, from->slot, from->slots, sizeof *slot);
    *to = *from;
    to->slot = slot;
}

void name_index_free(struct name_index *x)
{
    mem_free(x->slot);
    *x = (struct name_index){0};
}

/* --- names of outputs ------------------------------------------------------------------- */

static struct output_slot *output_slot(const struct output_index *x, uint64_t key)
{
    uint32_t at = (uint32_t)(key * 0x9e3779b97f4a7c15ull >> 32) & (x->slots - 1);
    while (x->slot[at].key && x->slot[at].key != key) at = (at + 1) & (x->slots - 1);
    return &x->slot[at];
}

static void grow_outputs(struct output_index *x)
{
    const struct output_index old = *x;
    x->slots = old.slots ? 2 * old.slots : 256;
    x->slot = mem_alloc(x->slots * sizeof *x->slot);
    for (uint32_t i = 0; i < old.slots; i++)
        if (old.slot[i].key) *output_slot(x, old.slot[i].key) = old.slot[i];
    mem_free(old.slot);
}

id *names_of_output(struct graph *g, uint64_t key)
{
    struct output_index *x = &g->output_names;
    if (2 * (x->used + 1) > x->slots) grow_outputs(x);
    struct output_slot *slot = output_slot(x, key);
    x->used += !slot->key;
    slot->key = key;
    return &slot->name;
}

void output_index_copy_over(struct output_index *to, const struct output_index *from)
{
    struct output_slot *slot = copy_table(to->slot, to->slots, from->slot, from->slots, sizeof *slot);
    *to = *from;
    to->slot = slot;
}

void output_index_free(struct output_index *x)
{
    mem_free(x->slot);
    *x = (struct output_index){0};
}

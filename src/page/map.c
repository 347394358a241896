/*
 * map.c: the memory map of a plan, for the page to draw: a rectangle for each storage, from the op
 * that makes it to the last one that reads it, at its address.
 *
 *     {"ops": of a step, "update": the first op of the update, "kinds": [names],
 *      "rects": [[from, to, offset, bytes, kind, name], ...]}     persistent ones first
 */
#include "page/page.h"

#include "io/json.h"
#include "report/lives.h"

struct map {
    const struct plan *plan;
    const struct graph *g;
    uint32_t start[PROGRAM_COUNT]; /* the first op of each program of a step */
    uint32_t ops, update;
};

static void find_starts(struct map *m)
{
    FOR_STEP_PROGRAMS(p) {
        if (program_is(p, PROGRAM_HANDED)) m->update = m->ops;
        m->start[p] = m->ops;
        m->ops += m->g->order[p].nodes.n;
    }
}

static void put_rectangle(struct json_writer *w, uint32_t from, uint32_t to, uint64_t offset, uint64_t bytes,
                          enum kind kind, const char *name)
{
    json_begin_list(w, NULL);
    json_put_uint(w, NULL, from);
    json_put_uint(w, NULL, to);
    json_put_uint(w, NULL, offset);
    json_put_uint(w, NULL, bytes);
    json_put_int(w, NULL, kind);
    json_put_string(w, NULL, name);
    json_end(w);
}

static void put_persistent(struct json_writer *w, const struct map *m)
{
    for (id s = 1; s < m->g->storages.n; s++) {
        const struct storage *x = &m->g->storages.at[s];
        if (lives_is_persistent(m->plan, m->g, s))
            put_rectangle(w, 0, m->ops, m->plan->placement.offset[s], x->bytes, x->kind, graph_name(m->g, x->name));
    }
}

/* Writes each transient storage when it is freed, from where it was allocated on. */
static void put_transient(struct json_writer *w, const struct map *m, const struct lives *l)
{
    uint32_t *born = mem_alloc(m->g->storages.n * sizeof *born);
    for (uint32_t i = 0; i < l->events.n; i++) {
        const struct lives_event *v = &l->events.at[i];
        const uint32_t at = m->start[v->program] + v->position;
        if (v->birth) born[v->storage] = at;
        else
            put_rectangle(w, v->storage ? born[v->storage] : at, at + 1, v->offset, v->bytes, lives_kind(m->g, v),
                          lives_name(m->g, v));
    }
    mem_free(born);
}

void page_put_map(const struct plan *plan, const struct graph *g, struct text *out)
{
    struct map m = {.plan = plan, .g = g};
    struct json_writer w = {.out = out};
    struct lives l = {0};
    find_starts(&m);
    lives_collect(&l, plan, g);
    json_begin_map(&w, NULL);
    json_put_uint(&w, "ops", m.ops);
    json_put_uint(&w, "update", m.update);
    json_begin_list(&w, "kinds");
    for (int k = 0; k < KIND_COUNT; k++) json_put_string(&w, NULL, k ? kind_name((enum kind)k) : "");
    json_end(&w);
    json_begin_list(&w, "rects");
    put_persistent(&w, &m);
    put_transient(&w, &m, &l);
    json_end(&w);
    json_end(&w);
    lives_free(&l);
}

/*
 * blocks.c: the memory map of a plan, for figures of it (the contract is in plimsoll.h).
 */
#include "plimsoll.h"

#include "lib/session.h"
#include "report/lives.h"

/* The first op of each program of a step; `end` is their number. */
struct starts {
    uint32_t at[PROGRAM_COUNT], end;
};

static struct starts find_starts(const struct graph *g)
{
    struct starts s = {0};
    FOR_STEP_PROGRAMS(p) {
        s.at[p] = s.end;
        s.end += g->order[p].nodes.n;
    }
    return s;
}

static void add_persistent(struct pl_session *s, const struct plan *p, const struct graph *g, uint32_t end)
{
    for (id k = 1; k < g->storages.n; k++)
        if (lives_is_persistent(p, g, k))
            vec_push(&s->blocks, ((struct pl_block){graph_name(g, g->storages.at[k].name), p->placement.offset[k],
                                                    g->storages.at[k].bytes, 0, end,
                                                    (int32_t)g->storages.at[k].kind - 1, 1}));
}

/* Opens a block for each birth, which the free of the same storage or workspace closes. */
static void add_transient(struct pl_session *s, const struct graph *g, const struct lives *l, const struct starts *at)
{
    const uint32_t first = s->blocks.n;
    for (uint32_t i = 0; i < l->events.n; i++) {
        const struct lives_event *v = &l->events.at[i];
        const uint32_t op = at->at[v->program] + v->position;
        if (v->birth) {
            vec_push(&s->blocks, ((struct pl_block){lives_name(g, v), v->offset, v->bytes, op, UINT32_MAX,
                                                    (int32_t)lives_kind(g, v) - 1, 0}));
            continue;
        }
        for (uint32_t k = s->blocks.n; k-- > first;) {
            struct pl_block *b = &s->blocks.at[k];
            if (b->to != UINT32_MAX || b->offset != v->offset || b->bytes != v->bytes) continue;
            b->to = op + 1;
            break;
        }
    }
    for (uint32_t k = first; k < s->blocks.n; k++)
        if (s->blocks.at[k].to == UINT32_MAX) s->blocks.at[k].to = at->end;
}

int pl_plan_blocks(struct pl_session *s, const struct pl_block **blocks, size_t *n, uint32_t *ops)
{
    ENTER(s);
    struct lives l;
    if (!blocks || !n || !ops) return error_set(&s->error, PL_USAGE, "pl_plan_blocks: a result is NULL");
    session_plan(s);
    if (s->stage < STAGE_PLANNED) return s->error.code;
    const struct planned *r = &session_run(s)->planned;
    const struct starts at = find_starts(&r->graph);
    s->blocks.n = 0;
    lives_collect(&l, &r->plan, &r->graph);
    add_persistent(s, &r->plan, &r->graph, at.end);
    add_transient(s, &r->graph, &l, &at);
    lives_free(&l);
    *blocks = s->blocks.at;
    *n = s->blocks.n;
    *ops = at.end;
    return PL_OK;
}

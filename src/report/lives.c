/*
 * lives.c: see lives.h.
 */
#include "report/lives.h"
#include "graph/ops.h"

const char *lives_name(const struct graph *g, const struct lives_event *v)
{
    if (v->storage) return graph_name(g, g->storages.at[v->storage].name);
    return op_table[node_at(g, v->node)->op].name;
}

enum kind lives_kind(const struct graph *g, const struct lives_event *v)
{
    return v->storage ? (enum kind)g->storages.at[v->storage].kind : plan_work_kind(node_at(g, v->node));
}

/* Sorts events by time; allocations at the same instant by address. */
static int by_time(const void *a, const void *b)
{
    const struct lives_event *x = a, *y = b;
    if (x->program != y->program) return x->program < y->program ? -1 : 1;
    if (x->position != y->position) return x->position < y->position ? -1 : 1;
    if (x->birth != y->birth) return x->birth ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static void push(struct lives *l, const struct graph *g, struct lives_event v, enum program p, uint32_t position,
                 bool birth)
{
    v.program = (uint8_t)p;
    v.position = position;
    v.birth = birth;
    v.node = g->order[p].nodes.n ? g->order[p].nodes.at[position] : 0;
    vec_push(&l->events, v);
}

/* Reports whether the program before `to` leaves a storage to it. */
static bool is_handed(const struct plan *plan, const struct graph *g, id s, enum program to)
{
    return to && to < PROGRAM_COUNT && program_is(to, PROGRAM_HANDED) && g->storages.at[s].handed &&
           plan->placement.life[to - 1][s].used && plan->placement.life[to][s].used;
}

/* Adds the allocation and the free of a storage. One that is handed over is freed in the program
 * that gets it. */
static void add_storage(struct lives *l, const struct plan *plan, const struct graph *g, id s, enum program p)
{
    const struct life *life = &plan->placement.life[p][s];
    struct lives_event v = {.storage = s, .offset = plan->placement.offset[s],
                            .bytes = align_up(g->storages.at[s].bytes, PLAN_ALIGN)};
    if (!is_handed(plan, g, s, p)) push(l, g, v, p, life->start, true);
    if (!is_handed(plan, g, s, p + 1)) push(l, g, v, p, life->end, false);
}

static bool is_placed(const struct plan *p, const struct graph *g, id s)
{
    return g->storages.at[s].space == SPACE_DEVICE && plan_reached(p, g, s);
}

bool lives_is_persistent(const struct plan *p, const struct graph *g, id s)
{
    return storage_is_persistent(&g->storages.at[s]) && is_placed(p, g, s);
}

void lives_collect(struct lives *l, const struct plan *plan, const struct graph *g)
{
    memset(l, 0, sizeof *l);
    for (id s = 1; s < g->storages.n; s++) {
        const struct storage *x = &g->storages.at[s];
        if (!is_placed(plan, g, s)) continue;
        if (storage_is_persistent(x)) l->persistent[x->kind] += align_up(x->bytes, PLAN_ALIGN);
        FOR_STEP_PROGRAMS(p)
            if (!storage_is_persistent(x) && plan->placement.life[p][s].used) add_storage(l, plan, g, s, p);
    }
    FOR_STEP_PROGRAMS(p)
        for (uint32_t i = 0; i < g->order[p].nodes.n; i++) {
            const struct binding *b = &plan->placement.binding[g->order[p].nodes.at[i]];
            if (!b->work_bytes) continue;
            struct lives_event v = {.offset = b->work_offset, .bytes = align_up(b->work_bytes, PLAN_ALIGN)};
            push(l, g, v, p, i, true);
            push(l, g, v, p, i, false);
        }
    if (l->events.n) qsort(l->events.at, l->events.n, sizeof *l->events.at, by_time);
}

void lives_free(struct lives *l) { vec_free(&l->events); }

uint64_t *lives_by_position(const struct lives *l, const struct graph *g, enum program p)
{
    uint32_t n = g->order[p].nodes.n, k = 0;
    uint64_t *out = mem_alloc((n + 1) * KIND_COUNT * sizeof *out), now[KIND_COUNT];
    memcpy(now, l->persistent, sizeof now);
    /* A storage that an earlier program handed over is alive from the start. */
    for (; k < l->events.n && l->events.at[k].program != p; k++) {
        const struct lives_event *v = &l->events.at[k];
        now[lives_kind(g, v)] += v->birth ? v->bytes : -v->bytes;
    }
    for (uint32_t i = 0; i < n; i++) {
        for (;
             k < l->events.n && l->events.at[k].program == p && l->events.at[k].position == i && l->events.at[k].birth;
             k++)
            now[lives_kind(g, &l->events.at[k])] += l->events.at[k].bytes;
        memcpy(out + i * KIND_COUNT, now, sizeof now);
        for (; k < l->events.n && l->events.at[k].program == p && l->events.at[k].position == i; k++)
            now[lives_kind(g, &l->events.at[k])] -= l->events.at[k].bytes;
    }
    return out;
}

/* Returns the largest number of live bytes while nodes of a phase run; PHASE_COUNT: of any
 * phase. */
static uint64_t phase_peak(const struct graph *g, const struct lives *l, enum program p, enum phase phase)
{
    uint64_t *alive = lives_by_position(l, g, p), most = 0;
    for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[p].nodes.at[k]);
        uint64_t sum = 0;
        for (int kind = 0; kind < KIND_COUNT; kind++) sum += alive[k * KIND_COUNT + (uint32_t)kind];
        if ((phase == PHASE_COUNT || n->phase == phase) && sum > most) most = sum;
    }
    mem_free(alive);
    return most;
}

/* Returns the peak of the evaluation program. */
static uint64_t evaluation_peak(const struct plan *plan, const struct graph *g)
{
    uint64_t *alive = plan_alive(plan, g, PROGRAM_EVAL, true), most = 0;
    for (uint32_t k = 0; k < g->order[PROGRAM_EVAL].nodes.n; k++)
        if (alive[k] > most) most = alive[k];
    mem_free(alive);
    return plan->persistent[SPACE_DEVICE] + most;
}

struct step_peaks lives_peaks(const struct plan *plan, const struct graph *g)
{
    struct lives l;
    struct step_peaks out = {.forward_only = evaluation_peak(plan, g)};
    lives_collect(&l, plan, g);
    FOR_STEP_PROGRAMS(p) {
        const uint64_t most = phase_peak(g, &l, p, PHASE_COUNT);
        if (program_is(p, PROGRAM_TRAINS)) out.forward = phase_peak(g, &l, p, PHASE_FORWARD), out.backward = most;
        else out.update = most;
    }
    lives_free(&l);
    return out;
}

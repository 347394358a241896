/*
 * place.c: an offset for every storage.
 *
 *     |<- persistent ->|<- transient: the largest of the programs ->|
 *     | weights, state | step:   saved tensors, stacked | block transients
 *     | gradients ...  | update: ...
 *
 * Persistent storages lie one behind the other. A program's transients are
 * placed compositionally: its order falls into segments (one block in one phase);
 * what lives across segments is placed first, in order of birth, which for
 * activations that the backward consumes in reverse is a stack; then each
 * segment's own transients, largest first, go to the lowest place that is free
 * for their lifetime. Plain largest-first over everything is tried as well, and
 * the smaller arena is kept. What the step hands over to the update (gradients) is placed
 * with the step's transients and stays there.
 */
#include <stdlib.h>
#include <string.h>

#include "plan/plan.h"

struct item {
    uint64_t bytes, offset;
    uint32_t start, end;
    bool crosses;            /* lives in more than one segment */
    bool fixed;              /* already lies at `offset` */
    id storage, node;        /* a storage, or a node's workspace */
};

struct items {
    VEC(struct item) list;
};

/* --- what must be placed ------------------------------------------------------- */

/* Storages that some node of some program touches, or that hold weights. */
static bool *mark_reached(const struct graph *g)
{
    bool *reached = mem_alloc(g->storages.n);
    for (int p = 0; p < PROGRAM_COUNT; p++)
        for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
            const struct node *n = node_at(g, g->order[p].nodes.at[k]);
            for (int i = 0; i < n->nin; i++) reached[tensor_at(g, n->in[i])->storage] = true;
            for (int o = 0; o < n->nout; o++) reached[tensor_at(g, n->out[o])->storage] = true;
        }
    for (uint32_t i = 0; i < g->params.n; i++) {
        reached[tensor_at(g, g->params.at[i].tensor)->storage] = true;
        reached[tensor_at(g, g->params.at[i].master)->storage] = true;
    }
    for (id s = 1; s < g->storages.n; s++)
        if (g->storages.at[s].kind == KIND_STAGING || g->storages.at[s].kind == KIND_STEP) reached[s] = true;
    reached[0] = false;
    return reached;
}

/* Segment numbers by position: a new one where block, phase or loop changes. */
static uint32_t *find_segments(const struct graph *g, enum program p)
{
    const struct order *order = &g->order[p];
    uint32_t *segment = mem_alloc((order->nodes.n + 1) * sizeof *segment), now = 0;
    for (uint32_t k = 1; k < order->nodes.n; k++) {
        const struct node *a = node_at(g, order->nodes.at[k - 1]), *b = node_at(g, order->nodes.at[k]);
        bool backward = a->phase != PHASE_FORWARD && b->phase != PHASE_FORWARD;
        bool same = graph_block_of(g, a->scope) == graph_block_of(g, b->scope) && a->loop == b->loop &&
                    (a->phase == b->phase || backward);
        segment[k] = now += !same;
    }
    return segment;
}

static void collect(struct items *it, const struct graph *g, enum program p, enum space space, const struct plan *plan)
{
    uint32_t *segment = find_segments(g, p);
    const struct life *life = plan->placement.life[p];
    for (id s = 1; s < g->storages.n; s++) {
        const struct storage *x = &g->storages.at[s];
        if (!life[s].used || storage_lasts(x) || x->space != space) continue;
        struct item i = {align_up(x->bytes, PLAN_ALIGN), 0, life[s].start, life[s].end,
                         segment[life[s].start] != segment[life[s].end], false, s, 0};
        if (x->handed && p == PROGRAM_UPDATE && plan->placement.life[PROGRAM_STEP][s].used) {
            i.fixed = true;
            i.offset = plan->placement.offset[s] - plan->persistent[space];
        }
        vec_push(&it->list, i);
    }
    for (uint32_t k = 0; k < g->order[p].nodes.n && space == SPACE_DEVICE; k++) {
        id n = g->order[p].nodes.at[k];
        uint64_t bytes = align_up(plan->placement.binding[n].work_bytes, PLAN_ALIGN);
        if (bytes) vec_push(&it->list, ((struct item){bytes, 0, k, k, false, false, 0, n}));
    }
    mem_free(segment);
}

/* --- first fit --------------------------------------------------------------------- */

/* The lowest offset at which `x` meets no placed item alive at the same time. `placed`
 * is sorted by offset, so one walk upwards finds it. */
static uint64_t lowest_fit(const struct items *it, const struct item *x, const uint32_t *placed, uint32_t n)
{
    uint64_t at = 0;
    for (uint32_t k = 0; k < n; k++) {
        const struct item *y = &it->list.at[placed[k]];
        if (y->start > x->end || x->start > y->end) continue;
        if (y->offset >= at + x->bytes) break;
        if (y->offset + y->bytes > at) at = y->offset + y->bytes;
    }
    return at;
}

/* Adds item `i` to `placed`, which stays sorted by offset. */
static void insert_sorted(const struct items *it, uint32_t *placed, uint32_t n, uint32_t i)
{
    uint32_t low = 0, high = n;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (it->list.at[placed[middle]].offset <= it->list.at[i].offset) low = middle + 1;
        else high = middle;
    }
    memmove(placed + low + 1, placed + low, (n - low) * sizeof *placed);
    placed[low] = i;
}

/* Stack first, in order of birth; then the largest transients first. */
static int compositional(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    if (x->crosses != y->crosses) return x->crosses ? -1 : 1;
    if (x->crosses && x->start != y->start) return x->start < y->start ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    if (x->start != y->start) return x->start < y->start ? -1 : 1;
    if (x->storage != y->storage) return x->storage < y->storage ? -1 : 1;
    return x->node < y->node ? -1 : x->node > y->node;
}

static int largest_first(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    uint32_t lx = x->end - x->start, ly = y->end - y->start;
    if (lx != ly) return lx > ly ? -1 : 1;
    return compositional(a, b);
}

/* Places all items in the given order; returns the bytes used. */
static uint64_t pack(struct items *it, int (*order)(const void *, const void *))
{
    if (!it->list.n) return 0;
    qsort(it->list.at, it->list.n, sizeof *it->list.at, order);
    uint32_t *placed = mem_alloc(it->list.n * sizeof *placed);
    uint64_t top = 0;
    uint32_t n = 0;
    for (uint32_t k = 0; k < it->list.n; k++)
        if (it->list.at[k].fixed) insert_sorted(it, placed, n++, k);
    for (uint32_t k = 0; k < it->list.n; k++) {
        struct item *x = &it->list.at[k];
        if (!x->fixed) {
            x->offset = lowest_fit(it, x, placed, n);
            insert_sorted(it, placed, n++, k);
        }
        if (x->offset + x->bytes > top) top = x->offset + x->bytes;
    }
    mem_free(placed);
    return top;
}

/* --- the whole ------------------------------------------------------------------------ */

static uint64_t place_persistent(struct plan *p, const struct graph *g, enum space space, const bool *reached)
{
    uint64_t at = 0;
    for (int kind = KIND_PARAM; kind < KIND_ACT; kind++)
        for (id s = 1; s < g->storages.n; s++) {
            const struct storage *x = &g->storages.at[s];
            if (x->kind != kind || x->space != space || !reached[s] || x->handed) continue;
            p->placement.offset[s] = at;
            at += align_up(x->bytes, PLAN_ALIGN);
        }
    return p->persistent[space] = at;
}

static void place_space(struct plan *p, const struct graph *g, enum space space, const bool *reached)
{
    uint64_t base = place_persistent(p, g, space, reached);
    p->placement.arena[space] = base;
    for (int program = 0; program < PROGRAM_COUNT; program++) {
        struct items it = {0};
        collect(&it, g, program, space, p);
        uint64_t top = pack(&it, largest_first), stacked = pack(&it, compositional);
        if (top < stacked) pack(&it, largest_first);
        else top = stacked;
        for (uint32_t k = 0; k < it.list.n; k++) {
            const struct item *x = &it.list.at[k];
            if (x->storage) p->placement.offset[x->storage] = base + x->offset;
            else p->placement.binding[x->node].work_offset = base + x->offset;
        }
        if (base + top > p->placement.arena[space]) p->placement.arena[space] = base + top;
        vec_free(&it.list);
    }
}

/* The time of a program whose nodes take so long in each lane. A CPU does one thing after the
 * other. A CUDA card copies while it computes: the longer lane decides, except in the update,
 * where each weight's copies wait for its arithmetic and the other way round. */
static double lanes_together(const struct profile *profile, enum program program, const double lane[LANE_COUNT])
{
    double sum = lane[LANE_COMPUTE] + lane[LANE_COPY], longer = lane[LANE_COMPUTE] > lane[LANE_COPY] ? lane[LANE_COMPUTE] : lane[LANE_COPY];
    return profile->kind == DEVICE_CUDA && program != PROGRAM_UPDATE ? longer : sum;
}

/* Chooses kernels and adds up predicted time; loops multiply. */
static int bind_kernels(struct plan *p, const struct graph *g, const struct profile *profile, struct error *e)
{
    for (int program = 0; program < PROGRAM_COUNT; program++) {
        double lane[LANE_COUNT] = {0};
        for (uint32_t k = 0; k < g->order[program].nodes.n; k++) {
            id n = g->order[program].nodes.at[k];
            const struct node *x = node_at(g, n);
            if (op_table[x->op].flags & OPF_VIEW) continue;
            struct query q;
            query_fill(&q, g, x, profile);
            const struct kernel *kernel = kernel_find(profile->kind, x->op, &q);
            if (!kernel)
                return error_set(e, PL_USAGE, "device %s has no kernel for %s on %s", profile->name, op_table[x->op].name,
                                 q.in[0] ? dtype_name(q.in[0]->dtype) : "this dtype");
            p->placement.binding[n] = (struct binding){kernel, 0, kernel->workspace ? kernel->workspace(&q) : 0};
            double times = 1;
            for (id l = x->loop; l; l = g->loops.at[l].parent) times *= g->loops.at[l].trip;
            lane[x->lane] += times * kernel_seconds(&q, x->op);
        }
        if (program != PROGRAM_EVAL) p->seconds += lanes_together(profile, program, lane);
    }
    return PL_OK;
}

static void find_peak(struct plan *p, const struct graph *g, const bool *reached)
{
    uint64_t fixed[KIND_COUNT] = {0};
    for (id s = 1; s < g->storages.n; s++) {
        const struct storage *x = &g->storages.at[s];
        if (storage_lasts(x) && x->space == SPACE_DEVICE && reached[s])
            fixed[x->kind] += align_up(x->bytes, PLAN_ALIGN);
    }
    p->peak = (struct peak){0};
    for (int program = 0; program < PROGRAM_COUNT; program++) {
        uint32_t n = g->order[program].nodes.n;
        /* Differences at births and deaths, then a running sum. */
        int64_t *act = mem_alloc((n + 1) * sizeof *act), *grad = mem_alloc((n + 1) * sizeof *grad);
        const struct life *life = p->placement.life[program];
        for (id s = 1; s < g->storages.n; s++)
            if (life[s].used && !storage_lasts(&g->storages.at[s]) && g->storages.at[s].space == SPACE_DEVICE) {
                int64_t *sum = g->storages.at[s].handed ? grad : act;
                sum[life[s].start] += (int64_t)align_up(g->storages.at[s].bytes, PLAN_ALIGN);
                sum[life[s].end + 1] -= (int64_t)align_up(g->storages.at[s].bytes, PLAN_ALIGN);
            }
        int64_t live = 0, handed = 0;
        for (uint32_t k = 0; k < n; k++) {
            live += act[k];
            handed += grad[k];
            uint64_t work = align_up(p->placement.binding[g->order[program].nodes.at[k]].work_bytes, PLAN_ALIGN);
            uint64_t bytes = p->persistent[SPACE_DEVICE] + (uint64_t)(live + handed) + work;
            if (bytes <= p->peak.bytes) continue;
            p->peak.program = program;
            p->peak.instant = k;
            p->peak.bytes = bytes;
            memcpy(p->peak.by_kind, fixed, sizeof fixed);
            p->peak.by_kind[KIND_ACT] = (uint64_t)live;
            p->peak.by_kind[KIND_GRAD] += (uint64_t)handed;
            p->peak.by_kind[KIND_WORKSPACE] = work;
        }
        mem_free(act);
        mem_free(grad);
    }
}

/* What is handed over lives to the step's end and through the whole update, also beyond its
 * last reader: a gradient that is not finite is looked for there. */
static void stretch_handed(struct plan *p, const struct graph *g)
{
    struct life *step = p->placement.life[PROGRAM_STEP], *update = p->placement.life[PROGRAM_UPDATE];
    for (id s = 1; s < g->storages.n; s++) {
        if (!g->storages.at[s].handed || !step[s].used) continue;
        step[s].end = g->order[PROGRAM_STEP].nodes.n - 1;
        if (g->order[PROGRAM_UPDATE].nodes.n) update[s] = (struct life){0, g->order[PROGRAM_UPDATE].nodes.n - 1, true};
    }
}

int plan_place(struct plan *p, const struct graph *g, const struct profile *profile, struct error *e)
{
    p->placement = (struct placement){.storages = g->storages.n, .nodes = g->nodes.n};
    p->placement.offset = mem_alloc(g->storages.n * sizeof(uint64_t));
    p->placement.binding = mem_alloc(g->nodes.n * sizeof(struct binding));
    p->seconds = 0;
    for (int program = 0; program < PROGRAM_COUNT; program++) {
        p->placement.life[program] = mem_alloc(g->storages.n * sizeof(struct life));
        graph_lifetimes(g, program, p->placement.life[program]);
    }
    stretch_handed(p, g);
    int rc = bind_kernels(p, g, profile, e);
    if (rc) {
        placement_free(&p->placement);
        return rc;
    }
    bool *reached = mark_reached(g);
    for (int space = 0; space < SPACE_COUNT; space++) place_space(p, g, space, reached);
    find_peak(p, g, reached);
    mem_free(reached);
    plan_check(p, g);
    return PL_OK;
}

bool plan_reached(const struct plan *p, const struct graph *g, id storage)
{
    enum kind k = g->storages.at[storage].kind;
    bool used = k == KIND_STAGING || k == KIND_STEP || k == KIND_PARAM || k == KIND_MASTER; /* read or not */
    for (int program = 0; program < PROGRAM_COUNT; program++) used |= p->placement.life[program][storage].used;
    return used;
}

void plan_free(struct plan *p) { placement_free(&p->placement); }

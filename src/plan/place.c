/*
 * place.c: computes an offset for every storage.
 *
 *     |<- persistent ->|<- transient: the largest of the programs ->|
 *     | weights, state | step:   saved tensors, stacked | block transients
 *     | gradients ...  | update: ...
 *
 * Persistent storages lie one after another. A program's transient storages are placed
 * compositionally. Its order is cut into segments (one block in one phase). Storages that live
 * across segments are placed first, in order of birth; for activations that the backward consumes
 * in reverse this is a stack. Then the other storages of each segment, largest first, go to the
 * lowest offset that is free for their lifetime. If this reaches the lower bound, it is optimal.
 * Otherwise plain largest-first over everything is tried too, and the smaller arena is kept.
 * Storages handed from one program to the next (gradients, the KV cache of a run that trains) are
 * placed with the transients of the first and stay there.
 */
#include "plan/lanes.h"
#include "plan/plan.h"
#include "plan/free_space.h"

struct item {
    uint64_t bytes, offset;
    uint32_t start, end;
    uint32_t first, last;    /* segments in which its life begins and ends */
    bool fixed;              /* placed already, at `offset` */
    id storage, node;        /* a storage, or a node whose workspace this is */
};

struct items {
    VEC(struct item) list;
    uint32_t instants;
    uint64_t bound;          /* the maximum of the bytes alive: a lower bound */
};

static bool crosses(const struct item *x) { return x->first != x->last; }

/* --- items to place ------------------------------------------------------------ */

/* Returns segment numbers by position: a new segment begins where block, phase or loop changes. */
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

/* Returns the largest sum over items that are alive together. */
static uint64_t find_bound(const struct items *it, uint32_t instants)
{
    int64_t *change = mem_alloc((instants + 2) * sizeof *change), live = 0, most = 0;
    for (uint32_t k = 0; k < it->list.n; k++) {
        change[it->list.at[k].start] += (int64_t)it->list.at[k].bytes;
        change[it->list.at[k].end + 1] -= (int64_t)it->list.at[k].bytes;
    }
    for (uint32_t k = 0; k <= instants; k++) {
        live += change[k];
        if (live > most) most = live;
    }
    mem_free(change);
    return (uint64_t)most;
}

static void collect(struct items *it, const struct graph *g, enum program p, enum space space, const struct plan *plan)
{
    uint32_t *segment = find_segments(g, p), n = g->order[p].nodes.n;
    const struct life *life = plan->placement.life[p];
    for (id s = 1; s < g->storages.n; s++) {
        const struct storage *x = &g->storages.at[s];
        if (!life[s].used || storage_is_persistent(x) || x->space != space) continue;
        struct item i = {.bytes = align_up(x->bytes, PLAN_ALIGN), .start = life[s].start, .end = life[s].end,
                         .first = segment[life[s].start], .last = segment[life[s].end], .storage = s};
        if (x->handed && program_is(p, PROGRAM_HANDED) && plan->placement.life[p - 1][s].used) {
            i.fixed = true;
            i.offset = plan->placement.offset[s] - plan->persistent[space];
        }
        vec_push(&it->list, i);
    }
    for (uint32_t k = 0; k < n && space == SPACE_DEVICE; k++) {
        id node = g->order[p].nodes.at[k];
        uint64_t bytes = align_up(plan->placement.binding[node].work_bytes, PLAN_ALIGN);
        if (bytes)
            vec_push(&it->list,
                     ((struct item){
                         .bytes = bytes, .start = k, .end = k, .first = segment[k], .last = segment[k], .node = node}));
    }
    it->instants = n;
    it->bound = find_bound(it, n);
    mem_free(segment);
}

/* --- first fit --------------------------------------------------------------------- */

/* Orders items that cross segments first, by birth; then the others, largest first. */
static int compositional(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    if (crosses(x) != crosses(y)) return crosses(x) ? -1 : 1;
    if (crosses(x) && x->start != y->start) return x->start < y->start ? -1 : 1;
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

/* Places all items in the given order; returns the bytes used, or gives up at `enough` bytes. */
static uint64_t pack(struct items *it, int (*order)(const void *, const void *), uint64_t enough)
{
    if (!it->list.n) return 0;
    qsort(it->list.at, it->list.n, sizeof *it->list.at, order);
    struct free_space *room = free_space_open(it->instants);
    uint64_t top = 0;
    for (uint32_t k = 0; k < it->list.n; k++) {
        const struct item *x = &it->list.at[k];
        if (x->fixed) free_space_take(room, x->offset, x->offset + x->bytes, x->start, x->end);
    }
    for (uint32_t k = 0; k < it->list.n && top < enough; k++) {
        struct item *x = &it->list.at[k];
        if (!x->fixed) x->offset = free_space_place(room, x->bytes, x->start, x->end);
        if (x->offset + x->bytes > top) top = x->offset + x->bytes;
    }
    free_space_close(room);
    return top;
}

/* Keeps the better of the two orders. */
static uint64_t pack_best(struct items *it)
{
    uint64_t stacked = pack(it, compositional, UINT64_MAX);
    if (stacked <= it->bound) return stacked;
    struct item *first = mem_copy(it->list.at, it->list.n * sizeof *first);
    uint64_t top = pack(it, largest_first, stacked);
    if (top >= stacked) memcpy(it->list.at, first, it->list.n * sizeof *first);
    mem_free(first);
    return top < stacked ? top : stacked;
}

/* --- all spaces ----------------------------------------------------------------------- */

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

/* Places the transients of a program behind the persistent bytes; returns where they end. */
static uint64_t place_program(struct plan *p, const struct graph *g, enum space space, enum program program)
{
    const uint64_t base = p->persistent[space];
    struct items it = {0};
    collect(&it, g, program, space, p);
    uint64_t top = pack_best(&it);
    for (uint32_t k = 0; k < it.list.n; k++) {
        const struct item *x = &it.list.at[k];
        if (x->storage) p->placement.offset[x->storage] = base + x->offset;
        else p->placement.binding[x->node].work_offset = base + x->offset;
    }
    vec_free(&it.list);
    return base + top;
}

static void place_space(struct plan *p, const struct graph *g, enum space space, const bool *reached)
{
    p->placement.arena[space] = place_persistent(p, g, space, reached);
    for (enum program program = 0; program < PROGRAM_COUNT; program++) {
        const uint64_t end = place_program(p, g, space, program);
        if (end > p->placement.arena[space]) p->placement.arena[space] = end;
    }
}

/* Predicts the seconds of each program again: on a GPU lanes also wait for bytes, which are known
 * after placement. */
static void time_placed(struct plan *p, const struct graph *g, const double *seconds)
{
    p->seconds = 0;
    for (int program = 0; program < PROGRAM_COUNT; program++) {
        p->program_seconds[program] = lanes_seconds(g, program, seconds, &p->placement);
        p->seconds += p->program_seconds[program];
    }
}

double plan_time_step(struct plan *p, const struct graph *g, const double *seconds)
{
    place_program(p, g, SPACE_DEVICE, PROGRAM_STEP);
    return lanes_seconds(g, PROGRAM_STEP, seconds, &p->placement);
}

int plan_arrange(struct plan *p, const struct graph *g, const struct profile *profile, struct kernels **known,
                 struct error *e)
{
    double *seconds = mem_alloc(g->nodes.n * sizeof *seconds);
    int rc = plan_bind(p, g, profile, known, seconds, e);
    if (!rc) {
        bool *reached = plan_mark_reached(g);
        for (int space = 0; space < SPACE_COUNT; space++) place_space(p, g, space, reached);
        plan_find_peak(p, g, reached);
        mem_free(reached);
        if (profile->kind == DEVICE_CUDA) time_placed(p, g, seconds);
    }
    mem_free(seconds);
    return rc;
}

int plan_place(struct plan *p, const struct graph *g, const struct profile *profile, struct error *e)
{
    int rc = plan_arrange(p, g, profile, NULL, e);
    if (!rc) plan_check(p, g);
    return rc;
}

bool plan_reached(const struct plan *p, const struct graph *g, id storage)
{
    enum kind k = g->storages.at[storage].kind;
    bool used = k == KIND_STAGING || k == KIND_STEP || k == KIND_PARAM || k == KIND_MASTER; /* used or not */
    for (int program = 0; program < PROGRAM_COUNT; program++) used |= p->placement.life[program][storage].used;
    return used;
}

void plan_free(struct plan *p) { placement_free(&p->placement); }

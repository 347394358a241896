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
 * Storages handed from one program to the next (gradients, the KV cache of a run that trains) are placed
 * with the transients of the first and stay there.
 */
#include <stdlib.h>
#include <string.h>

#include "plan/lanes.h"
#include "plan/plan.h"

struct item {
    uint64_t bytes, offset;
    uint32_t start, end;
    uint32_t first, last;    /* segments in which its life begins and ends */
    bool fixed;              /* placed already, at `offset` */
    id storage, node;        /* a storage, or a node whose workspace this is */
};

struct items {
    VEC(struct item) list;
    uint32_t segments;
    uint32_t *begin;         /* by segment: its first instant; one more entry for the end */
    uint64_t bound;          /* the maximum of the bytes alive: a lower bound */
};

static bool crosses(const struct item *x) { return x->first != x->last; }

/* --- items to place ------------------------------------------------------------ */

/* Segment numbers by position: a new segment begins where block, phase or loop changes. */
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

/* The largest sum over items that are alive together. */
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
            vec_push(&it->list, ((struct item){.bytes = bytes, .start = k, .end = k, .first = segment[k], .last = segment[k], .node = node}));
    }
    it->segments = n ? segment[n - 1] + 1 : 0;
    it->begin = mem_alloc((it->segments + 1) * sizeof *it->begin);
    for (uint32_t k = n; k-- > 0;) it->begin[segment[k]] = k;
    it->begin[it->segments] = n;
    it->bound = find_bound(it, n);
    mem_free(segment);
}

/* --- first fit --------------------------------------------------------------------- */

/* The placed items, sorted by offset, so that one pass upwards finds the lowest gap. Row 0 holds
 * all items, or those that cross segments; row s + 1 holds those that are alive in segment s, which
 * are all that a transient within the segment can overlap. There, adjacent items that live through
 * the whole segment are merged, so that a stack of saved tensors is a single entry. */
struct placed_range {
    uint64_t from, to;
    uint32_t start, end; /* 0 and UINT32_MAX: it lives through the segment */
};
struct row {
    VEC(struct placed_range) list;
};

/* The lowest offset from `at` on at which `x` overlaps nothing that is alive at the same time. */
static uint64_t lowest_fit(const struct row *row, const struct item *x, uint64_t at)
{
    for (uint32_t k = 0; k < row->list.n; k++) {
        const struct placed_range *y = &row->list.at[k];
        if (y->start > x->end || x->start > y->end) continue;
        if (y->from >= at + x->bytes) break;
        if (y->to > at) at = y->to;
    }
    return at;
}

static bool lives_through(const struct placed_range *x) { return x->end == UINT32_MAX; }

static void insert_sorted(struct row *row, struct placed_range x)
{
    uint32_t low = 0, high = row->list.n;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (row->list.at[middle].from <= x.from) low = middle + 1;
        else high = middle;
    }
    struct placed_range *next = row->list.at + low;
    if (low && lives_through(&x) && lives_through(next - 1) && next[-1].to == x.from) next[-1].to = x.to;
    else if (low < row->list.n && lives_through(&x) && lives_through(next) && next->from == x.to) next->from = x.from;
    else {
        vec_push(&row->list, x);
        memmove(row->list.at + low + 1, row->list.at + low, (row->list.n - 1 - low) * sizeof *row->list.at);
        row->list.at[low] = x;
    }
}

static struct placed_range range_of(const struct item *x) { return (struct placed_range){x->offset, x->offset + x->bytes, x->start, x->end}; }

/* Into the row of segment s. */
static void insert_in_segment(struct row *rows, const struct items *it, uint32_t s, struct placed_range x)
{
    if (x.start <= it->begin[s] && x.end + 1 >= it->begin[s + 1]) x.start = 0, x.end = UINT32_MAX;
    insert_sorted(&rows[s + 1], x);
}

/* The same where every row has all items that are alive in its segment: by the rows of a few
 * segments, or by row 0. */
static uint64_t lowest_in_segments(const struct row *rows, const struct item *x)
{
    enum { FEW = 3 };
    uint64_t at = 0, before;
    if (x->last - x->first >= FEW) return lowest_fit(&rows[0], x, 0);
    do {
        before = at;
        for (uint32_t s = x->first; s <= x->last; s++) at = lowest_fit(&rows[s + 1], x, at);
    } while (at != before && crosses(x));
    return at;
}

static void insert_in_segments(struct row *rows, const struct items *it, const struct item *x)
{
    insert_sorted(&rows[0], range_of(x));
    for (uint32_t s = x->first; s <= x->last; s++) insert_in_segment(rows, it, s, range_of(x));
}

/* Copies the items of row 0 that are alive in segment s into row s + 1. */
static void fill_rows(struct row *rows, const struct items *it)
{
    for (uint32_t k = 0; k < rows[0].list.n; k++) {
        struct placed_range x = rows[0].list.at[k];
        uint32_t s = 0, high = it->segments;
        while (s + 1 < high) { /* the segment in which its life begins */
            uint32_t middle = (s + high) / 2;
            if (it->begin[middle] <= x.start) s = middle;
            else high = middle;
        }
        for (; s < it->segments && it->begin[s] <= x.end; s++) insert_in_segment(rows, it, s, x);
    }
}

/* Items that cross segments first, in order of birth; then the others, largest first. */
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

/* Places all items in the given order; returns the bytes used, or gives up at `enough` bytes. In
 * compositional order the items within a segment are compared with their segment's row only. */
static uint64_t pack(struct items *it, int (*order)(const void *, const void *), uint64_t enough)
{
    if (!it->list.n) return 0;
    bool by_segment = order == compositional, filled = false;
    qsort(it->list.at, it->list.n, sizeof *it->list.at, order);
    struct row *rows = mem_alloc((it->segments + 1) * sizeof *rows);
    uint64_t top = 0;
    for (uint32_t k = 0; k < it->list.n; k++) {
        if (!it->list.at[k].fixed) continue;
        if (by_segment) insert_sorted(&rows[0], range_of(&it->list.at[k]));
        else insert_in_segments(rows, it, &it->list.at[k]);
    }
    for (uint32_t k = 0; k < it->list.n && top < enough; k++) {
        struct item *x = &it->list.at[k];
        if (by_segment && !filled && !crosses(x)) {
            fill_rows(rows, it);
            filled = true;
        }
        struct row *row = &rows[filled ? x->first + 1 : 0];
        if (!x->fixed && by_segment) {
            x->offset = lowest_fit(row, x, 0);
            insert_sorted(row, range_of(x));
        } else if (!x->fixed) {
            x->offset = lowest_in_segments(rows, x);
            insert_in_segments(rows, it, x);
        }
        if (x->offset + x->bytes > top) top = x->offset + x->bytes;
    }
    for (uint32_t s = 0; s <= it->segments; s++) vec_free(&rows[s].list);
    mem_free(rows);
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

/* The transients of a program, behind the persistent bytes; returns where they end. */
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
    mem_free(it.begin);
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

/* On a GPU lanes also wait for bytes, which are known after placement. */
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

int plan_arrange(struct plan *p, const struct graph *g, const struct profile *profile, struct error *e)
{
    double *seconds = mem_alloc(g->nodes.n * sizeof *seconds);
    int rc = plan_bind(p, g, profile, seconds, e);
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
    int rc = plan_arrange(p, g, profile, e);
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

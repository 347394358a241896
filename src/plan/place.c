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
 * placed with the transients of the first and stay there. If they lie in the way of the second, the
 * first is placed once more with these below all others, and the smaller arena is kept.
 *
 * On a GPU a copy to or from the host waits until the bytes that it writes are free, and what
 * writes the bytes that it reads waits for it. A program rarely fills the arena all the time: so
 * where its storages are copied, these are placed once more, last and each apart from what is used
 * shortly before and after it, if that takes less time.
 */
#include "plan/lanes.h"
#include "plan/plan.h"
#include "plan/free_space.h"

/* Where a program takes at most this much longer than without waits for bytes, one attempt to place
 * its copies apart is enough. */
#define NO_WAITS 1.005

struct item {
    uint64_t bytes, offset;
    uint32_t start, end;
    uint32_t first, last;    /* segments in which its life begins and ends */
    bool fixed;              /* placed already, at `offset` */
    bool handed;             /* it stays through the next program */
    bool copied;             /* to or from the host */
    uint64_t was;            /* where it was before what is copied is placed apart */
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

/* Marks the storages that are copied to or from the host. */
static void mark_copied(struct items *it, const struct graph *g, enum program p)
{
    bool *copied = mem_alloc(g->storages.n);
    for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[p].nodes.at[k]);
        if (n->lane != LANE_IN && n->lane != LANE_OUT) continue;
        copied[tensor_at(g, n->lane == LANE_IN ? n->out[0] : n->in[0])->storage] = true;
    }
    for (uint32_t k = 0; k < it->list.n; k++) it->list.at[k].copied = copied[it->list.at[k].storage];
    mem_free(copied);
}

static void collect(struct items *it, const struct graph *g, enum program p, enum space space, const struct plan *plan)
{
    uint32_t *segment = find_segments(g, p), n = g->order[p].nodes.n;
    const struct life *life = plan->placement.life[p];
    for (id s = 1; s < g->storages.n; s++) {
        const struct storage *x = &g->storages.at[s];
        if (!life[s].used || storage_is_persistent(x) || x->space != space) continue;
        struct item i = {.bytes = align_up(x->bytes, PLAN_ALIGN), .start = life[s].start, .end = life[s].end,
                         .first = segment[life[s].start], .last = segment[life[s].end],
                         .handed = x->handed, .storage = s};
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
    mark_copied(it, g, p);
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

/* Orders items that are handed over first, by birth; then the others as above. */
static int handed_first(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    if (x->handed != y->handed) return x->handed ? -1 : 1;
    if (x->handed && x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return compositional(a, b);
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

static void set_offsets(struct plan *p, enum space space, const struct items *it)
{
    const uint64_t base = p->persistent[space];
    for (uint32_t k = 0; k < it->list.n; k++) {
        const struct item *x = &it->list.at[k];
        if (x->storage) p->placement.offset[x->storage] = base + x->offset;
        else p->placement.binding[x->node].work_offset = base + x->offset;
    }
}

/* Places the transients of a program behind the persistent bytes, those that are handed over below
 * the others or where they fit; returns where they end. `bound`, unless NULL, is raised to the end
 * that no placement goes below. */
static uint64_t place_program(struct plan *p, const struct graph *g, enum space space, enum program program,
                              bool handed_below, uint64_t *bound)
{
    const uint64_t base = p->persistent[space];
    struct items it = {0};
    collect(&it, g, program, space, p);
    const uint64_t top = handed_below ? pack(&it, handed_first, UINT64_MAX) : pack_best(&it);
    set_offsets(p, space, &it);
    if (bound && base + it.bound > *bound) *bound = base + it.bound;
    vec_free(&it.list);
    return base + top;
}

/* Places the transients of all programs, and sets where each ends; returns the last end. */
static uint64_t place_programs(struct plan *p, const struct graph *g, enum space space, bool handed_below,
                               uint64_t *bound, uint64_t end[PROGRAM_COUNT])
{
    uint64_t last = p->persistent[space];
    for (enum program k = 0; k < PROGRAM_COUNT; k++) {
        const bool below = handed_below && k + 1 < PROGRAM_COUNT && program_is(k + 1, PROGRAM_HANDED);
        end[k] = place_program(p, g, space, k, below, bound);
        if (end[k] > last) last = end[k];
    }
    return last;
}

static void place_space(struct plan *p, const struct graph *g, enum space space, const bool *reached,
                        uint64_t end[PROGRAM_COUNT])
{
    uint64_t bound = place_persistent(p, g, space, reached),
             last = place_programs(p, g, space, false, &bound, end);
    bool follows = false; /* a program with storages handed over needs the most */
    FOR_PROGRAMS(k, PROGRAM_HANDED) follows |= end[k] == last;
    if (space == SPACE_DEVICE && last > bound && follows) {
        const uint64_t below = place_programs(p, g, space, true, NULL, end);
        if (below >= last) place_programs(p, g, space, false, NULL, end);
        else last = below;
    }
    p->placement.arena[space] = last;
}

/* Orders what is copied behind the rest, largest first. */
static int copied_last(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    if (x->copied != y->copied) return x->copied ? 1 : -1;
    if (x->copied && x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return compositional(a, b);
}

/* Leaves where it is what is copied while the other bytes alive leave no room for it elsewhere. */
static void keep_crowded(struct items *it, uint64_t room)
{
    int64_t *live = mem_alloc((it->instants + 2) * sizeof *live);
    for (uint32_t k = 0; k < it->list.n; k++) {
        live[it->list.at[k].start] += (int64_t)it->list.at[k].bytes;
        live[it->list.at[k].end + 1] -= (int64_t)it->list.at[k].bytes;
    }
    for (uint32_t k = 1; k <= it->instants; k++) live[k] += live[k - 1];
    for (uint32_t k = 0; k < it->list.n; k++) {
        struct item *x = &it->list.at[k];
        for (uint32_t at = x->start; at <= x->end && x->copied; at++)
            x->copied = (uint64_t)live[at] + x->bytes <= room;
    }
    mem_free(live);
}

/* Places an item in `room` bytes, as far from what is used before and after it as there is space,
 * or where it was; false: there is none. */
static bool place_apart(struct free_space *space, struct item *x, uint32_t instants, uint64_t room)
{
    static const uint32_t apart[] = {256, 64, 24, 8, 0};
    bool found = false;
    for (size_t i = x->copied ? 0 : COUNT(apart) - 1; i < COUNT(apart) && !found; i++) {
        const uint32_t from = x->start > apart[i] ? x->start - apart[i] : 0,
                       to = instants - 1 - x->end > apart[i] ? x->end + apart[i] : instants - 1;
        x->offset = free_space_find(space, 0, x->bytes, from, to);
        found = x->offset + x->bytes <= room;
    }
    if (!found) {
        x->offset = free_space_find(space, x->was, x->bytes, x->start, x->end);
        found = x->offset == x->was;
    }
    if (found) free_space_take(space, x->offset, x->offset + x->bytes, x->start, x->end);
    return found;
}

/* Places what is copied apart, and the rest before it: where it was if it `stays`, else anew.
 * Returns an item for which there is no room then, NULL: none. */
static struct item *pack_apart(struct items *it, uint64_t room, bool stays)
{
    struct free_space *space = free_space_open(it->instants);
    struct item *without = NULL;
    for (uint32_t k = 0; k < it->list.n; k++) {
        struct item *x = &it->list.at[k];
        x->offset = x->was;
        if (x->fixed || (stays && !x->copied))
            free_space_take(space, x->offset, x->offset + x->bytes, x->start, x->end);
    }
    for (uint32_t k = 0; k < it->list.n && !without; k++) {
        struct item *x = &it->list.at[k];
        if (!x->fixed && !(stays && !x->copied) && !place_apart(space, x, it->instants, room)) without = x;
    }
    free_space_close(space);
    return without;
}

/* Does as pack_apart, with the rest where it was, and leaves there what finds no room; false: that
 * is too much. */
static bool pack_some_apart(struct items *it, uint64_t room)
{
    enum { TRIES = 8 };
    struct item *without;
    keep_crowded(it, room);
    for (int i = 0; i < TRIES; i++) {
        qsort(it->list.at, it->list.n, sizeof *it->list.at, copied_last);
        if (!(without = pack_apart(it, room, true))) return true;
        without->copied = false;
    }
    return false;
}

static bool pack_all_apart(struct items *it, uint64_t room)
{
    qsort(it->list.at, it->list.n, sizeof *it->list.at, copied_last);
    return !pack_apart(it, room, false);
}

/* Lists the items of a program that is placed, where they are; false: none of them is copied and
 * may lie elsewhere. */
static bool collect_placed(struct items *it, const struct plan *p, const struct graph *g, enum program program)
{
    bool copied = false;
    collect(it, g, program, SPACE_DEVICE, p);
    for (uint32_t k = 0; k < it->list.n; k++) {
        struct item *x = &it->list.at[k];
        x->offset = x->was = (x->storage ? p->placement.offset[x->storage]
                                         : p->placement.binding[x->node].work_offset) -
                             p->persistent[SPACE_DEVICE];
        x->fixed |= x->handed; /* the next program has found them where they are */
        x->copied &= !x->fixed;
        copied |= x->copied;
    }
    return copied;
}

/* Places what a program copies apart, within the first `room` bytes of the arena, while the program
 * then takes less than `was` seconds; returns its seconds. The rest is placed anew; if the program
 * still waits for bytes, it stays. */
static double place_copied(struct plan *p, const struct graph *g, enum program program, const double *seconds,
                           uint64_t room, double was)
{
    const double least = p->program_seconds[program];
    struct items best = {0};
    const bool copied = collect_placed(&best, p, g, program);
    for (int stays = 0; stays < 2 && copied && was > (stays ? NO_WAITS : 1) * least; stays++) {
        const uint64_t bytes = room - p->persistent[SPACE_DEVICE];
        struct items it = {0};
        collect_placed(&it, p, g, program);
        if (stays ? pack_some_apart(&it, bytes) : pack_all_apart(&it, bytes)) {
            set_offsets(p, SPACE_DEVICE, &it);
            const double now = lanes_seconds(g, program, seconds, &p->placement);
            if (now < was) {
                const struct items had = best;
                best = it;
                it = had;
                was = now;
            }
            set_offsets(p, SPACE_DEVICE, &best);
        }
        vec_free(&it.list);
    }
    vec_free(&best.list);
    return was;
}

/* Predicts the seconds of each program again: on a GPU lanes also wait for bytes, which are known
 * after placement. */
static void time_placed(struct plan *p, const struct graph *g, const double *seconds, const uint64_t end[PROGRAM_COUNT])
{
    p->seconds = 0;
    for (enum program program = 0; program < PROGRAM_COUNT; program++) {
        const double time = lanes_seconds(g, program, seconds, &p->placement);
        /* a step's time must not depend on the update behind it: the search compares many of
         * these */
        const uint64_t room = program_is(program, PROGRAM_HANDED) ? p->placement.arena[SPACE_DEVICE] : end[program];
        p->program_seconds[program] = place_copied(p, g, program, seconds, room, time);
        p->seconds += p->program_seconds[program];
    }
}

double plan_time_step(struct plan *p, const struct graph *g, const double *seconds)
{
    const uint64_t end = place_program(p, g, SPACE_DEVICE, PROGRAM_STEP, false, NULL);
    place_program(p, g, SPACE_HOST, PROGRAM_STEP, false, NULL);
    return place_copied(p, g, PROGRAM_STEP, seconds, end, lanes_seconds(g, PROGRAM_STEP, seconds, &p->placement));
}

int plan_arrange(struct plan *p, const struct graph *g, const struct profile *profile, struct kernels **known,
                 struct error *e)
{
    double *seconds = mem_alloc(g->nodes.n * sizeof *seconds);
    int rc = plan_bind(p, g, profile, known, seconds, e);
    if (!rc) {
        bool *reached = plan_mark_reached(g);
        uint64_t end[SPACE_COUNT][PROGRAM_COUNT];
        for (int space = 0; space < SPACE_COUNT; space++) place_space(p, g, space, reached, end[space]);
        plan_find_peak(p, g, reached);
        mem_free(reached);
        if (profile->kind == DEVICE_CUDA) time_placed(p, g, seconds, end[SPACE_DEVICE]);
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

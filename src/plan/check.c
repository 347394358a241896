/*
 * check.c: the independent checker. It shares no code with place.c and does not use lifetimes. It
 * replays each program with a map of which storage owns which bytes, and runs each loop twice (two
 * iterations show every error that a carried value can have). It aborts if a node reads bytes that
 * its storage no longer owns, or if anything lies outside the arena.
 *
 *     write by the storage's first writer   claims the storage's bytes
 *     any other access                      requires that the storage still owns all its bytes
 *     workspace                             claims its bytes for no storage
 */
#include "plan/plan.h"
#include "graph/ops.h"

enum { WORKSPACE = UINT32_MAX };

struct owner {
    uint64_t from, to;
    id storage;
};

struct replay {
    const struct plan *p;
    const struct graph *g;
    enum program program;
    VEC(struct owner) map[SPACE_COUNT]; /* disjoint */
    uint64_t *owned;                    /* by storage: its bytes in the map */
    id *first_writer;                   /* by storage: node */
    uint32_t *iteration;                /* by loop */
};

static const char *label(const struct replay *r, id s)
{
    return s == WORKSPACE ? "a workspace" : graph_name(r->g, r->g->storages.at[s].name);
}

static void add_owner(struct replay *r, enum space space, uint64_t from, uint64_t to, id storage)
{
    if (from == to) return;
    vec_push(&r->map[space], ((struct owner){from, to, storage}));
    if (storage != WORKSPACE) r->owned[storage] += to - from;
}

/* Gives [from, to) to `storage`; previous owners keep their bytes outside of it. */
static void claim(struct replay *r, enum space space, uint64_t from, uint64_t to, id storage)
{
    CHECK(to <= r->p->placement.arena[space], "%s ends beyond the arena", label(r, storage));
    for (uint32_t k = 0; k < r->map[space].n;) {
        const struct owner o = r->map[space].at[k];
        if (o.to <= from || o.from >= to) {
            k++;
            continue;
        }
        r->map[space].at[k] = r->map[space].at[--r->map[space].n];
        if (o.storage != WORKSPACE) r->owned[o.storage] -= o.to - o.from;
        if (o.from < from) add_owner(r, space, o.from, from, o.storage);
        if (o.to > to) add_owner(r, space, to, o.to, o.storage);
    }
    add_owner(r, space, from, to, storage);
}

static void forget_owners(struct replay *r)
{
    for (int s = 0; s < SPACE_COUNT; s++) r->map[s].n = 0;
    memset(r->owned, 0, r->g->storages.n * sizeof *r->owned);
}

/* Requires that `s` still owns all of its bytes. */
static void require_owned(const struct replay *r, id node, id s)
{
    const struct storage *x = &r->g->storages.at[s];
    if (storage_is_persistent(x)) return;
    CHECK(r->owned[s] == x->bytes, "program %s, node %u: %s owns %llu of its %llu bytes", program_name(r->program),
          node, label(r, s), (unsigned long long)r->owned[s], (unsigned long long)x->bytes);
}

/* Reports whether this write begins the storage's life. */
static bool begins(const struct replay *r, id node, id t)
{
    const struct tensor *x = tensor_at(r->g, t);
    return r->first_writer[x->storage] == node && (!x->loop || r->iteration[x->loop] == 0);
}

static void replay_node(struct replay *r, id node)
{
    const struct graph *g = r->g;
    const struct node *n = node_at(g, node);
    if (op_table[n->op].flags & OPF_VIEW) return;
    const struct binding *b = &r->p->placement.binding[node];
    for (int i = 0; i < n->nin; i++)
        if (n->in[i]) require_owned(r, node, tensor_at(g, n->in[i])->storage);
    for (int o = 0; o < n->nout; o++) {
        if (!n->out[o]) continue;
        id s = tensor_at(g, n->out[o])->storage;
        if (storage_is_persistent(&g->storages.at[s])) continue;
        bool mine = false; /* in place on an input: no new bytes */
        for (int i = 0; i < n->nin; i++) mine |= n->in[i] && tensor_at(g, n->in[i])->storage == s;
        uint64_t at = r->p->placement.offset[s];
        CHECK(at >= r->p->persistent[g->storages.at[s].space], "%s lies among the persistent bytes", label(r, s));
        if (!mine && begins(r, node, n->out[o])) claim(r, g->storages.at[s].space, at, at + g->storages.at[s].bytes, s);
    }
    if (b->work_bytes) {
        CHECK(b->work_offset >= r->p->persistent[SPACE_DEVICE], "a workspace lies among the persistent bytes");
        claim(r, SPACE_DEVICE, b->work_offset, b->work_offset + b->work_bytes, WORKSPACE);
    }
    /* The node's own operands and workspace do not overlap. */
    for (int i = 0; i < n->nin + n->nout; i++) {
        id t = i < n->nin ? n->in[i] : n->out[i - n->nin];
        if (t) require_owned(r, node, tensor_at(g, t)->storage);
    }
}

/* Replays the writes and reads of positions [from, to), which lie in loop `inside` and in loops
 * within it: of each of those two iterations, because the second sees what the first one left. */
static void replay_range(struct replay *r, uint32_t from, uint32_t to, id inside)
{
    const struct graph *g = r->g;
    const id *nodes = g->order[r->program].nodes.at;
    for (uint32_t k = from; k < to;) {
        id l = node_at(g, nodes[k])->loop;
        if (l == inside) {
            replay_node(r, nodes[k++]);
            continue;
        }
        while (g->loops.at[l].parent != inside) l = g->loops.at[l].parent;
        uint32_t end = k;
        while (end < to && loop_inside(g, node_at(g, nodes[end])->loop, l)) end++;
        for (r->iteration[l] = 0; r->iteration[l] < 2 && r->iteration[l] < g->loops.at[l].trip; r->iteration[l]++)
            replay_range(r, k, end, l);
        k = end;
    }
}

static void find_first_writers(struct replay *r)
{
    const struct graph *g = r->g;
    memset(r->first_writer, 0, g->storages.n * sizeof(id));
    for (uint32_t k = 0; k < g->order[r->program].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[r->program].nodes.at[k]);
        for (int o = 0; o < n->nout && !(op_table[n->op].flags & OPF_VIEW); o++)
            if (n->out[o] && !r->first_writer[tensor_at(g, n->out[o])->storage])
                r->first_writer[tensor_at(g, n->out[o])->storage] = g->order[r->program].nodes.at[k];
    }
}

/* Checks that storages handed from a program to the next own all their bytes at the end of the
 * first, and so at the start of the second; the ownership of all other bytes is dropped. */
static void hand_over(struct replay *r)
{
    const struct graph *g = r->g;
    bool *handed = mem_alloc(g->storages.n);
    for (id s = 1; s < g->storages.n; s++) {
        handed[s] = g->storages.at[s].handed && r->first_writer[s];
        if (handed[s]) require_owned(r, r->first_writer[s], s);
    }
    forget_owners(r);
    for (id s = 1; s < g->storages.n; s++) {
        uint64_t at = r->p->placement.offset[s];
        if (handed[s]) claim(r, g->storages.at[s].space, at, at + g->storages.at[s].bytes, s);
    }
    mem_free(handed);
}

/* Gives a cache that is handed over its bytes before the first program that reads it (`begin`), and
 * checks that it owns them after each program: the second runs again and again. */
static void check_caches(struct replay *r, bool begin)
{
    for (id s = 1; s < r->g->storages.n; s++) {
        const struct storage *x = &r->g->storages.at[s];
        const uint64_t at = r->p->placement.offset[s];
        if (x->kind != KIND_CACHE || !x->handed || !r->p->placement.life[r->program][s].used) continue;
        if (begin) claim(r, x->space, at, at + x->bytes, s);
        else require_owned(r, r->first_writer[s], s);
    }
}

static int by_offset(const void *a, const void *b)
{
    const struct owner *x = a, *y = b;
    return x->from < y->from ? -1 : x->from > y->from;
}

/* Checks that persistent storages are disjoint and inside the persistent range of the arena. */
static void check_persistent(const struct plan *p, const struct graph *g, enum space space)
{
    VEC(struct owner) list = {0};
    for (id s = 1; s < g->storages.n; s++) {
        const struct storage *x = &g->storages.at[s];
        bool used = false;
        for (int program = 0; program < PROGRAM_COUNT; program++) used |= p->placement.life[program][s].used;
        if (!used || !storage_is_persistent(x) || x->space != space) continue;
        const uint64_t from = p->placement.offset[s];
        CHECK(from + x->bytes <= p->persistent[space] && from % PLAN_ALIGN == 0);
        if (x->bytes) vec_push(&list, ((struct owner){from, from + x->bytes, s}));
    }
    if (list.n) qsort(list.at, list.n, sizeof *list.at, by_offset);
    for (uint32_t k = 1; k < list.n; k++)
        CHECK(list.at[k].from >= list.at[k - 1].to, "%s and %s overlap",
              graph_name(g, g->storages.at[list.at[k - 1].storage].name),
              graph_name(g, g->storages.at[list.at[k].storage].name));
    vec_free(&list);
}

void plan_check(const struct plan *p, const struct graph *g)
{
    for (enum space space = 0; space < SPACE_COUNT; space++) check_persistent(p, g, space);
    struct replay r = {.p = p, .g = g};
    r.first_writer = mem_alloc(g->storages.n * sizeof(id));
    r.iteration = mem_alloc(g->loops.n * sizeof(uint32_t));
    r.owned = mem_alloc(g->storages.n * sizeof *r.owned);
    for (int program = 0; program < PROGRAM_COUNT; program++) {
        if (program_is(program, PROGRAM_HANDED)) hand_over(&r);
        else forget_owners(&r);
        r.program = program;
        find_first_writers(&r);
        if (!program_is(program, PROGRAM_HANDED)) check_caches(&r, true);
        replay_range(&r, 0, g->order[program].nodes.n, 0);
        check_caches(&r, false);
    }
    for (int s = 0; s < SPACE_COUNT; s++) vec_free(&r.map[s]);
    mem_free(r.first_writer);
    mem_free(r.iteration);
    mem_free(r.owned);
}

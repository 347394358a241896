/*
 * visit.c: see visit.h.
 *
 * Invariants: the nodes of the program keep their order. A copy is in the body of the loop over
 * micro-batches and never in a loop within it, so a visitor is filled once per iteration. A home is
 * fetched only after the last copy that writes to it. A loop over tokens is a part of its block's
 * unit.
 */
#include "passes/visit.h"

#include "graph/ops.h"

/* --- units --------------------------------------------------------------------------- */

/* The key of a unit: consecutive nodes with equal keys form one unit. */
struct unit_key {
    id outer;    /* the level, or 0 outside of it */
    id inner;    /* the loop directly inside the level; 0: none */
    id block;
    id weight;   /* the scope of an update */
    bool forward, update;
};

static struct unit_key key_of(const struct visits *v, const struct node *n)
{
    const struct graph *g = v->g;
    struct unit_key p = {0};
    bool inside = loop_inside(g, n->loop, v->level);
    p.outer = inside ? v->level : 0;
    for (id l = loop_body(g, n->loop); l != p.outer; l = g->loops.at[l].parent) p.inner = l;
    if (p.inner) return p; /* an inner loop is one unit */
    p.update = n->phase == PHASE_UPDATE;
    p.block = p.update ? 0 : graph_block_of(g, n->scope);
    p.weight = p.update ? n->scope : 0;
    p.forward = n->phase == PHASE_FORWARD;
    return p;
}

static bool same_key(const struct unit_key *a, const struct unit_key *b)
{
    return a->outer == b->outer && a->inner == b->inner && a->block == b->block && a->weight == b->weight &&
           a->forward == b->forward && a->update == b->update;
}

static void cut_units(struct visits *v)
{
    struct unit_key last = {0};
    uint32_t ranked = 0;
    v->rank = mem_alloc((v->count + 1) * sizeof *v->rank);
    v->unit = mem_alloc((v->count + 1) * sizeof *v->unit);
    v->first = mem_alloc((v->count + 2) * sizeof *v->first);
    for (uint32_t k = 0; k < v->count; k++) {
        struct unit_key p = key_of(v, visit_node(v, k));
        if (!k || !same_key(&p, &last)) {
            v->rank[v->units] = ranked;
            ranked += !p.update;
            v->first[v->units++] = k;
        }
        v->unit[k] = v->units - 1;
        last = p;
    }
    v->first[v->units] = v->count;
}

const struct node *visit_node(const struct visits *v, uint32_t position) { return node_at(v->g, v->nodes[position]); }

/* Returns the position of a fetch (visit.h). The compute time of an update is short compared to its
 * copies. On a bus with both directions the state of the next update is fetched while the previous
 * one is written back. Without overlap an early fetch would only take memory. */
uint32_t visit_from(const struct visits *v, uint32_t u)
{
    const struct node *n = visit_node(v, v->first[u]);
    const id outer = key_of(v, n).outer;
    uint32_t at = u;
    if (n->phase == PHASE_UPDATE && (!v->overlaps || !at || key_of(v, visit_node(v, v->first[at - 1])).outer != outer))
        return v->first[u];
    if (n->phase == PHASE_UPDATE) return v->first[at - 1];
    do {
        if (!at || key_of(v, visit_node(v, v->first[at - 1])).outer != outer) return v->first[u];
        at--;
    } while (visit_node(v, v->first[at])->phase == PHASE_UPDATE);
    return v->first[at];
}

/* --- beginning and end ----------------------------------------------------------------- */

static void list_tensors(struct visits *v)
{
    for (id t = v->tensors - 1; t > 0; t--) {
        const struct tensor *x = tensor_at(v->g, t);
        v->home[t] = x->storage;
        v->some[x->storage] = t;
        if (!x->node && !x->loop && tensor_is_dense(x) && tensor_bytes(x) == v->g->storages.at[x->storage].bytes)
            v->leaf[x->storage] = t;
    }
}

/* Finds the loop that is `levels` deep; all nodes of a micro-batch are in it. 0: none. */
static id find_level(const struct visits *v, int levels)
{
    const struct graph *g = v->g;
    for (uint32_t k = 0; k < v->count && levels; k++) {
        int depth = 0;
        for (id l = visit_node(v, k)->loop; l; l = g->loops.at[l].parent) depth++;
        id level = visit_node(v, k)->loop;
        for (; depth > levels; depth--) level = g->loops.at[level].parent;
        if (depth == levels) return level;
    }
    return 0;
}

void visits_begin(struct visits *v, struct graph *g, enum program p, int levels, const char *pass)
{
    *v = (struct visits){.g = g, .program = p, .count = g->order[p].nodes.n,
                         .tensors = g->tensors.n, .storages = g->storages.n};
    v->nodes = mem_alloc((v->count + 1) * sizeof(id));
    if (v->count) memcpy(v->nodes, g->order[p].nodes.at, v->count * sizeof(id));
    v->level = find_level(v, levels);
    cut_units(v);
    v->home = mem_alloc(v->tensors * sizeof(id));
    v->leaf = mem_alloc(v->storages * sizeof(id));
    v->some = mem_alloc(v->storages * sizeof(id));
    list_tensors(v);
    v->here = mem_alloc(v->storages * sizeof *v->here);
    v->stored = mem_alloc(v->storages * sizeof *v->stored);
    v->clone = mem_alloc(v->tensors * sizeof(id));
    v->stamp = mem_alloc(v->tensors * sizeof *v->stamp);
    v->before = graph_move(g, p, PHASE_FORWARD, pass);
}

static int by_position(const void *a, const void *b)
{
    const struct insertion *x = a, *y = b;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    return x->turn < y->turn ? -1 : x->turn > y->turn;
}

void visits_end(struct visits *v)
{
    struct order *order = &v->g->order[v->program];
    uint32_t next = 0;
    if (v->insertions.n) qsort(v->insertions.at, v->insertions.n, sizeof *v->insertions.at, by_position);
    order->nodes.n = 0;
    for (uint32_t k = 0; k <= v->count; k++) {
        while (next < v->insertions.n && v->insertions.at[next].at == k)
            vec_push(&order->nodes, v->insertions.at[next++].node);
        if (k < v->count) vec_push(&order->nodes, v->nodes[k]);
    }
    v->g->at = v->before;
    vec_free(&v->insertions);
    mem_free(v->nodes);
    mem_free(v->unit);
    mem_free(v->first);
    mem_free(v->rank);
    mem_free(v->home);
    mem_free(v->leaf);
    mem_free(v->some);
    mem_free(v->here);
    mem_free(v->stored);
    mem_free(v->clone);
    mem_free(v->stamp);
}

/* Returns the storage of a tensor at the beginning; 0 for a tensor on a visitor. */
static id home_of(const struct visits *v, id t) { return t < v->tensors ? v->home[t] : 0; }

/* --- copies -------------------------------------------------------------------------------- */

id visit_whole(struct visits *v, id home)
{
    const struct graph *g = v->g;
    const struct storage *s = &g->storages.at[home];
    CHECK(v->some[home], "%s is touched and has no tensor", graph_name(g, s->name));
    if (v->leaf[home]) return v->leaf[home];
    const struct tensor x = *tensor_at(g, v->some[home]);
    enum dtype type = s->bytes % dtype_size(x.dtype) ? DT_U8 : x.dtype;
    id whole = graph_tensor(v->g, graph_name(g, s->name), home, type, 1,
                            (int64_t[]){(int64_t)(s->bytes / dtype_size(type))}, 0);
    tensor_at(g, whole)->node = x.node;
    return whole;
}

/* Emits a node to be inserted before position `at`. */
static id emit(struct visits *v, enum op op, const union attr *a, const id *in, int nin, uint32_t at, uint32_t origin)
{
    struct graph *g = v->g;
    const struct node *n = visit_node(v, origin);
    g->at.phase = n->phase;
    g->at.scope = n->scope;
    g->at.origin = v->nodes[origin];
    g->at.loop = loop_inside(g, n->loop, v->level) ? v->level : 0;
    id node = graph_emit(g, op, a, in, nin);
    CHECK(node, "a copy of %s", graph_name(g, tensor_at(g, in[0])->name));
    g->order[v->program].nodes.n--;
    vec_push(&v->insertions, ((struct insertion){at, v->insertions.n, node}));
    return node;
}

id visit_copy(struct visits *v, id from, id to, enum space space, uint32_t at, uint32_t origin)
{
    return emit(v, OP_COPY, &(union attr){.copy = {space}}, (id[]){from, to}, to ? 2 : 1, at, origin);
}

/* Emits an ALL_GATHER of the shards of all ranks; returns the node. */
static id visit_gather(struct visits *v, id home, uint32_t at, uint32_t origin)
{
    const id shard = v->shard[home];
    return emit(v, OP_ALL_GATHER,
                &(union attr){.group = {v->ranks, v->axis, tensor_elements(tensor_at(v->g, shard)), v->host}}, &shard,
                1, at, origin);
}

void visit_fetch(struct visits *v, id home, id whole, uint32_t at, uint32_t origin)
{
    struct graph *g = v->g;
    id fetch = v->ranks ? visit_gather(v, home, at, origin) : visit_copy(v, whole, 0, SPACE_DEVICE, at, origin),
       here = node_at(g, fetch)->out[0];
    storage_of(g, here)->name = tensor_at(g, here)->name = g->storages.at[home].name;
    v->here[home] = (struct visitor){tensor_at(g, here)->storage, fetch, 0};
}

/* Returns the view `t` of a home, on its visitor. */
static id on_visitor(struct visits *v, id t, uint32_t number)
{
    const struct visitor *here = &v->here[v->home[t]];
    if (tensor_at(v->g, t)->storage == here->storage) return t; /* written in this unit and already moved */
    if (v->stamp[t] == number) return v->clone[t];
    struct tensor x = *tensor_at(v->g, t);
    x.storage = here->storage;
    x.node = here->fetch;
    vec_push(&v->g->tensors, x);
    v->stamp[t] = number;
    return v->clone[t] = v->g->tensors.n - 1;
}

void visit_rewrite(struct visits *v, uint32_t k, uint32_t number)
{
    struct node *n = node_at(v->g, v->nodes[k]);
    for (int i = 0; i < n->nin; i++)
        if (v->here[home_of(v, n->in[i])].storage) n->in[i] = on_visitor(v, n->in[i], number);
    for (int o = 0; o < n->nout; o++) {
        struct visitor *here = &v->here[home_of(v, n->out[o])];
        if (!here->storage) continue;
        tensor_at(v->g, n->out[o])->storage = here->storage;
        if (!(op_table[n->op].flags & OPF_VIEW)) here->writer = v->nodes[k];
    }
}

/* --- a unit ------------------------------------------------------------------------------- */

typedef VEC(id) id_list;

static void collect_homes(const struct visits *v, uint32_t u, const bool *offloaded, id_list *out)
{
    for (uint32_t k = v->first[u]; k < v->first[u + 1]; k++) {
        const struct node *n = visit_node(v, k);
        for (int i = 0; i < n->nin + n->nout; i++) {
            id t = i < n->nin ? n->in[i] : n->out[i - n->nin], s = home_of(v, t);
            bool known = !s || !offloaded[s];
            for (uint32_t j = 0; j < out->n && !known; j++) known = out->at[j] == s;
            if (!known) vec_push(out, s);
        }
    }
}

/* Copies the visitor back to its home after the unit. */
static void write_back(struct visits *v, uint32_t u, id home, id whole)
{
    const struct visitor here = v->here[home];
    uint32_t at = v->first[u + 1];
    struct tensor x = *tensor_at(v->g, node_at(v->g, here.fetch)->out[0]);
    x.node = here.writer;
    vec_push(&v->g->tensors, x);
    visit_copy(v, v->g->tensors.n - 1, whole, SPACE_HOST, at, at - 1);
    v->stored[home] = at;
}

/* Returns the position of a fetch for unit `u` that may begin as soon as the last unit with
 * visitors does, before the units without visitors between them. */
static uint32_t from_last_visit(const struct visits *v, uint32_t u)
{
    const id outer = key_of(v, visit_node(v, v->first[u])).outer;
    uint32_t at = u;
    if (!v->visited || visit_node(v, v->first[u])->phase == PHASE_UPDATE) return visit_from(v, u);
    while (at >= v->visited && key_of(v, visit_node(v, v->first[at - 1])).outer == outer &&
           visit_node(v, v->first[at - 1])->phase != PHASE_UPDATE)
        at--;
    return min_u64(v->first[at], visit_from(v, u));
}

void visit_unit(struct visits *v, uint32_t u, const bool *offloaded)
{
    id_list homes = {0}, wholes = {0};
    collect_homes(v, u, offloaded, &homes);
    uint32_t at = v->spread ? from_last_visit(v, u) : visit_from(v, u);
    if (homes.n) v->visited = u + 1;
    for (uint32_t i = 0; i < homes.n; i++) {
        id s = homes.at[i];
        vec_push(&wholes, v->ranks ? 0 : visit_whole(v, s));
        visit_fetch(v, s, wholes.at[i], v->stored[s] > at ? v->stored[s] : at, v->first[u]);
    }
    for (uint32_t k = v->first[u]; k < v->first[u + 1] && homes.n; k++) visit_rewrite(v, k, u + 1);
    for (uint32_t i = 0; i < homes.n; i++) {
        if (v->here[homes.at[i]].writer) write_back(v, u, homes.at[i], wholes.at[i]);
        v->here[homes.at[i]] = (struct visitor){0};
    }
    vec_free(&homes);
    vec_free(&wholes);
}

/*
 * visit.c: see visit.h.
 *
 * Invariants: the nodes of the program keep their order. A copy is in the body of the loop over
 * micro-batches and never in a loop within it, so a visitor is filled once per iteration. A home is
 * fetched only after the last copy, or node on the host, that writes to it. A loop over tokens is a
 * part of its block's unit.
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
    struct unit_key last = {0}, block = {0}; /* of the last unit; of the last one that is no update */
    uint32_t runs = 0;
    v->run = mem_alloc((v->count + 1) * sizeof *v->run);
    v->unit = mem_alloc((v->count + 1) * sizeof *v->unit);
    v->first = mem_alloc((v->count + 2) * sizeof *v->first);
    for (uint32_t k = 0; k < v->count; k++) {
        struct unit_key p = key_of(v, visit_node(v, k));
        if (!k || !same_key(&p, &last)) {
            if (!p.update && (!v->holds || !same_key(&p, &block))) runs++, block = p;
            v->run[v->units] = runs;
            v->first[v->units++] = k;
        }
        v->unit[k] = v->units - 1;
        last = p;
    }
    v->first[v->units] = v->count;
}

const struct node *visit_node(const struct visits *v, uint32_t position) { return node_at(v->g, v->nodes[position]); }

static bool is_update(const struct visits *v, uint32_t u) { return visit_node(v, v->first[u])->phase == PHASE_UPDATE; }

/* Reports whether two units are both in the level's body, or both outside. */
static bool same_level(const struct visits *v, uint32_t a, uint32_t b)
{
    return key_of(v, visit_node(v, v->first[a])).outer == key_of(v, visit_node(v, v->first[b])).outer;
}

static uint32_t first_of_run(const struct visits *v, uint32_t u)
{
    while (u && v->run[u - 1] == v->run[u]) u--;
    return u;
}

/* Returns the position of a fetch (visit.h). The compute time of an update is short compared to its
 * copies. On a bus with both directions the state of the next update is fetched while the previous
 * one is written back. Without overlap an early fetch would only take memory. */
uint32_t visit_from(const struct visits *v, uint32_t u)
{
    const uint32_t behind = is_update(v, u) ? u : first_of_run(v, u);
    if (!behind || (is_update(v, u) && !v->overlaps) || !same_level(v, behind - 1, u)) return v->first[u];
    return v->first[is_update(v, u) ? u - 1 : first_of_run(v, behind - 1)];
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

void visits_begin(struct visits *v, struct graph *g, enum program p, int levels, bool overlaps, bool holds,
                  const char *pass)
{
    *v = (struct visits){.g = g, .program = p, .overlaps = overlaps, .holds = holds, .count = g->order[p].nodes.n,
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
    v->hosted = mem_alloc(v->tensors * sizeof *v->hosted);
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
    mem_free(v->run);
    vec_free(&v->held);
    mem_free(v->home);
    mem_free(v->leaf);
    mem_free(v->some);
    mem_free(v->here);
    mem_free(v->stored);
    mem_free(v->clone);
    mem_free(v->stamp);
    mem_free(v->hosted);
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

/* Adds the homes that the nodes of a unit access. */
static void collect_homes(const struct visits *v, uint32_t u, const bool *offloaded, id_list *out)
{
    for (uint32_t k = v->first[u]; k < v->first[u + 1]; k++) {
        const struct node *n = visit_node(v, k);
        for (int i = 0; i < n->nin + n->nout && !(v->stays && v->stays[k]); i++) {
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
    uint32_t at = u;
    if (!v->visited || is_update(v, u)) return visit_from(v, u);
    while (at >= v->visited && same_level(v, at - 1, u) && !is_update(v, at - 1)) at--;
    return min_u64(v->first[at], visit_from(v, u));
}

/* Fetches the homes that have no visitor yet, for unit `u`. */
static void fetch_homes(struct visits *v, uint32_t u, const id_list *homes)
{
    const uint32_t at = v->spread ? from_last_visit(v, u) : visit_from(v, u);
    if (homes->n) v->visited = u + 1;
    for (uint32_t i = 0; i < homes->n; i++) {
        const id s = homes->at[i];
        if (v->here[s].storage) continue;
        visit_fetch(v, s, v->ranks ? 0 : visit_whole(v, s), v->stored[s] > at ? v->stored[s] : at, v->first[u]);
    }
}

/* Begins a run with unit `u`: fetches the homes that any of its units but updates access. */
static void begin_run(struct visits *v, uint32_t u, const bool *offloaded)
{
    id_list homes = {0};
    for (uint32_t k = u; k < v->units && v->run[k] == v->run[u]; k++)
        if (!is_update(v, k)) collect_homes(v, k, offloaded, &homes);
    fetch_homes(v, u, &homes);
    for (uint32_t i = 0; i < homes.n; i++) vec_push(&v->held, homes.at[i]);
    vec_free(&homes);
}

static void end_run(struct visits *v)
{
    for (uint32_t i = 0; i < v->held.n; i++) v->here[v->held.at[i]] = (struct visitor){0};
    v->held.n = 0;
}

void visit_unit(struct visits *v, uint32_t u, const bool *offloaded)
{
    const bool update = is_update(v, u);
    const uint32_t held = v->held.n;
    id_list homes = {0};
    if (!update && first_of_run(v, u) == u) begin_run(v, u, offloaded);
    collect_homes(v, u, offloaded, &homes);
    for (uint32_t i = 0; i < homes.n && update; i++)
        if (!v->here[homes.at[i]].storage) vec_push(&v->held, homes.at[i]);
    if (update) fetch_homes(v, u, &homes);
    for (uint32_t k = v->first[u]; k < v->first[u + 1] && homes.n; k++)
        if (!v->stays || !v->stays[k]) visit_rewrite(v, k, u + 1);
    for (uint32_t i = 0; i < homes.n; i++) {
        if (v->here[homes.at[i]].writer) write_back(v, u, homes.at[i], visit_whole(v, homes.at[i]));
        v->here[homes.at[i]].writer = 0;
    }
    for (; update && v->held.n > held; v->held.n--) v->here[v->held.at[v->held.n - 1]] = (struct visitor){0};
    if (u + 1 == v->units || v->run[u + 1] != v->run[u]) end_run(v);
    vec_free(&homes);
}

/* --- a node on the host --------------------------------------------------------------------- */

/* Returns a tensor like `t` in host memory, for the node at position `k` to write. */
static id host_room(struct visits *v, id t, uint32_t k)
{
    const struct tensor x = *tensor_at(v->g, t);
    union attr a = {.fill = {.dtype = x.dtype, .rank = x.rank}};
    memcpy(a.fill.dim, x.dim, sizeof a.fill.dim);
    const id fill = emit(v, OP_FILL, &a, &t, 0, k, k), room = node_at(v->g, fill)->out[0];
    node_at(v->g, fill)->silent = true;
    node_at(v->g, fill)->lane = LANE_HOST;
    storage_of(v->g, room)->space = SPACE_HOST;
    return room;
}

/* Returns a copy of `t` in host memory for the node at position `k`. */
static id host_copy(struct visits *v, id t, uint32_t k)
{
    return node_at(v->g, visit_copy(v, t, 0, SPACE_HOST, k, k))->out[0];
}

/* Reports whether the node at position `k` writes input `i` in place. */
static bool writes_input(const struct visits *v, uint32_t k, int i)
{
    const struct node *n = visit_node(v, k);
    bool written = false;
    for (int o = 0; o < n->nout; o++) written |= n->out[o] && op_must_alias(n, o) == i;
    return written;
}

/* Returns a copy in host memory of what the node at position `k` only reads, which serves the nodes
 * after it too. */
static id host_shared(struct visits *v, id t, uint32_t k)
{
    if (!v->hosted[t]) v->hosted[t] = host_copy(v, t, k);
    return v->hosted[t];
}

/* Lets the node write output `o` in host memory, in place of input `there`, and copies it to the
 * tensor `home`. Later nodes read the output behind that copy. */
static void copy_back(struct visits *v, uint32_t k, int o, id there, id home)
{
    struct graph *g = v->g;
    const id self = v->nodes[k], out = node_at(g, self)->out[o];
    struct tensor x = *tensor_at(g, there);
    x.node = self;
    vec_push(&g->tensors, x);
    node_at(g, self)->out[o] = g->tensors.n - 1;
    const id back = visit_copy(v, g->tensors.n - 1, home, SPACE_DEVICE, k + 1, k);
    node_at(g, back)->lane = LANE_BACK;
    node_at(g, back)->out[0] = out;
    tensor_at(g, out)->node = back;
}

bool visit_host(struct visits *v, uint32_t k)
{
    struct graph *g = v->g;
    const id self = v->nodes[k];
    const struct node before = *node_at(g, self);
    bool has_master = false, fresh = false;
    CHECK(!before.loop, "%s runs on the host in a loop", op_table[before.op].name);
    for (int i = 0; i < before.nin; i++)
        has_master |= before.in[i] && storage_of(g, before.in[i])->kind == KIND_MASTER;
    for (int i = 0; i < before.nin; i++) {
        const id t = before.in[i];
        if (!t || storage_of(g, t)->space == SPACE_HOST) continue;
        const bool written = writes_input(v, k, i),
                   room = written && has_master && storage_of(g, t)->kind == KIND_PARAM;
        const id there = room ? host_room(v, t, k) : written ? host_copy(v, t, k) : host_shared(v, t, k);
        node_at(g, self)->in[i] = there;
        fresh |= room;
    }
    for (int o = 0; o < before.nout; o++) {
        const int i = before.out[o] ? op_must_alias(&before, o) : -1;
        const id home = i < 0 ? 0 : before.in[i];
        if (home && storage_of(g, home)->space == SPACE_DEVICE) copy_back(v, k, o, node_at(g, self)->in[i], home);
        else if (home) v->stored[tensor_at(g, home)->storage] = k + 1;
    }
    node_at(g, self)->lane = LANE_HOST;
    return fresh;
}

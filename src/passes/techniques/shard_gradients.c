/*
 * shard_gradients.c: gradients are divided among ranks (ZeRO-2). The sum over ranks moves from the
 * update into the step:
 *
 *     loop over micro-batches {
 *         backward of a block: whole gradients, alive until the end of the block
 *         their shards += REDUCE_SCATTER
 *     }
 *
 * What lasts until the update is the rank's shard of each gradient (graph/shard.h). Ranks are added
 * first, then micro-batches and shares: with several of them another order of the same sums than
 * without this pass. With parallel.group host these are the ranks of a host; sums across hosts stay
 * in the update, once a step.
 */
#include "graph/shard.h"
#include "graph/ops.h"
#include "passes/passes.h"
#include "passes/uses.h"

/* A node to insert before the node at a position. */
struct added {
    uint32_t at, turn;
    id node;
};

struct divide {
    struct graph *g;
    int ranks, axis, host; /* that hold one copy between them, as in attr.group */
    int levels;          /* loops around a micro-batch: over shares, over micro-batches */
    bool accumulates;
    /* by storage: 1 + the positions of the first node that writes it, and of the last that writes
     * or views it */
    uint32_t *first, *last;
    uint32_t *read;      /* by storage: 1 + the position of the first node that reads it */
    bool *removed;       /* by position */
    VEC(struct added) added;
};

static const struct node *at_position(const struct divide *d, uint32_t k)
{
    return node_at(d->g, d->g->order[PROGRAM_STEP].nodes.at[k]);
}

static void note_accesses(struct divide *d)
{
    const struct graph *g = d->g;
    for (uint32_t k = 0; k < g->order[PROGRAM_STEP].nodes.n; k++) {
        const struct node *n = at_position(d, k);
        for (int i = 0; i < n->nin; i++) {
            const id s = tensor_at(g, n->in[i])->storage;
            if (!d->read[s]) d->read[s] = k + 1;
        }
        if (n->op == OP_FOLD) continue;
        for (int o = 0; o < n->nout; o++) {
            const id s = n->out[o] ? tensor_at(g, n->out[o])->storage : 0;
            if (!d->first[s] && !(op_table[n->op].flags & OPF_VIEW)) d->first[s] = k + 1;
            d->last[s] = k + 1;
        }
    }
}

/* Returns the loop whose body is a micro-batch, around a node in it; 0: none. */
static id body_of(const struct divide *d, const struct node *n)
{
    const struct graph *g = d->g;
    int depth = 0;
    for (id l = n->loop; l; l = g->loops.at[l].parent) depth++;
    id l = n->loop;
    for (; depth > d->levels; depth--) l = g->loops.at[l].parent;
    return l;
}

/* Returns the first position of the run of nodes that contains k, as seen from the body: an inner
 * loop is one of them. */
static uint32_t begin_of(const struct divide *d, uint32_t k, id body)
{
    while (k && at_position(d, k)->loop != body && at_position(d, k - 1)->loop != body &&
           loop_inside(d->g, at_position(d, k - 1)->loop, body))
        k--;
    return k;
}

/* Takes the node that was emitted last from the end of the order; it goes before position `at`. */
static void insert(struct divide *d, uint32_t at)
{
    struct order *order = &d->g->order[PROGRAM_STEP];
    const id node = order->nodes.at[--order->nodes.n];
    vec_push(&d->added, ((struct added){at, d->added.n, node}));
}

/* Lets the first node of the body that adds to the whole gradient begin it instead, or moves the
 * zeros before it. Returns the tensor of one micro-batch. */
static id begin_in_body(struct divide *d, uint32_t fill, id body, id whole)
{
    struct graph *g = d->g;
    const id storage = tensor_at(g, whole)->storage;
    const uint32_t k = d->read[storage] - 1;
    struct node *n = node_at(g, g->order[PROGRAM_STEP].nodes.at[k]);
    const int slot = op_table[n->op].flags & OPF_ACCUM ? op_must_alias(n, 0) : -1;
    d->removed[fill] = true;
    if (n->op == OP_ACCUMULATE && n->loop == body && d->last[storage] == k + 1 &&
        tensor_is_dense(tensor_at(g, n->in[0])) && !tensor_at(g, n->in[0])->loop &&
        tensor_at(g, n->in[0])->dtype == tensor_at(g, whole)->dtype) {
        d->removed[k] = true;
        return n->in[0];
    }
    if (slot >= 0 && n->loop == body) {
        n->in[slot] = 0;
        n->nin = (uint8_t)slot;
        return whole;
    }
    const id node = g->order[PROGRAM_STEP].nodes.at[fill];
    node_at(g, node)->loop = body;
    vec_push(&d->added, ((struct added){begin_of(d, k, body), d->added.n, node}));
    return whole;
}

/* Emits the zeros of the sum of shards, before the loop. */
static id zeros(struct divide *d, uint32_t at, const struct tensor *x, int64_t part)
{
    struct graph *g = d->g;
    g->at.loop = at_position(d, at)->loop;
    g->at.scope = at_position(d, at)->scope;
    const id acc = op_fill(g, x->dtype, 1, &part, 0);
    if (acc) insert(d, at);
    return acc;
}

/* Turns FOLD and its partial sums into those of the shard; returns the sum. */
static id fold_shard(struct graph *g, id node, id shard, int64_t part)
{
    struct node *n = node_at(g, node);
    const id partials = n->in[1], made = tensor_at(g, partials)->node;
    node_at(g, made)->attr.fill.dim[1] = part;
    for (int i = 0; i < 2; i++) {
        struct tensor *t = tensor_at(g, i ? n->out[1] : partials);
        t->dim[1] = part;
        tensor_dense_strides(t);
    }
    storage_of(g, partials)->bytes = tensor_bytes(tensor_at(g, partials));
    struct tensor sum = *tensor_at(g, shard);
    sum.node = node;
    vec_push(&g->tensors, sum);
    n->in[0] = shard;
    n->out[0] = g->tensors.n - 1;
    return n->out[0];
}

static void divide_one(struct divide *d, struct param *p)
{
    struct graph *g = d->g;
    const id node = tensor_at(g, p->grad)->node, fold = node && node_at(g, node)->op == OP_FOLD ? node : 0;
    const id name = storage_of(g, p->grad)->name;
    id whole = fold ? node_at(g, fold)->in[0] : p->grad;
    const struct tensor t = *tensor_at(g, whole);
    const int64_t part = shard_part(tensor_elements(&t), d->ranks);
    const uint32_t first = d->first[t.storage] - 1, last = d->last[t.storage] - 1;
    const id body = body_of(d, at_position(d, last)), scope = at_position(d, last)->scope;
    const uint32_t end = block_end(g, PROGRAM_STEP, last, body);
    const bool carried = d->accumulates && at_position(d, first)->loop != body && at_position(d, first)->op == OP_FILL;
    id acc = 0;
    g->storages.at[t.storage].kind = KIND_ACT;
    if (carried) {
        acc = zeros(d, first, &t, part);
        whole = begin_in_body(d, first, body, whole);
    }
    g->at.loop = body;
    g->at.scope = scope;
    const id shard = op_apply(g, OP_REDUCE_SCATTER, &(union attr){.group = {d->ranks, d->axis, part, d->host}},
                              (id[]){whole, acc}, acc ? 2 : 1);
    if (!shard) return;
    insert(d, end);
    *storage_of(g, shard) = (struct storage){.bytes = tensor_bytes(tensor_at(g, shard)), .kind = KIND_GRAD,
                                            .name = name};
    tensor_at(g, shard)->name = name;
    p->grad = fold ? fold_shard(g, fold, shard, part) : shard;
}

static int by_position(const void *a, const void *b)
{
    const struct added *x = a, *y = b;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    return x->turn < y->turn ? -1 : x->turn > y->turn;
}

static void rebuild(struct divide *d)
{
    struct order *order = &d->g->order[PROGRAM_STEP];
    const uint32_t n = order->nodes.n;
    id *old = mem_copy(order->nodes.at, n * sizeof *old);
    uint32_t next = 0;
    if (d->added.n) qsort(d->added.at, d->added.n, sizeof *d->added.at, by_position);
    order->nodes.n = 0;
    for (uint32_t k = 0; k <= n; k++) {
        while (next < d->added.n && d->added.at[next].at == k) vec_push(&order->nodes, d->added.at[next++].node);
        if (k < n && !d->removed[k]) vec_push(&order->nodes, old[k]);
    }
    mem_free(old);
}

/* Moves each sum across hosts, which is written where its input is, into the shard of the
 * gradient. */
static void write_instead(struct graph *g, const id *instead)
{
    const struct order *order = &g->order[PROGRAM_UPDATE];
    for (uint32_t k = 0; k < order->nodes.n; k++) {
        const struct node *n = node_at(g, order->nodes.at[k]);
        const id now = n->op == OP_ALL_REDUCE ? instead[n->in[0]] : 0;
        if (now) tensor_at(g, n->out[0])->storage = tensor_at(g, now)->storage;
    }
}

/* Makes the update read the shards that the step leaves, instead of scattering gradients itself. */
static void read_shards(struct graph *g, const id *was)
{
    struct order *order = &g->order[PROGRAM_UPDATE];
    id *instead = mem_alloc(g->tensors.n * sizeof *instead);
    uint32_t kept = 0;
    for (uint32_t k = 0; k < order->nodes.n; k++) {
        const struct node *n = node_at(g, order->nodes.at[k]);
        id now = 0;
        for (uint32_t i = 0; i < g->params.n && n->op == OP_REDUCE_SCATTER && !now; i++)
            if (was[i] == n->in[0]) now = g->params.at[i].grad;
        if (now) instead[n->out[0]] = now;
        else order->nodes.at[kept++] = order->nodes.at[k];
    }
    order->nodes.n = kept;
    write_instead(g, instead);
    graph_replace_all(g, PROGRAM_UPDATE, instead, g->tensors.n);
    mem_free(instead);
}

void pass_shard_gradients(struct graph *g, const struct settings *s)
{
    if (!s->train || s->ranks < 2 || s->shard < SHARD_GRADIENTS || g->error.code) return;
    struct divide d = {.g = g, .ranks = settings_holders(s), .axis = settings_axis(s), .host = settings_holders_host(s),
                       .levels = (s->shares > 1) + (s->accumulation > 1), .accumulates = s->accumulation > 1};
    id *was = mem_alloc((g->params.n + 1) * sizeof *was);
    struct cursor before = graph_move(g, PROGRAM_STEP, PHASE_BACKWARD, "shard_gradients");
    d.first = mem_alloc(g->storages.n * sizeof *d.first);
    d.last = mem_alloc(g->storages.n * sizeof *d.last);
    d.read = mem_alloc(g->storages.n * sizeof *d.read);
    d.removed = mem_alloc(g->order[PROGRAM_STEP].nodes.n + 1);
    note_accesses(&d);
    for (uint32_t i = 0; i < g->params.n && !g->error.code; i++) {
        was[i] = g->params.at[i].grad;
        if (was[i]) divide_one(&d, &g->params.at[i]);
    }
    rebuild(&d);
    read_shards(g, was);
    vec_free(&d.added);
    mem_free(d.first);
    mem_free(d.last);
    mem_free(d.read);
    mem_free(d.removed);
    mem_free(was);
    g->at = before;
}

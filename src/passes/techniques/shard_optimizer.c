/*
 * shard_optimizer.c: optimizer state and master weights are divided among ranks (ZeRO-1). Each rank
 * updates its shard of every weight (graph/shard.h), and the ranks gather the weights.
 *
 *     reduce.c         ALL_REDUCE of g         norm    update of w, m, v              on every rank
 *     after this pass  REDUCE_SCATTER of g     norm    update of the shard of w, m, v    ALL_GATHER of w
 *
 *     w      [ rank 0 | rank 1 | rank 2 | zeros ]      whole on every rank; the update writes the rank's slice of it
 *     m, v            [ shard  ]                       and f32 master weights likewise
 *
 * The rank's shard of the sum is written over the beginning of the whole gradient, part 0, whose
 * piece of the round every rank has sent by then. So the update has no other memory for it, but for
 * a weight smaller than a shard.
 *
 * The sums, the cells of the norm and the update of an element are the same as without shards, so
 * no bit changes. A rank writes the cells of its shards; the sum over ranks, of one number and
 * zeros, completes them.
 *
 * With parallel.group host the ranks of a host hold one copy between them: they scatter and gather
 * among themselves, and the shards of the sums are added across hosts. A host's ranks are a subtree
 * of the tree over all ranks, so that no bit changes either:
 *
 *     REDUCE_SCATTER of g in the host   ALL_REDUCE of its shard across hosts   norm   update   ALL_GATHER in the host
 *
 * Adafactor's means run over whole rows: its state stays whole, and every rank updates all of it.
 */
#include "graph/shard.h"
#include "graph/ops.h"
#include "graph/sizes.h"
#include "passes/passes.h"

/* A weight whose slices are updated, and that is still to be gathered. */
struct updated {
    id slice, update;    /* a tensor, and the node that wrote it */
    int64_t part;
};

struct shards {
    struct graph *g;
    int ranks;           /* that hold one copy between them... */
    int axis, host;      /* ...as in attr.group */
    int copies;          /* number of copies */
    id loop;             /* over these ranks; it is never entered */
    uint32_t tensors;    /* number before the pass */
    id *instead;         /* by tensor: the shard of a gradient */
    VEC(id) old;         /* the nodes of program update */
    VEC(struct updated) pending; /* of the current block: a GPU exchanges neighbours at once */
    bool in_place;       /* the sum of a gradient is written over its beginning */
    bool each;           /* weights that may be offloaded are gathered one by one, while they are there */
};

static bool is_update(const struct node *n) { return n->op == OP_ADAMW || n->op == OP_ADAMW_8BIT || n->op == OP_SGD; }

/* Reports whether a node is a sum over the ranks that add gradients. */
static bool is_over_data(const struct node *n) { return n->op == OP_ALL_REDUCE && n->attr.group.axis <= AXIS_DATA; }

/* Makes a dense vector of `n` elements over a storage, with the name and dtype of `like`. */
static id vector_on(struct graph *g, id storage, id like, int64_t n)
{
    struct tensor x = {.storage = storage, .name = tensor_at(g, like)->name, .dtype = tensor_at(g, like)->dtype,
                       .rank = 1,
                       .dim = {n}};
    tensor_dense_strides(&x);
    vec_push(&g->tensors, x);
    return g->tensors.n - 1;
}

/* --- storages --------------------------------------------------------------------------------- */

/* Divides master weights into shards; a working weight gets room for the padding of the last
 * ones. */
static void divide_weights(struct shards *x)
{
    struct graph *g = x->g;
    for (uint32_t i = 0; i < g->params.n; i++) {
        const struct param *p = &g->params.at[i];
        if (!p->grad) continue;
        const int64_t part = shard_part(tensor_elements(tensor_at(g, p->tensor)), x->ranks);
        storage_of(g, p->tensor)->bytes = (uint64_t)(x->ranks * part) * dtype_size(tensor_at(g, p->tensor)->dtype);
        if (p->master == p->tensor) continue;
        storage_of(g, p->master)->bytes = (uint64_t)part * dtype_size(tensor_at(g, p->master)->dtype);
        storage_of(g, p->master)->shard = (uint8_t)x->axis;
    }
}

/* --- program update --------------------------------------------------------------------------- */

static void scatter(struct shards *x, id node)
{
    struct graph *g = x->g;
    const struct node n = *node_at(g, node);
    const int64_t part = shard_part(tensor_elements(tensor_at(g, n.in[0])), x->ranks);
    const id sum =
        op_apply(g, OP_REDUCE_SCATTER, &(union attr){.group = {x->ranks, x->axis, part, x->host}}, (id[]){n.in[0]}, 1);
    if (!sum) return;
    storage_of(g, sum)->name = tensor_at(g, sum)->name = tensor_at(g, n.in[0])->name;
    if (x->in_place && tensor_bytes(tensor_at(g, sum)) <= storage_of(g, n.in[0])->bytes)
        tensor_at(g, sum)->storage = tensor_at(g, n.in[0])->storage;
    x->instead[n.out[0]] =
        x->copies > 1 ? op_apply(g, OP_ALL_REDUCE, &(union attr){.group = {.ranks = x->copies, .axis = AXIS_ACROSS}},
                                 (id[]){sum}, 1)
                      : sum;
}

/* Emits a sum of squares for the cells of the shard only; those of other ranks are zeros. */
static void square(struct shards *x, id node)
{
    struct graph *g = x->g;
    struct node *n = node_at(g, node);
    n->attr.squares.n = tensor_elements(tensor_at(g, n->in[0]));
    n->attr.squares.part = shard_part(n->attr.squares.n, x->ranks);
    n->in[0] = x->instead[n->in[0]];
    vec_push(&g->order[PROGRAM_UPDATE].nodes, node);
}

/* Returns the shard of an operand: of the optimizer state, of a master weight, or this rank's slice
 * of a whole weight. */
static id divide_operand(struct shards *x, id t, int64_t part)
{
    struct graph *g = x->g;
    const struct tensor whole = *tensor_at(g, t);
    struct storage *s = &g->storages.at[whole.storage];
    const size_t size = dtype_size(whole.dtype);
    if (s->kind == KIND_PARAM) {
        const id slice = vector_on(g, whole.storage, t, part);
        tensor_at(g, slice)->loop = x->loop;
        tensor_at(g, slice)->advance = part * (int64_t)size;
        return slice;
    }
    const bool blocks = whole.rank == 2 && whole.dim[1] == 2 && text_ends_with(graph_name(g, whole.name), ".absmax");
    const id shard = vector_on(g, whole.storage, t, blocks ? state_blocks(part) : part);
    if (blocks) {
        struct tensor *b = tensor_at(g, shard);
        b->rank = 2;
        b->dim[1] = 2;
        tensor_dense_strides(b);
    }
    s->bytes = tensor_bytes(tensor_at(g, shard));
    s->shard = (uint8_t)x->axis;
    return shard;
}

/* Gathers a weight after all ranks have updated their slices of it: everyone gets the whole. */
static void gather(struct shards *x, const struct updated *u)
{
    struct graph *g = x->g;
    struct tensor whole = *tensor_at(g, u->slice);
    whole.node = whole.loop = 0;
    whole.advance = 0;
    whole.dim[0] = x->ranks * u->part;
    vec_push(&g->tensors, whole);
    g->at.scope = node_at(g, u->update)->scope;
    g->at.origin = u->update;
    op_apply(g, OP_ALL_GATHER, &(union attr){.group = {x->ranks, x->axis, u->part, x->host}},
             (id[]){u->slice, g->tensors.n - 1}, 2);
    g->at.scope = g->at.origin = 0;
}

static void gather_pending(struct shards *x)
{
    for (uint32_t i = 0; i < x->pending.n; i++) gather(x, &x->pending.at[i]);
    x->pending.n = 0;
}

/* Reports whether the update of a weight belongs to the block of those that are pending. */
static bool same_block(const struct shards *x, const struct node *n)
{
    const id block = graph_block_of(x->g, n->scope);
    return x->pending.n && !x->each && block &&
           graph_block_of(x->g, node_at(x->g, x->pending.at[0].update)->scope) == block;
}

static void update(struct shards *x, id node)
{
    struct graph *g = x->g;
    const struct node n = *node_at(g, node);
    const int64_t part = shard_part(tensor_elements(tensor_at(g, n.in[0])), x->ranks);
    id written = 0;
    node_at(g, node)->attr.adamw.part = part;
    vec_push(&g->order[PROGRAM_UPDATE].nodes, node);
    for (int i = 0; i < n.nin; i++) {
        const enum kind kind = n.in[i] ? storage_of(g, n.in[i])->kind : KIND_NONE;
        if (i == 1) node_at(g, node)->in[i] = x->instead[n.in[i]];
        else if (kind == KIND_PARAM || kind == KIND_MASTER || kind == KIND_STATE) {
            const id shard = divide_operand(x, n.in[i], part);
            node_at(g, node)->in[i] = shard;
        }
    }
    for (int o = 0; o < n.nout; o++) {
        const int from = n.out[o] ? op_must_alias(&n, o) : -1;
        if (from < 0) continue;
        struct tensor y = *tensor_at(g, node_at(g, node)->in[from]);
        y.node = node;
        vec_push(&g->tensors, y);
        node_at(g, node)->out[o] = g->tensors.n - 1;
        if (g->storages.at[y.storage].kind == KIND_PARAM) written = g->tensors.n - 1;
    }
    if (written) vec_push(&x->pending, ((struct updated){written, node, part}));
}

/* Scatters the gradients in the order of parameters. The order in which they are complete depends
 * on micro-batches, and with it would the largest sum of shards and workspace, which the search
 * takes to be the same for all of them. */
static void scatter_all(struct shards *x)
{
    id *reduces = mem_alloc(x->tensors * sizeof *reduces); /* by gradient: its ALL_REDUCE */
    for (uint32_t k = 0; k < x->old.n; k++) {
        const struct node *n = node_at(x->g, x->old.at[k]);
        if (is_over_data(n)) reduces[n->in[0]] = x->old.at[k];
    }
    for (uint32_t i = 0; i < x->g->params.n; i++) {
        const id node = reduces[x->g->params.at[i].grad];
        if (node) scatter(x, node);
    }
    mem_free(reduces);
}

static void rewrite_update(struct shards *x)
{
    struct graph *g = x->g;
    struct order *order = &g->order[PROGRAM_UPDATE];
    for (uint32_t k = 0; k < order->nodes.n; k++) vec_push(&x->old, order->nodes.at[k]);
    order->nodes.n = 0;
    scatter_all(x);
    for (uint32_t k = 0; k < x->old.n && !g->error.code; k++) {
        const id node = x->old.at[k];
        const struct node *n = node_at(g, node);
        const bool last = n->op == OP_TOTAL;
        if (last) {
            const id cells = op_apply(g, OP_ALL_REDUCE,
                                      &(union attr){.group = {.ranks = x->ranks, .axis = x->axis, .host = x->host}},
                                      (id[]){n->in[0]}, 1);
            node_at(g, node)->in[0] = cells;
        }
        n = node_at(g, node);
        if (is_over_data(n)) continue;
        if (!same_block(x, n)) gather_pending(x);
        n = node_at(g, node);
        if (n->op == OP_SQUARES) square(x, node);
        else if (is_update(n)) update(x, node);
        else vec_push(&order->nodes, node);
    }
    gather_pending(x);
}

void pass_shard_optimizer(struct graph *g, const struct settings *s)
{
    if (!s->train || s->ranks < 2 || s->shard < SHARD_OPTIMIZER || s->optimizer == OPT_ADAFACTOR || g->error.code)
        return;
    struct shards x = {.g = g, .ranks = settings_holders(s), .axis = settings_axis(s), .host = settings_holders_host(s),
                       .copies = settings_copies(s), .in_place = s->shard == SHARD_OPTIMIZER, .each = s->offload,
                       .tensors = g->tensors.n, .instead = mem_alloc(g->tensors.n * sizeof *x.instead)};
    struct cursor before = graph_move(g, PROGRAM_UPDATE, PHASE_UPDATE, "shard_optimizer");
    divide_weights(&x);
    x.loop = graph_loop(g, "ranks", (uint32_t)x.ranks);
    g->loops.at[x.loop].axis = (uint8_t)x.axis;
    g->loops.at[x.loop].host = (uint32_t)x.host;
    rewrite_update(&x);
    vec_free(&x.old);
    vec_free(&x.pending);
    mem_free(x.instead);
    g->at = before;
}

bool shard_excluded(const struct settings *s, const struct step_limits *l, struct text *why)
{
    (void)l;
    if (s->ranks < 2) text_printf(why, "there is one rank");
    else if (s->optimizer == OPT_ADAFACTOR && s->shard != SHARD_OPTIMIZER)
        text_printf(why, "adafactor's state has means of whole rows of a weight, which a shard does not have; set "
                         "parallel.shard optimizer or none, or memory.optimizer adamw-8bit");
    return why->n;
}

bool group_excluded(const struct settings *s, const struct step_limits *l, struct text *why)
{
    (void)l;
    const int host = s->per_host;
    if (!host || host >= s->ranks) text_printf(why, "all ranks are on one host");
    else if (host == 1)
        text_printf(why, "a host has one rank, so that nothing would be divided; set parallel.group all");
    else if (host & (host - 1))
        text_printf(why, "a host has %d ranks; sums keep their order where it has 2, 4, 8 ...; set parallel.group all",
                    host);
    return why->n;
}

/*
 * precision.c: computes in bf16 or f16.
 *
 *     with masters   master f32 --update--> working copy --forward, backward-->
 *     pure           weight bf16 --update, stochastic rounding--> the same bf16
 *
 * Every weight that the forward reads becomes a working copy of lower precision; the f32 tensor
 * remains as the master weight that the optimizer updates. Shape rules then propagate the dtype
 * through the forward: results that depend on a bf16 weight are bf16, statistics and losses are
 * f32. Weight gradients are f32 (vjp.c; except in gradients.c). A frozen weight has no master and
 * is kept in the compute dtype only; in pure bf16 no weight has a master (cpu/update/update.h).
 * Running statistics stay f32, because bf16 would round their small changes away. So do coordinates
 * and their frequencies, which become angles; the result of FOURIER is of lower precision; and
 * weights that a model itself casts to f32, such as the logarithm of a temperature. f32 inputs stay
 * f32 and are cast at the start of the program. A model may require f32 somewhere (a loss); if the
 * tensor is f32 already, the cast is removed. A cache has the dtype of the rows that are written to
 * it.
 *
 * Modules. A rule gives the scopes that it matches, and those inside, their own precision. First
 * the whole graph is lowered, which shows which tensors are f32 by design and which follow the
 * weights. Then the nodes of such a module are raised (or lowered further), with casts where a
 * tensor that follows the weights crosses the module's border:
 *
 *     bf16 --cast--> [ module, f32 weights without masters ] --cast--> bf16
 */
#include "graph/ops.h"
#include "graph/stored.h"
#include "passes/passes.h"

static id working_copy(struct graph *g, const struct tensor *master, enum dtype t)
{
    const char *name = graph_name(g, master->name);
    struct tensor x = *master;
    x.dtype = t;
    id storage = graph_storage(g, name, KIND_PARAM, SPACE_DEVICE, tensor_bytes(&x));
    g->storages.at[storage].division = g->storages.at[master->storage].division;
    g->storages.at[storage].part = g->storages.at[master->storage].part;
    return graph_tensor(g, graph_name(g, g->storages.at[storage].name), storage, t, x.rank, x.dim, 0);
}

/* Returns the index of the first of two inputs that stay f32; -1: none do. These are running
 * statistics of normalisations, and values that become angles. */
static int first_kept(const struct node *n)
{
    switch (n->op) {
    case OP_BATCHNORM_FROZEN: return 3;
    case OP_BATCHNORM_UPDATE: return 2;
    case OP_ROPE: case OP_PIXELS: return 1;
    case OP_RMSNORM_ROPE: return 2;
    case OP_FOURIER: case OP_PROMPT_NEXT: return 0;
    default: return -1;
    }
}

/* Marks, by tensor, what stays f32: from its readers back through copies and views. */
static bool *mark_kept(const struct graph *g)
{
    bool *kept = mem_alloc(g->tensors.n);
    for (int p = 0; p < PROGRAM_COUNT; p++)
        for (uint32_t k = g->order[p].nodes.n; k-- > 0;) {
            const struct node *n = node_at(g, g->order[p].nodes.at[k]);
            int at = first_kept(n);
            for (int i = at; at >= 0 && i < at + 2; i++) kept[n->in[i]] = true;
            if (n->op == OP_CAST && n->attr.cast.dtype == DT_F32 && storage_of(g, n->in[0])->kind == KIND_PARAM)
                kept[n->in[0]] = true;
            if ((op_table[n->op].flags & OPF_VIEW || n->op == OP_COPY) && kept[n->out[0]]) kept[n->in[0]] = true;
        }
    return kept;
}

/* Sets the output dtype of ops that create floats from another dtype. */
static void set_made(struct node *n, enum dtype t)
{
    if (n->op == OP_FOURIER) n->attr.fourier.dtype = (uint8_t)t;
    if (n->op == OP_CAST && !n->attr.cast.dtype) n->attr.cast.dtype = (uint8_t)t;
    if (n->op == OP_IMAGE) n->attr.image.dtype = (uint8_t)t;
    if (n->op == OP_PIXELS) n->attr.pixels.dtype = (uint8_t)t;
}

static void cast_inputs(struct graph *g, enum program p, enum dtype t, const bool *kept)
{
    struct order *order = &g->order[p];
    uint32_t count = order->nodes.n, tensors = g->tensors.n;
    id *old = mem_copy(order->nodes.at, count * sizeof(id)), *cast = mem_alloc(tensors * sizeof(id));
    struct cursor before = graph_move(g, p, PHASE_FORWARD, "precision");
    order->nodes.n = 0;
    for (uint32_t k = 0; k < count; k++) {
        set_made(node_at(g, old[k]), t);
        for (int i = 0; i < node_at(g, old[k])->nin; i++) {
            id x = node_at(g, old[k])->in[i];
            if (!x || kept[x] || storage_of(g, x)->kind != KIND_INPUT || tensor_at(g, x)->node ||
                tensor_at(g, x)->dtype != DT_F32)
                continue;
            if (!cast[x]) cast[x] = op_cast(g, x, t);
            node_at(g, old[k])->in[i] = cast[x];
        }
    }
    for (uint32_t k = 0; k < count; k++) vec_push(&order->nodes, old[k]);
    g->at = before;
    mem_free(old);
    mem_free(cast);
}

static void drop_idle_casts(struct graph *g, enum program p)
{
    bool any = false;
    for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
        const struct node n = *node_at(g, g->order[p].nodes.at[k]);
        if (n.op != OP_CAST || tensor_at(g, n.in[0])->dtype != tensor_at(g, n.out[0])->dtype) continue;
        graph_replace(g, p, n.out[0], n.in[0]);
        any = true;
    }
    if (any) graph_infer(g, p); /* a view of the cast's result is now one of its input */
    graph_prune(g, p);
}

/* Keeps each cache in the dtype of the module that writes it: `of`, by scope; NULL: in dtype t. */
static void settle_caches(struct graph *g, const uint8_t *of, enum dtype t)
{
    FOR_PROGRAMS(p, PROGRAM_FORWARD)
        for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
            const struct node *n = node_at(g, g->order[p].nodes.at[k]);
            if (n->op != OP_CACHE_WRITE) continue;
            struct tensor *cache = tensor_at(g, n->in[0]);
            cache->dtype = of ? of[n->scope] : (uint8_t)t;
            g->storages.at[cache->storage].bytes = tensor_bytes(cache);
        }
}

/* --- weights ----------------------------------------------------------------------- */

/* Keeps parameter i in dtype t; `master` is its original f32 tensor. */
static void keep_in(struct graph *g, const struct settings *s, uint32_t i, id master, enum dtype t)
{
    struct param *p = &g->params.at[i];
    struct tensor *work = tensor_at(g, p->tensor);
    const bool pure = !policies[s->precision].masters && t == settings_dtype(s);
    bool alone = p->frozen || t == DT_F32 || pure;
    work->dtype = (uint8_t)t;
    storage_of(g, p->tensor)->bytes = stored_bytes(g, work);
    p->master = alone ? p->tensor : master;
    storage_of(g, master)->kind = alone ? KIND_NONE : KIND_MASTER;
}

/* Lowers everything to dtype t; fills by parameter its original tensor (0: unchanged). */
static void lower(struct graph *g, const struct settings *s, enum dtype t, id *masters)
{
    bool *kept = mark_kept(g); /* for the tensors that exist now; the loop adds others */
    uint32_t count = g->tensors.n;
    id *instead = mem_alloc(count * sizeof *instead);
    for (uint32_t i = 0; i < g->params.n; i++) {
        id master = g->params.at[i].tensor;
        if (storage_of(g, master)->kind != KIND_PARAM || tensor_at(g, master)->dtype != DT_F32 || kept[master])
            continue;
        struct tensor m = *tensor_at(g, master);
        id work = working_copy(g, &m, t);
        g->params.at[i].tensor = work;
        masters[i] = master;
        keep_in(g, s, i, master, t);
        instead[master] = work;
    }
    FOR_PROGRAMS(p, PROGRAM_FORWARD) graph_replace_all(g, p, instead, count);
    mem_free(instead);
    bool *stays = mark_kept(g);
    FOR_PROGRAMS(p, PROGRAM_FORWARD) cast_inputs(g, p, t, stays);
    mem_free(stays);
    mem_free(kept);
    settle_caches(g, NULL, t);
    FOR_PROGRAMS(p, PROGRAM_FORWARD) graph_infer(g, p);
}

/* --- modules ----------------------------------------------------------------------- */

/* Returns the dtype to which everything is lowered first: f32 only if no rule requires another. */
static enum dtype base_precision(const struct settings *s)
{
    enum dtype t = settings_dtype(s);
    for (uint32_t i = 0; i < s->n_modules && t == DT_F32; i++)
        if (s->modules[i].has_precision) t = policies[s->modules[i].precision].compute;
    return t;
}

struct borders {
    struct graph *g;
    enum dtype base;
    uint8_t *of;          /* by scope: its precision */
    uint8_t *now;         /* by tensor that follows the weights: its dtype; DT_NONE: other tensors */
    id *cast;             /* by tensor: its last cast in this program... */
    uint32_t tensors;     /* ...for tensors before the pass */
};

/* Marks the tensors that follow the weights, with their new dtypes. */
static void mark_followers(struct borders *b)
{
    const struct graph *g = b->g;
    for (id t = 1; t < b->tensors; t++) {
        const struct tensor *x = tensor_at(g, t);
        if (x->dtype != b->base) continue;
        b->now[t] = x->node ? b->of[node_at(g, x->node)->scope] : x->dtype;
    }
}

/* Keeps each weight in the dtype of its first reader; other readers get a cast. */
static void settle_weights(struct borders *b, const struct settings *s, const id *masters)
{
    struct graph *g = b->g;
    uint8_t *want = mem_alloc(b->tensors);
    for (enum program p = PROGRAM_COUNT; p-- > 0;) /* backwards, so that the first reader is set last */
        for (uint32_t k = program_is(p, PROGRAM_FORWARD) ? g->order[p].nodes.n : 0; k-- > 0;) {
            const struct node *n = node_at(g, g->order[p].nodes.at[k]);
            for (int i = 0; i < n->nin; i++) want[n->in[i]] = b->of[n->scope];
        }
    for (uint32_t i = 0; i < g->params.n; i++) {
        id t = g->params.at[i].tensor;
        if (!masters[i] || !want[t]) continue;
        keep_in(g, s, i, masters[i], want[t]);
        b->now[t] = want[t];
    }
    mem_free(want);
}

static bool updated_in_place(const struct node *n, int i)
{
    for (int o = 0; o < n->nout; o++)
        if (n->out[o] && op_must_alias(n, o) == i) return true;
    return false;
}

/* Returns `x` cast to dtype t, for a node of the current scope and loop; uses the last cast again
 * if it fits. */
static id cross(struct borders *b, id x, enum dtype t)
{
    struct graph *g = b->g;
    id have = b->cast[x];
    if (have && tensor_at(g, have)->dtype == t && node_at(g, tensor_at(g, have)->node)->loop == g->at.loop) return have;
    return b->cast[x] = op_cast(g, op_dense(g, x), t);
}

static void cross_borders(struct borders *b, enum program p)
{
    struct graph *g = b->g;
    struct order *order = &g->order[p];
    uint32_t count = order->nodes.n;
    id *old = mem_copy(order->nodes.at, count * sizeof(id));
    struct cursor before = graph_move(g, p, PHASE_FORWARD, "precision");
    order->nodes.n = 0;
    memset(b->cast, 0, b->tensors * sizeof *b->cast); /* both programs read a weight; a cast belongs to one */
    for (uint32_t k = 0; k < count; k++) {
        struct node *n = node_at(g, old[k]);
        enum dtype want = b->of[n->scope];
        g->at.scope = n->scope;
        g->at.loop = n->loop;
        if (n->op == OP_CAST && n->attr.cast.dtype == b->base) n->attr.cast.dtype = DT_NONE;
        set_made(n, want);
        for (int i = 0; i < node_at(g, old[k])->nin; i++) {
            id x = node_at(g, old[k])->in[i];
            if (!x || !b->now[x] || b->now[x] == want || updated_in_place(node_at(g, old[k]), i)) continue;
            tensor_at(g, x)->dtype = b->now[x]; /* as its producer's shape rule will infer */
            id here = cross(b, x, want);
            node_at(g, old[k])->in[i] = here;
        }
        vec_push(&order->nodes, old[k]);
    }
    g->at = before;
    mem_free(old);
    graph_infer(g, p);
}

static void raise_modules(struct graph *g, const struct settings *s, enum dtype base, const id *masters)
{
    struct borders b = {.g = g, .base = base, .tensors = g->tensors.n, .of = mem_alloc(g->scopes.n),
                        .now = mem_alloc(g->tensors.n), .cast = mem_alloc(g->tensors.n * sizeof(id))};
    bool any = false;
    for (id scope = 0; scope < g->scopes.n; scope++) {
        b.of[scope] = (uint8_t)policies[scope_precision(s, g, scope)].compute;
        any |= b.of[scope] != base;
    }
    if (any) {
        mark_followers(&b);
        settle_caches(g, b.of, base);
        settle_weights(&b, s, masters);
        FOR_PROGRAMS(p, PROGRAM_FORWARD) cross_borders(&b, p);
    }
    mem_free(b.of);
    mem_free(b.now);
    mem_free(b.cast);
}

void pass_precision(struct graph *g, const struct settings *s)
{
    enum dtype base = base_precision(s);
    if (base != DT_F32) {
        id *masters = mem_alloc((g->params.n + 1) * sizeof(id));
        lower(g, s, base, masters);
        if (!g->error.code) raise_modules(g, s, base, masters);
        mem_free(masters);
    }
    FOR_PROGRAMS(p, PROGRAM_FORWARD) drop_idle_casts(g, p);
}

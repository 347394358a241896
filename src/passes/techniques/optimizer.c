/*
 * optimizer.c: the update program.
 *
 *     norm² = Σ over gradients of their sums of squares    (one carried scalar)
 *     clip  = {norm, min(1, clip_norm / norm)}
 *     for each trained weight: an update of its master; the working copy follows
 *
 * The optimizer state is in storages of kind STATE, zero at the start of a run:
 *
 *     adamw         m, v f32                                8 bytes per parameter
 *     adamw-bf16    m, v bf16                               4
 *     adamw-8bit    codes u8 of m, v, and per block of 256  2 + 8/256
 *                   their largest magnitudes
 *     sgd           m f32, nothing without momentum         4, or 0
 *     adafactor     means of rows and of columns f32        4/R + 4/C; vectors 4
 *
 * Under adamw-8bit, small weights and embedding tables keep m and v in f32: they are few bytes, and
 * the rows of a table are updated so unevenly that one block holds many scales.
 *
 * Weights without a gradient are not updated, as in PyTorch. The others are updated in the order in
 * which the backward completes their gradients, so that the norm has the same bits as in the fused
 * step, which sums it on the way.
 *
 * Layers. With layer_decay d the learning rate of a weight is multiplied by d^(L - l), where l is
 * its layer: that of its first use in the forward.
 *
 *     embed | block 1 | block 2 | norm between | block 3 | head
 *       0        1         2           2            3        4 = L
 *
 * Blocks are the scopes with SCOPE_BLOCK, numbered in order. Nodes before the first block are layer
 * 0, nodes between two blocks belong to the first of them, nodes after the last block are layer L.
 */
#include <math.h>

#include "graph/division.h"
#include "graph/ops.h"
#include "graph/sizes.h"
#include "passes/passes.h"

/* --- layers ------------------------------------------------------------------------ */

struct layers {
    int *of;        /* by storage: its layer; -1: not used yet */
    int last;       /* L */
};

/* Returns the layer of a node: the number of its block, or outside of blocks that of the last block
 * so far. Numbers the blocks by their first nodes, and counts them. */
static int layer_here(const struct graph *g, id scope, int *number, int *blocks)
{
    id block = graph_block_of(g, scope);
    if (block && !number[block]) number[block] = ++*blocks;
    return block ? number[block] : *blocks;
}

static struct layers number_layers(const struct graph *g)
{
    struct layers l = {mem_alloc(g->storages.n * sizeof *l.of), 0};
    bool *outside = mem_alloc(g->storages.n * sizeof *outside); /* first read between blocks */
    int *number = mem_alloc(g->scopes.n * sizeof *number), blocks = 0;
    for (id s = 0; s < g->storages.n; s++) l.of[s] = -1;
    for (uint32_t k = 0; k < g->order[PROGRAM_STEP].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[PROGRAM_STEP].nodes.at[k]);
        if (n->phase != PHASE_FORWARD) continue;
        int layer = layer_here(g, n->scope, number, &blocks);
        for (int i = 0; i < n->nin; i++) {
            id s = n->in[i] ? tensor_at(g, n->in[i])->storage : 0;
            if (!s || l.of[s] >= 0) continue;
            l.of[s] = layer;
            outside[s] = !graph_block_of(g, n->scope);
        }
    }
    /* Which block is the last is known only now. */
    l.last = blocks + 1;
    for (id s = 0; s < g->storages.n; s++)
        if (outside[s] && l.of[s] == blocks) l.of[s] = l.last;
    mem_free(outside);
    mem_free(number);
    return l;
}

/* --- one weight ------------------------------------------------------------------------ */

static bool rule_matches(const struct update_rule *r, const char *name)
{
    for (uint32_t i = 0; i < r->n_match; i++)
        if (pattern_match(r->match[i], name)) return true;
    return false;
}

/* Returns the attributes of a weight's update; `depth` is the layer's factor on the learning rate,
 * `of` which part of the weight it is. */
static union attr attributes(const struct settings *s, const char *name, double depth, struct part_number of)
{
    union attr a = {.adamw = {s->optimizer == OPT_SGD ? s->momentum : s->beta1,
                              s->beta2,
                              s->eps,
                              s->weight_decay,
                              depth,
                              hash_bytes(name, strlen(name), 0),
                              0,
                              {of.part, of.here, of.copies}}};
    for (uint32_t i = 0; i < s->n_rules; i++) {
        const struct update_rule *r = &s->rules[i];
        if (!rule_matches(r, name)) continue;
        if (r->has_rate) a.adamw.lr_scale = r->lr_scale * (r->absolute ? 1 : depth);
        if (r->has_decay) a.adamw.weight_decay = r->weight_decay;
    }
    return a;
}

/* Makes a state tensor "weight.which" of the given dtype and shape, for a master weight. */
static id state(struct graph *g, const char *weight, id master, const char *which, enum dtype t, int rank,
                const int64_t *dim)
{
    char name[300];
    struct tensor x = {.dtype = (uint8_t)t, .rank = (uint8_t)rank};
    for (int i = 0; i < rank; i++) x.dim[i] = dim[i];
    tensor_dense_strides(&x);
    snprintf(name, sizeof name, "%s.%s", weight, which);
    x.storage = graph_storage(g, name, KIND_STATE, SPACE_DEVICE, tensor_bytes(&x));
    x.name = g->storages.at[x.storage].name;
    vec_push(&g->tensors, x);
    if (!division_copy(g, x.storage, tensor_at(g, master)->storage, !strcmp(which, "absmax")))
        graph_fail(g,
                   "memory.optimizer adamw-8bit: blocks of %d elements of %s would lie on two ranks with "
                   "parallel.tensor %d; use adamw, or another number",
                   STATE_BLOCK, weight, division_of(g, master)->parts);
    return g->tensors.n - 1;
}

/* The update of one weight, for emit_*. */
struct update {
    struct graph *g;
    const struct settings *s;
    struct param p;
    struct tensor shape;  /* of the master */
    const char *name;
    union attr attr;
    id step, clip, w;     /* w: the working copy; 0 if the forward reads the master itself */
    bool table;           /* an EMBEDDING reads it */
};

static void emit_adamw(const struct update *u, enum dtype t)
{
    id m = state(u->g, u->name, u->p.master, "exp_avg", t, u->shape.rank, u->shape.dim);
    id v = state(u->g, u->name, u->p.master, "exp_avg_sq", t, u->shape.rank, u->shape.dim);
    graph_emit(u->g, OP_ADAMW, &u->attr, (id[]){u->p.master, u->p.grad, m, v, u->step, u->clip, u->w}, u->w ? 7 : 6);
}

static void emit_adamw_8bit(const struct update *u)
{
    enum { SMALL = 4096 };
    const int64_t n = tensor_elements(&u->shape), blocks[2] = {state_blocks(n), 2};
    if (n < SMALL || u->table) {
        emit_adamw(u, DT_F32);
        return;
    }
    id m = state(u->g, u->name, u->p.master, "exp_avg", DT_U8, u->shape.rank, u->shape.dim);
    id v = state(u->g, u->name, u->p.master, "exp_avg_sq", DT_U8, u->shape.rank, u->shape.dim);
    id absmax = state(u->g, u->name, u->p.master, "absmax", DT_F32, 2, blocks);
    graph_emit(u->g, OP_ADAMW_8BIT, &u->attr, (id[]){u->p.master, u->p.grad, m, v, absmax, u->step, u->clip, u->w},
               u->w ? 8 : 7);
}

static void emit_sgd(const struct update *u)
{
    id m =
        u->s->momentum ? state(u->g, u->name, u->p.master, "momentum_buffer", DT_F32, u->shape.rank, u->shape.dim) : 0;
    graph_emit(u->g, OP_SGD, &u->attr, (id[]){u->p.master, u->p.grad, u->step, u->clip, u->w, m}, m ? 6 : u->w ? 5 : 4);
}

/* Emits the update of Adafactor, with its state factored over the last two dimensions; that of
 * vectors is not factored. */
static void emit_adafactor(const struct update *u)
{
    int64_t columns[MAX_RANK];
    const int rank = u->shape.rank;
    id r, c = 0;
    if (rank >= 2) {
        memcpy(columns, u->shape.dim, sizeof columns);
        columns[rank - 2] = columns[rank - 1];
        r = state(u->g, u->name, u->p.master, "exp_avg_sq_row", DT_F32, rank - 1, u->shape.dim);
        c = state(u->g, u->name, u->p.master, "exp_avg_sq_col", DT_F32, rank - 1, columns);
    } else {
        r = state(u->g, u->name, u->p.master, "exp_avg_sq", DT_F32, rank, u->shape.dim);
    }
    graph_emit(u->g, OP_ADAFACTOR, &u->attr, (id[]){u->p.master, u->p.grad, r, u->step, u->clip, u->w, c},
               c      ? 7
               : u->w ? 6
                      : 5);
}

static void update_one(struct graph *g, const struct settings *s, const struct param *p, double depth, id clip,
                       bool table)
{
    char name[256];
    snprintf(name, sizeof name, "%s", graph_name(g, tensor_at(g, p->tensor)->name));
    struct update u = {g,
                       s,
                       *p,
                       *tensor_at(g, p->master),
                       name,
                       attributes(s, name, depth, division_number(g, p->master)),
                       graph_step(g),
                       clip,
                       p->tensor == p->master ? 0 : p->tensor,
                       table};
    id previous = graph_scope_push(g, name, 0);
    if (s->optimizer == OPT_SGD) emit_sgd(&u);
    else if (s->optimizer == OPT_ADAFACTOR) emit_adafactor(&u);
    else if (s->state == STATE_8BIT) emit_adamw_8bit(&u);
    else emit_adamw(&u, s->state == STATE_BF16 ? DT_BF16 : DT_F32);
    graph_scope_pop(g, previous);
}

/* --- trained weights ----------------------------------------------------------------- */

struct trained {
    uint32_t param;
    uint32_t complete;    /* position in program step of the last write to its gradient, or view of it */
};

static int by_completion(const void *a, const void *b)
{
    const struct trained *x = a, *y = b;
    if (x->complete != y->complete) return x->complete < y->complete ? -1 : 1;
    return x->param < y->param ? -1 : x->param > y->param;
}

/* Lists the weights with gradients in the order of completion, and sets `*n` to their number. */
static struct trained *list_trained(const struct graph *g, uint32_t *n)
{
    struct trained *list = mem_alloc((g->params.n + 1) * sizeof *list);
    uint32_t *last = mem_alloc(g->storages.n * sizeof *last);
    for (uint32_t k = 0; k < g->order[PROGRAM_STEP].nodes.n; k++) {
        const struct node *x = node_at(g, g->order[PROGRAM_STEP].nodes.at[k]);
        for (int o = 0; o < x->nout; o++)
            if (x->out[o]) last[tensor_at(g, x->out[o])->storage] = k;
    }
    *n = 0;
    for (uint32_t i = 0; i < g->params.n; i++)
        if (g->params.at[i].grad) list[(*n)++] = (struct trained){i, last[tensor_at(g, g->params.at[i].grad)->storage]};
    qsort(list, *n, sizeof *list, by_completion);
    mem_free(last);
    return list;
}

/* Marks, by storage, what an EMBEDDING of the step reads as its table. */
static bool *mark_tables(const struct graph *g)
{
    bool *table = mem_alloc(g->storages.n);
    for (uint32_t k = 0; k < g->order[PROGRAM_STEP].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[PROGRAM_STEP].nodes.at[k]);
        if (n->op == OP_EMBEDDING) table[tensor_at(g, n->in[1])->storage] = true;
    }
    return table;
}

/* --- the program ------------------------------------------------------------------------- */

/* Emits the norm of all gradients; returns {norm, factor}. */
static id emit_norm(struct graph *g, const struct trained *list, uint32_t n)
{
    id sum = op_fill(g, DT_F64, 0, NULL, 0);
    for (uint32_t i = 0; i < n; i++)
        sum = op_apply(g, OP_SUMSQ, NULL, (id[]){g->params.at[list[i].param].grad, sum}, 2);
    return op_apply(g, OP_CLIP, NULL, (id[]){sum, graph_step(g)}, 2);
}

/* Folds the tensor and its storage into a hash; the number of the storage is its first place in the
 * list. */
static uint64_t hash_tensor(const struct graph *g, id t, uint32_t *seen, uint32_t place, uint64_t h)
{
    const struct tensor *x = tensor_at(g, t);
    const struct storage *s = &g->storages.at[x->storage];
    if (!seen[x->storage]) seen[x->storage] = place;
    const uint64_t of[] = {x->dtype, x->rank,  x->offset, x->loop != 0, (uint64_t)x->advance,
                           s->bytes, s->space, s->kind,   s->handed,    seen[x->storage]};
    h = hash_bytes(of, sizeof of, h);
    h = hash_bytes(x->dim, x->rank * sizeof *x->dim, h);
    return hash_bytes(x->stride, x->rank * sizeof *x->stride, h);
}

/* Returns flags by storage: 1 if a node of a block reads or writes it, 2 if one outside of all
 * blocks does. */
static uint8_t *mark_readers(const struct graph *g)
{
    uint8_t *by = mem_alloc(g->storages.n);
    FOR_PROGRAMS(p, PROGRAM_FORWARD)
        for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
            const struct node *n = node_at(g, g->order[p].nodes.at[k]);
            const uint8_t mark = graph_block_of(g, n->scope) ? 1 : 2;
            for (int i = 0; i < n->nin; i++) by[tensor_at(g, n->in[i])->storage] |= mark;
            for (int o = 0; o < n->nout; o++) by[tensor_at(g, n->out[o])->storage] |= mark;
        }
    return by;
}

uint64_t optimizer_signature(const struct graph *g)
{
    uint32_t n, *seen = mem_alloc(g->storages.n * sizeof *seen);
    struct trained *list = list_trained(g, &n);
    struct layers layers = number_layers(g);
    bool *table = mark_tables(g);
    uint8_t *by = mark_readers(g);
    /* Which weights are offloaded depends on who reads them, also of those that are not trained. */
    uint64_t h = hash_tensor(g, graph_find_output(g, PROGRAM_STEP, "loss"), seen, 1, (uint64_t)layers.last);
    for (uint32_t i = 0; i < g->params.n; i++)
        h = (h ^ by[tensor_at(g, g->params.at[i].tensor)->storage]) * 0x9e3779b97f4a7c15ull;
    for (uint32_t i = 0; i < n; i++) {
        const struct param *p = &g->params.at[list[i].param];
        const id s = tensor_at(g, p->tensor)->storage;
        const uint64_t of[] = {list[i].param, (uint64_t)layers.of[s], table[s], p->tensor == p->master};
        const char *name = graph_name(g, tensor_at(g, p->tensor)->name);
        h = hash_bytes(of, sizeof of, hash_bytes(name, strlen(name), h));
        h = hash_tensor(g, p->tensor, seen, 3 * i + 2, h);
        h = hash_tensor(g, p->master, seen, 3 * i + 3, h);
        h = hash_tensor(g, p->grad, seen, 3 * i + 4, h);
    }
    mem_free(seen);
    mem_free(layers.of);
    mem_free(table);
    mem_free(list);
    mem_free(by);
    return h;
}

void pass_optimizer(struct graph *g, const struct settings *s)
{
    if (!s->train) return;
    uint32_t n;
    struct trained *list = list_trained(g, &n);
    struct cursor before = graph_move(g, PROGRAM_UPDATE, PHASE_UPDATE, "optimizer");
    id clip = emit_norm(g, list, n);
    graph_output(g, "clip", clip);
    struct layers layers = number_layers(g);
    bool *table = mark_tables(g);
    double decay = s->layer_decay > 0 ? s->layer_decay : 1;
    for (uint32_t i = 0; i < n; i++) {
        struct param p = g->params.at[list[i].param];
        id storage = tensor_at(g, p.tensor)->storage;
        CHECK(layers.of[storage] >= 0, "%s has a gradient and no use", graph_name(g, tensor_at(g, p.tensor)->name));
        update_one(g, s, &p, pow(decay, layers.last - layers.of[storage]), clip, table[storage]);
    }
    mem_free(layers.of);
    mem_free(table);
    mem_free(list);
    g->at = before;
}

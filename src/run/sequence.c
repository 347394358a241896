/*
 * sequence.c: see sequence.h.
 *
 * Nodes are visited in order. What is known of a tensor is which of its dimensions lies along the
 * sequence, and of a storage, whether its bytes behind the extent are undefined. A node that reads
 * such bytes must follow the sequence itself, or read rows by an index.
 */
#include "run/sequence.h"

#include "graph/ops.h"

struct finder {
    const struct graph *g;
    struct sequence *s;
    bool *undefined;        /* by storage: behind the extent */
    id index;               /* the storage of the index by which features are read */
    int64_t features;       /* and their number */
};

/* --- tensors ---------------------------------------------------------------------------------- */

/* Returns 1 + the first dimension that is not 1, if it counts whole or equal parts of entries, so
 * that the leading entries are the leading bytes; else 0. */
static uint8_t leading(const struct finder *f, const struct tensor *t)
{
    const int64_t P = f->s->entries;
    for (int i = 0; i < t->rank; i++) {
        if (t->dim[i] == 1) continue;
        if (t->dim[i] % P && (P % t->dim[i] || f->s->bucket % (P / t->dim[i]))) return 0;
        return (uint8_t)(1 + i);
    }
    return 0;
}

/* Returns the dimension of a result that is along the sequence as `from` is: the same one, after
 * equal dimensions. */
static uint8_t like(const struct finder *f, id from, id t)
{
    const struct tensor *x = tensor_at(f->g, from), *y = tensor_at(f->g, t);
    const uint8_t along = f->s->along[from];
    if (y->rank < along) return 0;
    for (int i = 0; i < along; i++)
        if (x->dim[i] != y->dim[i]) return 0;
    return along;
}

static uint8_t along_of_view(const struct finder *f, const struct node *n)
{
    const uint8_t along = f->s->along[n->in[0]];
    const struct tensor *y = tensor_at(f->g, n->out[0]);
    if (!along) return 0;
    switch (n->op) {
    case OP_RESHAPE:
    case OP_DETACH: return leading(f, y);
    case OP_SLICE: return n->attr.slice.axis + 1 == along ? 0 : along;
    case OP_PERMUTE:
        for (int i = 0; i < y->rank; i++)
            if (n->attr.permute.axes[i] + 1 == along) return leading(f, y) == i + 1 ? (uint8_t)(i + 1) : 0;
    }
    return 0;
}

/* --- nodes ------------------------------------------------------------------------------------ */

/* The ops whose results have a row for each row of their inputs, or are sums over rows: outputs
 * that are sums, by bit. */
static const struct {
    uint16_t op;
    uint8_t sums;
} by_rows[] = {
    {OP_LINEAR, 0}, {OP_LINEAR_ACT, 0}, {OP_RMSNORM, 0}, {OP_RMSNORM_BWD, 2}, {OP_LAYERNORM, 0},
    {OP_LAYERNORM_BWD, 6}, {OP_ADD_RMSNORM, 0}, {OP_ADD_LAYERNORM, 0}, {OP_ROPE, 0}, {OP_RMSNORM_ROPE, 0},
    {OP_RMSNORM_ROPE_BWD, 2}, {OP_SILU_GATE, 0}, {OP_SILU_GATE_BWD, 0}, {OP_SILU_GATE_BWD_Y, 0}, {OP_GELU_GATE, 0},
    {OP_GELU_GATE_BWD, 0}, {OP_ACT, 0}, {OP_ACT_BWD, 0}, {OP_ACT_BWD_SUM, 2}, {OP_EMBEDDING, 0}, {OP_EMBEDDING_DW, 1},
    {OP_ADD, 0}, {OP_MUL, 0}, {OP_SCALE, 0}, {OP_CAST, 0}, {OP_PIXELS, 0}, {OP_COPY, 0}, {OP_DROPOUT, 0},
    {OP_CONCAT, 0}, {OP_PAD, 0},
    {OP_SCALED_LINEAR, 0}, {OP_QUANTIZE_ROWS, 0}, {OP_DEQUANTIZE_ROWS, 0}, {OP_ACCUMULATE, 0}, {OP_SUM_TO, 1},
    {OP_ATTENTION, 0}, {OP_ATTENTION_BWD, 0}};

/* Reports whether the node computes rows from rows; *sums has its outputs that are sums. */
static bool is_by_rows(const struct node *n, unsigned *sums)
{
    *sums = n->op == OP_MATMUL && n->attr.matmul.ta;
    for (size_t i = 0; i < COUNT(by_rows); i++)
        if (by_rows[i].op == n->op) return *sums = by_rows[i].sums, true;
    return n->op == OP_MATMUL;
}

static bool is_undefined(const struct finder *f, id t) { return t && f->undefined[tensor_at(f->g, t)->storage]; }

/* Reports whether the leading entries of a tensor can be all that a launch has of it. */
static bool can_lead(const struct finder *f, id t)
{
    const struct tensor *x = tensor_at(f->g, t);
    return leading(f, x) == f->s->along[t] || tensor_is_dense(x);
}

/* Marks the inputs of a node that have all rows as `from` has, and are read as far as it. Returns
 * false if the node cannot be computed for some rows. */
static bool match_inputs(struct finder *f, const struct node *n, id from, unsigned sums)
{
    uint8_t *along = f->s->along;
    switch (n->op) {
    case OP_MATMUL: /* both sides of a product are along the sequence, or the first */
        return along[n->in[0]] && !along[n->in[1]] == !sums;
    case OP_LINEAR:
    case OP_LINEAR_ACT: return along[n->in[0]] && !along[n->in[1]] && (n->nin < 4 || !n->in[3] || along[n->in[3]]);
    case OP_SCALED_LINEAR: return along[n->in[0]] && !along[n->in[2]] && (n->nin < 6 || along[n->in[5]]);
    case OP_EMBEDDING: return along[n->in[0]] && !along[n->in[1]];
    case OP_EMBEDDING_DW: return along[n->in[0]] && along[n->in[1]];
    case OP_ATTENTION:
    case OP_ATTENTION_BWD:
        for (int i = 0; i < n->nin; i++)
            if (n->in[i] && !along[n->in[i]]) return false;
        return true;
    }
    for (int i = 0; i < n->nin; i++)
        if (n->in[i] && !along[n->in[i]] && tensor_at(f->g, n->in[i])->rank == tensor_at(f->g, from)->rank)
            along[n->in[i]] = like(f, from, n->in[i]);
    return true;
}

/* Marks a node that runs over the leading entries. Returns false if it cannot. */
static bool follow(struct finder *f, id node)
{
    const struct node *n = node_at(f->g, node);
    uint8_t *along = f->s->along;
    unsigned sums;
    id from = 0;
    if (!is_by_rows(n, &sums)) return false;
    for (int i = 0; i < n->nin; i++) {
        const id t = n->in[i];
        if (!t || !along[t]) {
            if (is_undefined(f, t)) return false;
            continue;
        }
        if (!can_lead(f, t)) return false;
        if (!from) from = t;
    }
    if (!match_inputs(f, n, from, sums)) return false;
    for (int o = 0; o < n->nout; o++) {
        if (!n->out[o]) continue;
        const bool stat = n->op == OP_ATTENTION && o == 1; /* [B,H,T] */
        const uint8_t at = stat ? 3 : like(f, from, n->out[o]);
        if (sums >> o & 1 && (n->op != OP_SUM_TO || !at)) {
            if (is_undefined(f, n->out[o])) return false;
            continue;
        }
        along[n->out[o]] = at;
        if (!at || !can_lead(f, n->out[o])) return false;
        f->undefined[tensor_at(f->g, n->out[o])->storage] = true;
    }
    return f->s->follows[node] = true;
}

/* Marks a node that reads or writes rows by an index. It runs as planned, except that the rows of a
 * cache are written as far as they are there: the rest is what it was before. Returns false for
 * any other node. */
static bool by_index(struct finder *f, id node)
{
    const struct node *n = node_at(f->g, node);
    switch (n->op) {
    case OP_REPLACE_ROWS:
        if (is_undefined(f, n->in[0]) || n->nin < 3) return false;
        f->index = tensor_at(f->g, n->in[1])->storage;
        f->features = tensor_at(f->g, n->in[2])->dim[tensor_at(f->g, n->in[2])->rank - 2];
        return true;
    case OP_GATHER: return !is_undefined(f, n->in[1]) && (n->nin < 3 || !n->in[2]);
    case OP_CACHE_WRITE:
        return f->s->follows[node] = f->s->along[n->in[1]] && !is_undefined(f, n->in[0]) && !is_undefined(f, n->in[2]);
    }
    return false;
}

/* Finds the gradient of features: all of it is written, and what follows from it is not needed
 * behind the extent. */
static void find_gradient(struct finder *f, const struct node *n)
{
    if (n->op == OP_SCATTER_ADD && n->attr.scatter_add.rows == f->features &&
        tensor_at(f->g, n->in[1])->storage == f->index)
        f->s->along[n->out[0]] = leading(f, tensor_at(f->g, n->out[0]));
}

static bool find_node(struct finder *f, id node)
{
    const struct node *n = node_at(f->g, node);
    uint8_t *along = f->s->along;
    bool any = false, undefined = false;
    for (int i = 0; i < n->nin; i++) {
        any |= n->in[i] && along[n->in[i]];
        undefined |= is_undefined(f, n->in[i]);
    }
    if (op_table[n->op].flags & OPF_VIEW) {
        if (!along[n->out[0]]) along[n->out[0]] = along_of_view(f, n);
        return true;
    }
    find_gradient(f, n);
    if (!any && !undefined) return true;
    unsigned sums;
    return is_by_rows(n, &sums) && any ? follow(f, node) : by_index(f, node);
}

/* Finds the nodes of a program. Outputs that the host reads are not along the sequence, or are
 * declared to be. */
static bool find_program(struct finder *f, enum program p)
{
    const struct order *order = &f->g->order[p];
    memset(f->undefined, 0, f->g->storages.n * sizeof *f->undefined);
    f->index = 0;
    f->features = 0;
    for (uint32_t k = 0; k < order->nodes.n; k++)
        if (!find_node(f, order->nodes.at[k])) return false;
    for (uint32_t i = 0; i < f->g->outputs.n; i++)
        if (f->g->outputs.at[i].program == p && is_undefined(f, f->g->outputs.at[i].tensor) &&
            !tensor_at(f->g, f->g->outputs.at[i].tensor)->along)
            return false;
    return true;
}

/* --- the graph -------------------------------------------------------------------------------- */

/* Marks the tensors that are declared to be along the sequence, and finds its loop. */
static bool declare(struct sequence *s, const struct graph *g)
{
    for (id t = 1; t < g->tensors.n; t++) {
        const struct tensor *x = tensor_at(g, t);
        const bool ranges = x->storage == g->sequence.ranges;
        /* no node may read the ranges: other inputs are in the same loop */
        if (x->loop && (ranges || (!s->loop && x->along && storage_of(g, t)->kind == KIND_INPUT))) s->loop = x->loop;
        if (x->along && ranges) s->whole = x->dim[1];
    }
    const int64_t n = g->sequence.samples, each = g->sequence.section ? g->sequence.section : n;
    s->sections = (n + each - 1) / each;
    s->entries = s->whole / n * each;
    s->bucket = g->sequence.bucket;
    return s->entries > 0;
}

/* Reports whether a tensor has the entries of the sequence, or of a section. */
static bool is_declared(const struct finder *f, const struct tensor *t)
{
    return t->along && leading(f, t) == t->along && t->dim[t->along - 1] == f->s->entries;
}

void sequence_find(struct sequence *s, const struct graph *g)
{
    struct finder f = {.g = g, .s = s};
    bool found;
    memset(s, 0, sizeof *s);
    if (!g->sequence.ranges || !declare(s, g)) return;
    s->along = mem_alloc(g->tensors.n * sizeof *s->along);
    s->follows = mem_alloc(g->nodes.n * sizeof *s->follows);
    for (id t = 1; t < g->tensors.n; t++)
        if (is_declared(&f, tensor_at(g, t))) s->along[t] = tensor_at(g, t)->along;
    f.undefined = mem_alloc(g->storages.n * sizeof *f.undefined);
    found = true;
    for (int p = 0; p < PROGRAM_COUNT; p++) found = found && find_program(&f, (enum program)p);
    mem_free(f.undefined);
    if (!found) sequence_free(s);
}

void sequence_free(struct sequence *s)
{
    mem_free(s->along);
    mem_free(s->follows);
    memset(s, 0, sizeof *s);
}

int64_t sequence_extent(const struct sequence *s, int64_t n)
{
    return min_i64(s->entries, max_i64(1, (n + s->bucket - 1) / s->bucket) * s->bucket);
}

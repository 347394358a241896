/*
 * tensor.c: tensor parallel training: ranks of AXIS_TENSOR hold parts of the same matrices, and
 * each computes its part of a region (regions.h):
 *
 *     norm - ENTER - LINEAR w[N/t,K] - ... - LINEAR w[N,K/t] - SUM_RANKS - bias - residual
 *
 * What is outside of the regions, every rank computes alike. ENTER is the norm's result itself; its
 * gradient, of which each rank has a term, is their sum. A weight of which each part needs all,
 * such as a norm's within the heads, has an ENTER too.
 *
 * A rank may hold several parts (tensor_shares). It computes one after the other, with the nodes
 * and the sizes of a rank that holds one, and adds their terms in the binary tree that SUM_RANKS
 * continues: so t ranks have the bits of one rank with t parts.
 *
 *     sum        ACCUMULATE, term by term
 *     gradient   ENTER inside ENTER, a view for each half
 *
 * Weights become parts of the whole ones, with shapes, gradients and optimizer state of their own
 * (graph/division.h).
 */
#include "graph/division.h"
#include "graph/ops.h"
#include "passes/passes.h"
#include "passes/regions.h"
#include "passes/techniques/recompute.h"

struct tensor_pass {
    struct graph *g;
    struct regions r;
    int ranks, here, parts; /* parts of a rank, and of all */
    uint32_t tensors;       /* before the pass */
    /* by tensor, then by part of this rank: what replaces it; of a weight without ENTER */
    id *part;
    id *entered; /* the same, behind ENTER, in this program; 0: none yet */
    id *after;   /* by tensor: the sum of its terms; 0: itself */
    bool *shared; /* by tensor: a region of this program reads all of it */
};

static id *part_at(const struct tensor_pass *x, id *list, id t, int part) { return &list[(size_t)t * x->here + part]; }

/* --- entering a region ------------------------------------------------------------------------ */

/* Makes a view for each of n parts, so that their gradients are added in a binary tree. */
static void enter_parts(struct tensor_pass *x, id t, int n, id *out)
{
    int left = 1;
    if (n == 1) {
        *out = t;
        return;
    }
    while (2 * left < n) left *= 2;
    for (int side = 0; side < 2; side++) {
        const id half = op_apply(x->g, OP_ENTER, NULL, &t, 1);
        enter_parts(x, half, side ? n - left : left, side ? out + left : out);
    }
}

/* Makes what n parts of this rank, and those of other ranks, read of a tensor whose gradient is the
 * sum over all of them. They are added before the gradients of others that read it. */
static void enter(struct tensor_pass *x, id t, int ranks, int n, id *out)
{
    enter_parts(x, op_apply(x->g, OP_ENTER, &(union attr){.group = {ranks, AXIS_TENSOR}}, &t, 1), n, out);
}

/* Reports whether a gradient may flow into what a region reads whole. */
static bool has_gradient(const struct graph *g, id t)
{
    const enum kind kind = (enum kind)storage_of(g, t)->kind;
    const struct param *p = kind == KIND_PARAM ? graph_param_of(g, t) : NULL;
    return dtype_is_float(tensor_at(g, t)->dtype) && (kind == KIND_PARAM || kind == KIND_ACT || kind == KIND_OUTPUT) &&
           !(p && p->frozen);
}

/* Lets regions enter a tensor, unless they have. */
static void enter_whole(struct tensor_pass *x, id t)
{
    id *out = part_at(x, x->entered, t, 0);
    if (!*out) enter(x, x->after[t] ? x->after[t] : t, x->ranks, x->here, out);
}

static id whole_for(struct tensor_pass *x, id t, int part)
{
    if (!has_gradient(x->g, t)) return x->after[t] ? x->after[t] : t;
    enter_whole(x, t);
    return part_at(x, x->entered, t, 0)[part];
}

/* Enters what a node gives and a region reads, behind the node: in its scope. */
static void enter_outputs(struct tensor_pass *x, id node)
{
    const struct node n = *node_at(x->g, node);
    x->g->at.scope = n.scope;
    for (int o = 0; o < n.nout; o++)
        if (n.out[o] && x->shared[n.out[o]] && has_gradient(x->g, n.out[o])) enter_whole(x, n.out[o]);
}

/* Marks what the regions of a program read all of. */
static void mark_shared(struct tensor_pass *x, enum program p)
{
    const struct order *order = &x->g->order[p];
    memset(x->shared, 0, x->tensors);
    for (uint32_t k = 0; k < order->nodes.n; k++) {
        const struct node *n = node_at(x->g, order->nodes.at[k]);
        if (!x->r.inside[order->nodes.at[k]] || n->op == OP_XENT) continue;
        const struct node_cut c = regions_cut(&x->r, order->nodes.at[k]);
        for (int i = 0; i < n->nin; i++)
            if (n->in[i] && !c.tensor[i].sections && !x->r.partial[n->in[i]]) x->shared[n->in[i]] = true;
    }
}

/* --- weights ---------------------------------------------------------------------------------- */

/* Makes a parameter of the number-th part of those that this rank holds; the first is the parameter
 * itself. */
static id make_part(struct tensor_pass *x, uint32_t param, uint16_t division, int number)
{
    struct graph *g = x->g;
    const struct division *d = &g->divisions.at[division - 1];
    const id tensor = g->params.at[param].tensor;
    struct tensor t = *tensor_at(g, tensor);
    struct storage s = *storage_of(g, tensor);
    t.dim[d->axis] = division_length(d);
    tensor_dense_strides(&t);
    s.bytes = tensor_bytes(&t);
    s.division = division;
    s.part = (uint16_t)number;
    if (number) {
        vec_push(&g->storages, s);
        t.storage = g->storages.n - 1;
        vec_push(&g->params, g->params.at[param]);
        g->params.at[g->params.n - 1].main = param + 1;
        param = g->params.n - 1;
    } else *storage_of(g, tensor) = s;
    vec_push(&g->tensors, t);
    return g->params.at[param].tensor = g->params.at[param].master = g->tensors.n - 1;
}

/* Makes a cache of keys or values for each part: of its heads. The first is the cache itself. All
 * programs have the same caches. */
static void divide_cache(struct tensor_pass *x, id cache)
{
    struct graph *g = x->g;
    const struct axis_cut *c = &x->r.cut[cache];
    const id whole = tensor_at(g, cache)->storage;
    struct tensor t = *tensor_at(g, cache);
    id other = 1; /* a tensor of the same cache that is divided already */
    while (other < cache && (tensor_at(g, other)->storage != whole || !*part_at(x, x->part, other, 0))) other++;
    t.dim[c->axis] = axis_cut_length(c, x->parts);
    tensor_dense_strides(&t);
    for (int i = 0; i < x->here; i++) {
        if (other < cache) t.storage = tensor_at(g, *part_at(x, x->part, other, i))->storage;
        else if (i) {
            vec_push(&g->storages, g->storages.at[whole]);
            t.storage = g->storages.n - 1;
        }
        g->storages.at[t.storage].bytes = tensor_bytes(&t);
        vec_push(&g->tensors, t);
        *part_at(x, x->part, cache, i) = g->tensors.n - 1;
    }
}

/* Returns how many parts of this rank that follow each other have one weight. */
static int parts_of_weight(const struct tensor_pass *x, id t)
{
    return (int)min_i64(x->here, x->r.cut[t].section[0].copies);
}

/* Divides a weight along the cut of its tensor. Parts that are copies of each other are one on this
 * rank. */
static void divide_param(struct tensor_pass *x, uint32_t param)
{
    struct graph *g = x->g;
    const id tensor = g->params.at[param].tensor;
    const struct axis_cut c = x->r.cut[tensor];
    const int each = parts_of_weight(x, tensor);
    struct division d;
    memset(&d, 0, sizeof d); /* the bytes between members too: divisions are compared */
    d.rank = tensor_at(g, tensor)->rank;
    d.axis = c.axis;
    d.sections = c.sections;
    d.parts = x->parts;
    d.here = x->here;
    memcpy(d.dim, tensor_at(g, tensor)->dim, sizeof d.dim);
    memcpy(d.section, c.section, sizeof d.section);
    vec_push(&g->divisions, d);
    for (int i = 0; i < x->here / each; i++) {
        const id own = make_part(x, param, (uint16_t)g->divisions.n, i);
        for (int k = 0; k < each; k++) *part_at(x, x->part, tensor, i * each + k) = own;
    }
}

/* Returns what a part reads of a divided weight: the gradients of copies are added. */
static id weight_for(struct tensor_pass *x, id t, int part)
{
    const int each = parts_of_weight(x, t), copies = x->r.cut[t].section[0].copies, first = part / each * each;
    const id own = *part_at(x, x->part, t, part);
    id *out = part_at(x, x->entered, t, first);
    if (copies < 2 || !has_gradient(x->g, own)) return own; /* a cache has none */
    if (!*out) enter(x, own, copies / each, each, out);
    return out[part - first];
}

/* --- nodes ------------------------------------------------------------------------------------ */

/* Fits the attributes that hold the sizes of a whole. */
static void fit_attributes(const struct tensor_pass *x, const struct node *n, const struct node_cut *c,
                           union attr *attr)
{
    const struct axis_cut *in = &c->tensor[0], *out = &c->tensor[MAX_IN];
    if (n->op == OP_RESHAPE || n->op == OP_DETACH) {
        const struct tensor *y = tensor_at(x->g, n->out[0]);
        memcpy(attr->reshape.dim, y->dim, sizeof y->dim);
        attr->reshape.dim[out->axis] = axis_cut_length(out, x->parts);
    } else if (n->op == OP_SLICE && n->attr.slice.axis == in->axis) {
        attr->slice.start = axis_cut_start(in, n->attr.slice.start, x->parts);
        attr->slice.length = axis_cut_length(out, x->parts);
    }
}

static id tensor_for(struct tensor_pass *x, id t, bool cut, int part)
{
    if (!cut && !x->r.partial[t]) return whole_for(x, t, part);
    return tensor_at(x->g, t)->node ? *part_at(x, x->part, t, part) : weight_for(x, t, part);
}

/* Returns the ids of a part of a vocabulary of `all` ids, in parts of n. */
static id part_ids(struct tensor_pass *x, id ids, int64_t n, int64_t all, bool labels, int part)
{
    return op_apply(x->g, OP_PART_IDS, &(union attr){.part_ids = {n, all, labels, {part, x->here, 1}}}, &ids, 1);
}

/* Emits a node of a region for one part. */
static void emit_part(struct tensor_pass *x, const struct node *n, const struct node_cut *c, int part)
{
    union attr attr = n->attr;
    id in[MAX_IN] = {0};
    int nin = n->nin;
    /* the bias is added once, behind the sum */
    if (n->op == OP_LINEAR && c->partial && nin > 2) nin = 2;
    for (int i = 0; i < nin; i++) {
        if (!n->in[i]) continue;
        in[i] = tensor_for(x, n->in[i], c->tensor[i].sections, part);
    }
    fit_attributes(x, n, c, &attr);
    if (n->op == OP_EMBEDDING) {
        attr.embedding.vocabulary = tensor_at(x->g, n->in[1])->dim[0];
        memcpy(attr.embedding.of, (int32_t[3]){part, x->here, 1}, sizeof attr.embedding.of);
        in[0] = part_ids(x, in[0], axis_cut_length(&c->tensor[1], x->parts), attr.embedding.vocabulary, false, part);
    }
    const id node = graph_emit(x->g, n->op, &attr, in, nin);
    for (int o = 0; o < n->nout && node; o++)
        if (n->out[o]) *part_at(x, x->part, n->out[o], part) = node_at(x->g, node)->out[o];
}

/* Adds n terms in the tree of SUM_RANKS. */
static id sum_parts(struct tensor_pass *x, const id *term, int n)
{
    int left = 1;
    if (n == 1) return *term;
    while (2 * left < n) left *= 2;
    const id a = sum_parts(x, term, left), b = sum_parts(x, term + left, n - left);
    return op_accumulate(x->g, b, a);
}

/* Emits the sum of a tensor's terms. */
static void leave(struct tensor_pass *x, const struct node *n, id t)
{
    struct graph *g = x->g;
    id sum = sum_parts(x, part_at(x, x->part, t, 0), x->here);
    sum = op_apply(g, OP_SUM_RANKS, &(union attr){.group = {x->ranks, AXIS_TENSOR}}, &sum, 1);
    if (n->op == OP_LINEAR && n->nin > 2 && n->in[2]) sum = op_add(g, sum, n->in[2]);
    x->after[t] = sum;
}

/* Emits the loss of logits that are cut along the vocabulary. A part's stats are read again in the
 * backward, so that none is added in place; in any order their sum has the same bits. */
static void emit_loss(struct tensor_pass *x, const struct node *n)
{
    struct graph *g = x->g;
    const int64_t all = tensor_last(tensor_at(g, n->in[0])), each = ceil_div(all, x->parts);
    id stats = 0;
    for (int part = 0; part < x->here; part++) {
        const id labels = part_ids(x, n->in[1], each, all, true, part), logits = *part_at(x, x->part, n->in[0], part);
        const union attr a = {.xent_part = {x->parts, all, {part, x->here, 1}}};
        const id own = op_apply(g, OP_XENT_PART, &a, (id[]){logits, labels}, 2);
        stats = part ? op_add(g, stats, own) : own;
    }
    stats = op_apply(g, OP_SUM_RANKS, &(union attr){.group = {x->ranks, AXIS_TENSOR}}, &stats, 1);
    x->after[n->out[0]] = op_apply(g, OP_XENT_JOIN, NULL, (id[]){stats, n->in[1], n->in[2]}, 3);
}

/* Gathers logits [...,vocabulary] that a program gives: all rows at once, outside of the head's
 * scope. */
static void gather_output(struct tensor_pass *x, id t)
{
    struct graph *g = x->g;
    g->at.scope = 0;
    const struct tensor whole = *tensor_at(g, t);
    const int64_t rows = tensor_rows(&whole), all = tensor_last(&whole), each = ceil_div(all, x->parts) * x->here,
                  part = rows * each;
    id y = *part_at(x, x->part, t, 0);
    if (x->here > 1) y = op_concat(g, part_at(x, x->part, t, 0), x->here, whole.rank - 1);
    y = op_reshape(g, y, 1, &part);
    if (x->ranks > 1)
        y = op_apply(g, OP_ALL_GATHER, &(union attr){.group = {x->ranks, AXIS_TENSOR, part}}, (id[]){y}, 1);
    y = op_permute(g, op_reshape(g, y, 3, (int64_t[]){x->ranks, rows, each}), (int[]){1, 0, 2});
    y = op_slice(g, op_reshape(g, y, 2, (int64_t[]){rows, x->ranks * each}), 1, 0, all);
    x->after[t] = op_copy(g, op_reshape(g, y, whole.rank, whole.dim), SPACE_DEVICE);
}

static bool reads_term(const struct tensor_pass *x, id t)
{
    for (uint32_t u = x->r.first[t]; u < x->r.first[t + 1]; u++)
        if (x->r.inside[x->r.uses[u].node]) return true;
    return false;
}

static void rewrite_inside(struct tensor_pass *x, id node)
{
    struct graph *g = x->g;
    const struct node n = *node_at(g, node);
    g->at.scope = n.scope;
    if (n.op == OP_XENT) {
        emit_loss(x, &n);
        return;
    }
    const struct node_cut c = regions_cut(&x->r, node);
    for (int part = 0; part < x->here && !g->error.code; part++) emit_part(x, &n, &c, part);
    for (int o = 0; o < n.nout && !g->error.code; o++)
        if (n.out[o] && x->r.partial[n.out[o]] && !reads_term(x, n.out[o])) leave(x, &n, n.out[o]);
    for (uint32_t i = 0; i < g->outputs.n && !g->error.code; i++)
        if (g->outputs.at[i].tensor == n.out[0] && c.tensor[MAX_IN].sections) gather_output(x, n.out[0]);
    enter_outputs(x, node);
}

static void rewrite_outside(struct tensor_pass *x, id node)
{
    struct graph *g = x->g;
    struct node *n = node_at(g, node);
    for (int i = 0; i < n->nin; i++)
        if (n->in[i] < x->tensors && x->after[n->in[i]]) n->in[i] = x->after[n->in[i]];
    view_follow_input(g, n);
    vec_push(&g->order[g->at.program].nodes, node);
    enter_outputs(x, node);
}

static void rewrite_program(struct tensor_pass *x, enum program p)
{
    struct order *order = &x->g->order[p];
    const uint32_t n = order->nodes.n;
    id *old = mem_copy(order->nodes.at, n * sizeof *old);
    x->g->at.program = (uint8_t)p;
    mark_shared(x, p);
    order->nodes.n = 0;
    memset(x->entered, 0, x->tensors * (size_t)x->here * sizeof *x->entered);
    for (uint32_t k = 0; k < n && !x->g->error.code; k++) {
        if (x->r.inside[old[k]]) rewrite_inside(x, old[k]);
        else rewrite_outside(x, old[k]);
    }
    mem_free(old);
}

static void move_outputs(struct tensor_pass *x)
{
    struct graph *g = x->g;
    for (uint32_t i = 0; i < g->outputs.n; i++) {
        id *t = &g->outputs.at[i].tensor;
        if (*t >= x->tensors || !x->after[*t]) continue;
        storage_of(g, x->after[*t])->kind = KIND_OUTPUT;
        *t = x->after[*t];
    }
}

void pass_tensor(struct graph *g, const struct settings *s)
{
    if (settings_tensor_parts(s) < 2 || g->error.code) return;
    if (s->train && s->optimizer == OPT_ADAFACTOR)
        graph_fail(g, "parallel.tensor: adafactor's state has means of whole rows and columns of a weight, which its "
                      "parts do not have; use memory.optimizer adamw-8bit");
    if (s->quantize)
        graph_fail(g, "parallel.tensor: weights in fewer bits (memory.quantize) are not divided yet; leave one of them "
                      "out");
    if (g->error.code) return;
    struct tensor_pass x = {.g = g,
                            .ranks = (int)max_i64(1, s->tensor),
                            .here = (int)max_i64(1, s->tensor_shares),
                            .parts = settings_tensor_parts(s),
                            .tensors = g->tensors.n};
    regions_find(&x.r, g, x.parts, x.here);
    const size_t all = x.tensors * (size_t)x.here;
    x.part = mem_alloc(all * sizeof *x.part);
    x.entered = mem_alloc(all * sizeof *x.entered);
    x.after = mem_alloc(x.tensors * sizeof *x.after);
    x.shared = mem_alloc(x.tensors);
    const struct cursor before = graph_move(g, PROGRAM_STEP, PHASE_FORWARD, "tensor");
    for (uint32_t i = 0, n = g->params.n; i < n; i++)
        if (x.r.cut[g->params.at[i].tensor].sections) divide_param(&x, i);
    for (id t = 1; t < x.tensors; t++)
        if (x.r.cut[t].sections && storage_of(g, t)->kind == KIND_CACHE && !tensor_at(g, t)->node) divide_cache(&x, t);
    FOR_PROGRAMS(p, PROGRAM_FORWARD) rewrite_program(&x, p);
    move_outputs(&x);
    if (!x.r.found)
        graph_fail(g,
                   "parallel.tensor: no block of the model can be divided into %d parts: their heads and inner "
                   "widths are not divisible by that",
                   x.parts);
    g->at = before;
    regions_free(&x.r);
    mem_free(x.part);
    mem_free(x.entered);
    mem_free(x.after);
    mem_free(x.shared);
}

/*
 * attention_chunks.c: computes attention in groups of heads, with the keys and values that they
 * share, so that queries, keys and values exist for one group at a time.
 *
 *     forward    q = ROPE(n Wq)  k  v        o, lse = ATTENTION(q, k, v)
 *     becomes    q0 = ROPE(n Wq[0])  k0  v0  o[0], lse0 = ATTENTION(q0, k0, v0)
 *                q1 = ROPE(n Wq[1])  k1  v1  o[1], lse1 = ATTENTION(q1, k1, v1)   ...
 *
 *     backward   dq, dk, dv = ATTENTION_BWD(do, q, k, v, o, lse)
 *     becomes    q0, k0, v0 again    dq[0], dk[0], dv[0] = ATTENTION_BWD(do[0], q0, ...)   ...
 *
 * A group's queries are computed from the rows of the weight that make them, wherever they are
 * read. Where they do not come from a product whose weight can be cut, they are a slice of all
 * queries. The results of a group are written into their places in o, dq, dk and dv.
 *
 * A head is computed as before, from the same numbers, so no bit changes.
 */
#include "graph/ops.h"
#include "passes/passes.h"
#include "passes/uses.h"

enum { GROUPS = 64, HEADS = 2 }; /* most groups; the axis of heads */

/* The log-sum-exps of the groups of an attention, instead of that of all heads. */
struct whole {
    id lse, part[GROUPS];
};

struct groups {
    struct graph *g;
    int chunks;
    uint32_t tensors;        /* number of tensors before the pass */
    uint32_t *readers;       /* by tensor */
    VEC(struct whole) whole; /* of the attentions that are split */
    struct node at;          /* the attention that is split */
};

/* A range along an axis of a tensor. */
struct range {
    int axis;
    int64_t from, length;
};

/* --- a group's part of a tensor ------------------------------------------------------------- */

static id make(struct groups *s, id t, struct range r);

/* Emits a repetition of node `made` with other inputs; returns its first output. */
static id repeat(struct groups *s, id made, const union attr *attr, const id *in, int nin)
{
    struct graph *g = s->g;
    const struct cursor before = g->at;
    g->at.scope = node_at(g, made)->scope;
    g->at.origin = node_at(g, made)->origin;
    const id node = graph_emit(g, node_at(g, made)->op, attr, in, nin);
    g->at = before;
    return node ? node_at(g, node)->out[0] : 0;
}

/* Finds the range of a reshape's input whose last axis has the range's axis and those after it. */
static bool before_reshape(const struct groups *s, const struct node *n, struct range r, struct range *in)
{
    const struct tensor *x = tensor_at(s->g, n->in[0]), *y = tensor_at(s->g, n->out[0]);
    int64_t size = 1;
    if (x->rank != r.axis + 1 || y->rank < x->rank || memcmp(x->dim, y->dim, (size_t)r.axis * sizeof *x->dim))
        return false;
    for (int i = r.axis + 1; i < y->rank; i++) size *= y->dim[i];
    *in = (struct range){r.axis, r.from * size, r.length * size};
    return true;
}

/* Returns the part of a product's result that some rows of its weight make. */
static id make_product(struct groups *s, id made, const struct node *n, struct range r)
{
    struct graph *g = s->g;
    const bool columns = r.axis == tensor_at(g, n->out[0])->rank - 1, dense = tensor_is_dense(tensor_at(g, n->in[1]));
    const bool biased = n->nin > 2 && n->in[2], adds = n->nin > 3 && n->in[3];
    id in[] = {n->in[0], 0, 0, 0};
    if (!columns || !dense || (adds && !(in[3] = make(s, n->in[3], r)))) return 0;
    in[1] = op_slice(g, n->in[1], 0, r.from, r.length);
    if (biased) in[2] = op_slice(g, n->in[2], 0, r.from, r.length);
    if (adds) in[3] = op_dense(g, in[3]);
    return repeat(s, made, &n->attr, in, adds ? 4 : biased ? 3 : 2);
}

/* Returns the part of a sum or product of tensors. An operand that has one entry along the axis, or
 * does not have it, is shared. */
static id make_broadcast(struct groups *s, id made, const struct node *n, struct range r)
{
    id in[2] = {n->in[0], n->in[1]};
    for (int i = 0; i < 2; i++) {
        const struct tensor *x = tensor_at(s->g, n->in[i]);
        const int axis = r.axis - (tensor_at(s->g, n->out[0])->rank - x->rank);
        if (axis < 0 || x->dim[axis] == 1) continue;
        if (!(in[i] = make(s, n->in[i], (struct range){axis, r.from, r.length}))) return 0;
    }
    return repeat(s, made, &n->attr, in, 2);
}

static id make_concat(struct groups *s, id made, const struct node *n, struct range r)
{
    id in[MAX_IN];
    if (n->attr.concat.axis == r.axis) return 0;
    for (int i = 0; i < n->nin; i++)
        if (!(in[i] = make(s, n->in[i], r))) return 0;
    return repeat(s, made, &n->attr, in, n->nin);
}

/* Returns the part of a view, or of a node that computes its first input element by element or head
 * by head. */
static id make_other(struct groups *s, id made, const struct node *n, struct range r)
{
    struct graph *g = s->g;
    const struct tensor y = *tensor_at(g, n->out[0]);
    const bool elements = n->op == OP_SCALE || n->op == OP_CAST;
    union attr attr = n->attr;
    id in[MAX_IN];
    memcpy(in, n->in, sizeof in);
    if (n->op == OP_RESHAPE) {
        struct range before;
        int64_t dim[MAX_RANK];
        if (!before_reshape(s, n, r, &before) || !(in[0] = make(s, n->in[0], before))) return 0;
        memcpy(dim, y.dim, sizeof dim);
        dim[r.axis] = r.length;
        return op_reshape(g, in[0], y.rank, dim);
    }
    if (n->op == OP_SLICE) {
        const bool along = n->attr.slice.axis == r.axis;
        in[0] = make(s, n->in[0], (struct range){r.axis, r.from + (along ? n->attr.slice.start : 0), r.length});
        return along || !in[0] ? in[0] : repeat(s, made, &attr, in, 1);
    }
    if (!elements && (r.axis == y.rank - 1 || (n->op != OP_RMSNORM && n->op != OP_RMSNORM_ROPE && n->op != OP_ROPE)))
        return 0;
    if (!tensor_is_dense(tensor_at(g, n->in[0]))) return 0; /* another kernel may compute dense heads */
    in[0] = make(s, n->in[0], r);
    return in[0] ? repeat(s, made, &attr, in, n->nin) : 0;
}

/* Returns a range of `t` that is computed without the rest; 0: that is not possible, and nodes that
 * were emitted have no reader. */
static id make(struct groups *s, id t, struct range r)
{
    const struct graph *g = s->g;
    const id made = t < s->tensors ? tensor_at(g, t)->node : 0;
    const struct node n = *node_at(g, made);
    if (!made || n.out[0] != t || n.loop != s->at.loop || n.program != s->at.program) return 0;
    if (graph_block_of(g, n.scope) != graph_block_of(g, s->at.scope)) return 0;
    if (op_table[n.op].flags & OPF_EFFECT || op_must_alias(&n, 0) >= 0) return 0;
    if (n.op == OP_LINEAR) return make_product(s, made, &n, r);
    if (n.op == OP_ADD || n.op == OP_MUL) return make_broadcast(s, made, &n, r);
    return n.op == OP_CONCAT ? make_concat(s, made, &n, r) : make_other(s, made, &n, r);
}

/* Returns the heads of group i of `count`, made by themselves or as a slice. */
static id group_of(struct groups *s, id t, int i, int count)
{
    const int64_t each = tensor_at(s->g, t)->dim[HEADS] / count;
    const struct range r = {HEADS, i * each, each};
    const id part = make(s, t, r);
    return part ? part : op_slice(s->g, t, HEADS, r.from, each);
}

/* --- an attention --------------------------------------------------------------------------- */

/* Returns the groups of an attention of `heads` of keys; 1: it stays whole. */
static int count_groups(const struct groups *s, id keys)
{
    const int64_t G = tensor_at(s->g, keys)->dim[HEADS];
    int64_t n = min_i64(min_i64(s->chunks, G), GROUPS);
    while (G % n) n--;
    return (int)n;
}

/* Lets output `o` of a group's node be the group's heads of a whole tensor. */
static void put_heads(struct graph *g, id node, int o, id whole, int i)
{
    struct tensor *x = tensor_at(g, node_at(g, node)->out[o]), *to = tensor_at(g, whole);
    x->storage = to->storage;
    x->offset = to->offset + (uint64_t)(i * x->dim[HEADS] * to->stride[HEADS]) * dtype_size(to->dtype);
    x->loop = to->loop;
    x->advance = to->advance;
    memcpy(x->stride, to->stride, sizeof x->stride);
    to->node = node;
}

static void split_forward(struct groups *s, int count)
{
    struct graph *g = s->g;
    const struct node n = s->at;
    vec_push(&s->whole, ((struct whole){.lse = n.out[1]}));
    for (int i = 0; i < count; i++) {
        id in[MAX_IN];
        memcpy(in, n.in, sizeof in);
        for (int k = 0; k < 3; k++) in[k] = group_of(s, n.in[k], i, count);
        const id node = graph_emit(g, n.op, &n.attr, in, n.nin);
        CHECK(node, "%s", g->error.text);
        put_heads(g, node, 0, n.out[0], i);
        s->whole.at[s->whole.n - 1].part[i] = node_at(g, node)->out[1];
    }
}

static void split_backward(struct groups *s, const struct whole *whole, int count)
{
    enum { DO, Q, K, V, O, LSE };
    struct graph *g = s->g;
    const struct node n = s->at;
    for (int i = 0; i < count; i++) {
        id in[MAX_IN];
        memcpy(in, n.in, sizeof in);
        g->at.phase = PHASE_RECOMPUTE;
        for (int k = Q; k <= V; k++) in[k] = group_of(s, n.in[k], i, count);
        g->at.phase = n.phase;
        for (int k = DO; k <= O; k += O - DO)
            in[k] = op_slice(g, n.in[k], HEADS, i * (tensor_at(g, n.in[k])->dim[HEADS] / count),
                             tensor_at(g, n.in[k])->dim[HEADS] / count);
        in[LSE] = whole->part[i];
        const id node = graph_emit(g, n.op, &n.attr, in, n.nin);
        CHECK(node, "%s", g->error.text);
        for (int o = 0; o < 3; o++) put_heads(g, node, o, n.out[o], i);
    }
}

/* Reports whether the log-sum-exp is read by gradients only, which are split too. */
static bool is_private(const struct groups *s, const struct order *order, id lse)
{
    uint32_t gradients = 0;
    for (uint32_t k = 0; k < order->nodes.n; k++) {
        const struct node *n = node_at(s->g, order->nodes.at[k]);
        gradients += n->op == OP_ATTENTION_BWD && n->in[5] == lse;
    }
    return gradients == s->readers[lse];
}

static const struct whole *find_whole(const struct groups *s, id lse)
{
    for (uint32_t i = 0; i < s->whole.n; i++)
        if (s->whole.at[i].lse == lse) return &s->whole.at[i];
    return NULL;
}

/* Splits a node, if it is an attention of several groups in a block. */
static bool split(struct groups *s, const struct order *order, id node)
{
    struct graph *g = s->g;
    const struct node n = s->at = *node_at(g, node);
    const bool backward = n.op == OP_ATTENTION_BWD;
    if ((n.op != OP_ATTENTION && !backward) || !graph_block_of(g, n.scope)) return false;
    const int count = count_groups(s, n.in[backward ? 2 : 1]);
    const struct whole *whole = backward ? find_whole(s, n.in[5]) : NULL;
    if (count < 2 || (backward ? !whole : !is_private(s, order, n.out[1]))) return false;
    g->at.phase = n.phase;
    g->at.scope = n.scope;
    g->at.loop = n.loop;
    g->at.origin = n.origin;
    if (backward) split_backward(s, whole, count);
    else split_forward(s, count);
    return true;
}

static void split_program(struct groups *s, enum program p)
{
    struct graph *g = s->g;
    struct order *order = &g->order[p], old = *order;
    const struct cursor before = graph_move(g, p, PHASE_FORWARD, "attention_chunks");
    bool any = false;
    s->tensors = g->tensors.n;
    s->readers = readers_by_tensor(g, p);
    *order = (struct order){0};
    for (uint32_t k = 0; k < old.nodes.n; k++) {
        if (split(s, &old, old.nodes.at[k])) any = true;
        else vec_push(&order->nodes, old.nodes.at[k]);
    }
    g->at = before;
    if (any) graph_prune(g, p);
    vec_free(&old.nodes);
    vec_free(&s->whole);
    mem_free(s->readers);
}

int64_t attention_chunks_most(struct graph *g, const struct settings *s)
{
    bool any = false;
    for (uint32_t k = 0; k < g->order[PROGRAM_STEP].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[PROGRAM_STEP].nodes.at[k]);
        any |= n->op == OP_ATTENTION && graph_block_of(g, n->scope) && tensor_at(g, n->in[0])->dim[1] >= LONG_ROW;
    }
    return any ? (int64_t)GROUPS * s->micro_batch : 0;
}

void pass_attention_chunks(struct graph *g, const struct settings *settings)
{
    struct groups s = {.g = g, .chunks = settings->attention_chunks};
    if (s.chunks <= 1) return;
    FOR_PROGRAMS(p, PROGRAM_FORWARD)
        if (!program_is(p, PROGRAM_GENERATES)) split_program(&s, p);
}

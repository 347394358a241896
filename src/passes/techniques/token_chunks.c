/*
 * token_chunks.c: computes what is local to a token in chunks of the tokens, so that the wide
 * tensors of a block (the MLP's, and what its projections and norms make) exist for one chunk at a
 * time.
 *
 *     forward    x ─ norm ─ q, k, v ─ ATTENTION ─ o, add, norm, gate, up, down, add ─ x'
 *     becomes    loop { x[c] ─ norm ─ q[c], k[c], v[c] }
 *                ATTENTION
 *                loop { o[c] ─ add, norm, gate, up, down, add ─ x'[c] }
 *
 * The pass runs when forward, recomputation and backward are there, and does not tell one from the
 * other: a region is a run of nodes of one block, all of them local to a token (OPF_LOCAL of
 * ops.def), and becomes a loop over slices of the tensors that come from outside. A tensor that
 * leaves it is written slice by slice. The recomputation of an MLP and its backward follow each
 * other and are one region. A sum over tokens, such as the gradient of a weight, is carried; a node
 * of the run that does not depend on tokens stays as it is, before the loop or, if it reads such a
 * sum, after it. If the tokens are not divisible by the chunks, the last, smaller chunk is a loop
 * of its own.
 *
 *     backward   recomputed to attention | loop { norm, gate, up; backward of these } | ...
 *
 * What was recomputed for one region and is read in another one is recomputed there again, instead
 * of being kept for all tokens in between.
 *
 * Products are computed as for all tokens (struct portion), and a rotation or a dropout knows the
 * first token of its chunk (loop.first): rows have the same bits. A sum over tokens is one of
 * sums over chunks.
 */
#include "graph/ops.h"
#include "graph/rules.h"
#include "passes/passes.h"
#include "passes/uses.h"

/* What a tensor that the region makes is: not made by it, tokens, a sum over tokens, or what
 * follows from sums. */
enum role { OUTSIDE, TOKENS, SUM, LATER };
/* Where a node of the run is: before the loop, in it, after it; or it ends the region. */
enum place { BEFORE, INSIDE, AFTER, END };
/* How nodes of the region access a storage. */
enum { READ = 1, WRITTEN = 2, READ_LATER = 4, WRITTEN_LATER = 8 };

typedef VEC(id) ids;

struct chunker {
    struct graph *g;
    enum program program;
    int chunks;
    id *nodes;               /* the program's original order */
    uint32_t count, tensors;
    bool *from_batch;        /* by tensor (uses.h) */
    uint32_t *uses;          /* by storage: accesses in the program; 1 more for what is read elsewhere */
    id *after;               /* by tensor: the sum that it became; 0: itself */

    int64_t tokens, chunk;   /* of the run of one block; tokens of a chunk */
    int64_t row;             /* tokens of a sample; 0: not known */
    ids before, inside, later; /* the region's nodes */
    uint8_t *role;           /* by tensor */
    uint8_t *access;         /* by storage */
    uint32_t *inner;         /* by storage: accesses of nodes inside */
    ids storages;            /* those with accesses of the region */

    id loop;                 /* of the chunk that is emitted... */
    int64_t first, length;   /* ...its tokens */
    id *map;                 /* by tensor: in that chunk; 0: not yet */
    id *whole;               /* by tensor from outside: a copy that can be sliced; 0: none */
    ids mapped;              /* tensors with an entry in one of the two */
    struct bump memory;
};

/* --- tokens of a tensor --------------------------------------------------------------------- */

/* Where a tensor counts tokens: its leading dimensions up to `axis` are `per` entries of each. */
struct along {
    int axis;
    int64_t per;
};

/* Finds where a tensor counts tokens. Returns false if it has no entries for each, or if they are
 * not equally far apart. */
static bool find_tokens(const struct chunker *c, const struct tensor *x, struct along *a)
{
    int64_t n = 1;
    for (int i = 0; i < x->rank; i++) {
        if (i && n > 1 && x->dim[i] > 1 && x->stride[i - 1] != x->stride[i] * x->dim[i]) return false;
        n *= x->dim[i];
        if (n % c->tokens) continue;
        *a = (struct along){i, n / c->tokens};
        return true;
    }
    return false;
}

/* Sets the shape of a tensor's first `n` tokens. */
static void shorten(struct tensor *x, struct along a, int64_t n)
{
    x->dim[a.axis] = n * a.per;
    for (int i = a.axis; i-- > 0;) {
        x->dim[i] = 1;
        x->stride[i] = x->stride[i + 1] * x->dim[i + 1];
    }
}

/* Reports whether `t` has an entry for each token: the region made it so, or it comes from the
 * batch and has the shape. */
static bool has_tokens(const struct chunker *c, id t)
{
    struct along a;
    if (!t || c->role[t]) return t && c->role[t] == TOKENS;
    return c->from_batch[t] && find_tokens(c, tensor_at(c->g, t), &a);
}

/* --- operands of a node --------------------------------------------------------------------- */

/* Reports whether operand i of a broadcast has entries for each token: its dimension there is that
 * of the result, which it has from the last dimension on. */
static bool broadcasts_tokens(const struct chunker *c, const struct node *n, int i)
{
    const struct tensor *x = tensor_at(c->g, n->in[i]), *y = tensor_at(c->g, n->out[0]);
    struct along a, b;
    if (!find_tokens(c, y, &a)) return false;
    const int axis = a.axis - (y->rank - x->rank);
    return axis >= 0 && x->dim[axis] == y->dim[a.axis] && find_tokens(c, x, &b) && b.axis == axis;
}

/* Reports whether the node reads input i token by token; else all chunks share it. */
static bool is_sliced(const struct chunker *c, const struct node *n, int i)
{
    switch (n->op) {
    case OP_LINEAR:
    case OP_LINEAR_ACT: return i == 0 || i == 3;
    case OP_MATMUL: return i == 0 || (i == 1 ? n->attr.matmul.ta : !n->attr.matmul.ta);
    case OP_ACCUMULATE:
    case OP_COPY: return true;
    case OP_ADD:
    case OP_MUL: return broadcasts_tokens(c, n, i);
    case OP_SUM_TO: return i == 0;
    }
    return has_tokens(c, n->in[i]);
}

/* Reports whether the node computes token by token, if its shapes allow it. Rows of several samples
 * do not tell the position of a token. */
static bool is_local(const struct chunker *c, const struct node *n)
{
    const struct op_row *row = &op_table[n->op];
    const struct tensor *x = n->nin && n->in[0] ? tensor_at(c->g, n->in[0]) : NULL;
    struct along a;
    if (!x || row->flags & OPF_EFFECT || !(row->flags & (OPF_LOCAL | OPF_VIEW)) || n->lane) return false;
    /* what is computed of a token has a dimension of its own */
    if (!(row->flags & OPF_VIEW) && find_tokens(c, x, &a) && a.axis == x->rank - 1) return false;
    const int positions = n->op == OP_ROPE ? 2 : n->op == OP_RMSNORM_ROPE ? 3 : n->op == OP_RMSNORM_ROPE_BWD ? 5 : 0;
    const bool placed = (positions && (n->nin <= positions || !n->in[positions])) || n->op == OP_DROPOUT;
    return !placed || x->dim[0] == 1;
}

/* Reports whether a view or a concatenation leaves the tokens where they are. */
static bool keeps_tokens(const struct chunker *c, const struct node *n)
{
    struct along x, y;
    if (n->op == OP_SLICE) return find_tokens(c, tensor_at(c->g, n->in[0]), &x) && n->attr.slice.axis > x.axis;
    if (n->op != OP_CONCAT && n->op != OP_PAD) return true;
    if (!find_tokens(c, tensor_at(c->g, n->out[0]), &y)) return false;
    if (n->op == OP_CONCAT) return n->attr.concat.axis > y.axis;
    for (int i = 0; i <= y.axis; i++)
        if (n->attr.pad.before[i] || n->attr.pad.after[i]) return false;
    return true;
}

/* Fits the shape that an attribute holds to a chunk. */
static void fit_attr(const struct chunker *c, const struct node *n, union attr *attr)
{
    struct tensor y = *tensor_at(c->g, n->out[0]);
    struct along a;
    if (n->op == OP_RESHAPE || n->op == OP_DETACH) {
        if (!find_tokens(c, &y, &a)) return;
        shorten(&y, a, c->length);
        memcpy(attr->reshape.dim, y.dim, sizeof attr->reshape.dim);
    } else if (n->op == OP_SUM_TO && find_tokens(c, tensor_at(c->g, n->in[0]), &a)) {
        a.axis -= tensor_at(c->g, n->in[0])->rank - y.rank;
        if (a.axis < 0 || y.dim[a.axis] == 1) return;
        shorten(&y, a, c->length);
        memcpy(attr->sum_to.dim, y.dim, sizeof attr->sum_to.dim);
    }
}

/* Infers the node for a chunk, without what it adds to. Returns false if that is not possible. */
static bool infer_chunk(const struct chunker *c, const struct node *n, struct infer *f, union attr *attr,
                        struct tensor in[MAX_IN])
{
    bool any = false;
    *attr = n->attr;
    fit_attr(c, n, attr);
    *f = (struct infer){.op = n->op, .attr = attr, .nin = n->nin};
    for (int i = 0; i < n->nin; i++) {
        struct along a;
        if (!n->in[i] || (op_table[n->op].flags & OPF_ACCUM && op_must_alias(n, 0) == i)) continue;
        in[i] = *tensor_at(c->g, n->in[i]);
        f->in[i] = &in[i];
        const bool sliced = is_sliced(c, n, i);
        if (!sliced && c->role[n->in[i]] == TOKENS) return false;
        if (!sliced) continue;
        if (!find_tokens(c, &in[i], &a)) return false;
        any |= has_tokens(c, n->in[i]);
        shorten(&in[i], a, c->length);
    }
    if (!any || (!has_tokens(c, n->in[0]) && (n->op == OP_LINEAR || n->op == OP_LINEAR_ACT || n->op == OP_MATMUL)))
        return false;
    op_infer(f);
    return !f->error[0];
}

static bool same_dims(const struct tensor *a, const struct tensor *b)
{
    return a->rank == b->rank && !memcmp(a->dim, b->dim, a->rank * sizeof *a->dim);
}

/* Returns the role of an output that inference gives for a chunk; OUTSIDE: it is neither. */
static enum role role_of(const struct chunker *c, const struct node *n, int o, const struct tensor *chunk)
{
    struct tensor y = *tensor_at(c->g, n->out[o]);
    struct along a;
    if (!(op_table[n->op].flags & OPF_VIEW) && same_dims(&y, chunk)) return dtype_is_float(y.dtype) ? SUM : OUTSIDE;
    if (!find_tokens(c, &y, &a)) return OUTSIDE;
    shorten(&y, a, c->length);
    return same_dims(&y, chunk) ? TOKENS : OUTSIDE;
}

/* Finds the roles of a node's outputs. Returns false if it cannot be computed chunk by chunk. */
static bool find_roles(const struct chunker *c, const struct node *n, enum role role[MAX_OUT])
{
    struct infer f;
    struct tensor in[MAX_IN];
    union attr attr;
    if (!is_local(c, n) || !keeps_tokens(c, n) || !infer_chunk(c, n, &f, &attr, in)) return false;
    for (int o = 0; o < n->nout; o++) {
        role[o] = n->out[o] ? role_of(c, n, o, &f.out[o]) : OUTSIDE;
        if (n->out[o] && !role[o]) return false;
    }
    return true;
}

/* --- the region ----------------------------------------------------------------------------- */

static const struct node *node_of(const struct chunker *c, uint32_t k) { return node_at(c->g, c->nodes[k]); }

static id storage_at(const struct chunker *c, id t) { return tensor_at(c->g, t)->storage; }

static void note_access(struct chunker *c, const struct node *n, bool later)
{
    const bool view = op_table[n->op].flags & OPF_VIEW;
    for (int i = 0; i < n->nin + n->nout; i++) {
        const id t = i < n->nin ? n->in[i] : n->out[i - n->nin], s = t ? storage_at(c, t) : 0;
        if (!s) continue;
        if (!c->access[s] && !c->inner[s]) vec_push(&c->storages, s);
        const unsigned how = i < n->nin || view ? READ : WRITTEN;
        c->access[s] |= later ? how * READ_LATER : how;
        c->inner[s] += !later;
    }
}

/* Reports whether the node writes what accesses of this kind have read or written, or reads what
 * they have written. */
static bool conflicts(const struct chunker *c, const struct node *n, unsigned unit)
{
    const bool view = op_table[n->op].flags & OPF_VIEW;
    for (int i = 0; i < n->nin + n->nout; i++) {
        const id t = i < n->nin ? n->in[i] : n->out[i - n->nin];
        const unsigned seen = t ? c->access[storage_at(c, t)] / unit & 3 : 0;
        if (seen & WRITTEN || (seen && i >= n->nin && !view)) return true;
    }
    return false;
}

/* Returns the place of a node that follows the region so far, with the roles of its outputs. */
static enum place place_of(const struct chunker *c, const struct node *n, enum role role[MAX_OUT])
{
    bool tokens = false, later = false;
    for (int i = 0; i < n->nin; i++) {
        tokens |= c->role[n->in[i]] == TOKENS;
        later |= c->role[n->in[i]] > TOKENS;
    }
    if (op_table[n->op].flags & (OPF_EFFECT | OPF_COMM)) return END;
    if (find_roles(c, n, role)) return later || conflicts(c, n, READ_LATER) ? END : INSIDE;
    if (tokens) return END;
    return later || conflicts(c, n, READ) || conflicts(c, n, READ_LATER) ? AFTER : BEFORE;
}

static void add_node(struct chunker *c, id node, enum place place, const enum role role[MAX_OUT])
{
    const struct node *n = node_at(c->g, node);
    ids *to = place == BEFORE ? &c->before : place == INSIDE ? &c->inside : &c->later;
    vec_push(to, node);
    if (place != BEFORE) note_access(c, n, place == AFTER);
    for (int o = 0; o < n->nout; o++)
        if (n->out[o] && place != BEFORE) c->role[n->out[o]] = place == AFTER ? LATER : role[o];
}

static bool is_product(const struct node *n)
{
    return n->op == OP_LINEAR || n->op == OP_LINEAR_ACT || n->op == OP_MATMUL;
}

/* Reports whether the storage of a tensor is accessed outside of the loop. */
static bool leaves(const struct chunker *c, id t)
{
    const id s = storage_at(c, t);
    return c->uses[s] > c->inner[s] || c->g->storages.at[s].kind != KIND_ACT;
}

/* Reports whether the region is worth a loop: it has a product, and a tensor that does not leave
 * it. */
static bool is_worth(const struct chunker *c)
{
    bool product = false, inner = false;
    for (uint32_t k = 0; k < c->inside.n; k++) {
        const struct node *n = node_at(c->g, c->inside.at[k]);
        product |= is_product(n);
        for (int o = 0; o < n->nout; o++)
            inner |= n->out[o] && c->role[n->out[o]] == TOKENS && !leaves(c, n->out[o]);
    }
    return product && inner;
}

static void clear_region(struct chunker *c)
{
    for (uint32_t k = 0; k < c->storages.n; k++) c->access[c->storages.at[k]] = 0, c->inner[c->storages.at[k]] = 0;
    for (int list = 0; list < 2; list++)
        for (uint32_t k = 0; k < (list ? c->later : c->inside).n; k++) {
            const struct node *n = node_at(c->g, (list ? c->later : c->inside).at[k]);
            for (int o = 0; o < n->nout; o++) c->role[n->out[o]] = OUTSIDE;
        }
    c->storages.n = c->before.n = c->inside.n = c->later.n = 0;
}

/* --- emitting a chunk ----------------------------------------------------------------------- */

static void set_map(struct chunker *c, id *map, id t, id to)
{
    if (!map[t]) vec_push(&c->mapped, t);
    map[t] = to;
}

/* Returns the view of the chunk on a tensor of all tokens. */
static id slice_of(struct chunker *c, id t)
{
    struct tensor x = *tensor_at(c->g, t);
    struct along a;
    CHECK(find_tokens(c, &x, &a), "%s has no tokens", graph_name(c->g, x.name));
    const int64_t step = a.per * x.stride[a.axis] * (int64_t)dtype_size(x.dtype);
    shorten(&x, a, c->length);
    x.offset += (uint64_t)(c->first * step);
    x.loop = c->first ? 0 : c->loop;
    x.advance = c->first ? 0 : c->length * step;
    vec_push(&c->g->tensors, x);
    return c->g->tensors.n - 1;
}

static id now(const struct chunker *c, id t) { return t < c->tensors && c->after[t] ? c->after[t] : t; }

/* Copies, before the loop, the tensors that it slices and that another loop slices too. */
static void copy_sliced(struct chunker *c)
{
    struct graph *g = c->g;
    for (uint32_t k = 0; k < c->inside.n; k++) {
        const struct node n = *node_at(g, c->inside.at[k]);
        for (int i = 0; i < n.nin; i++) {
            const id t = n.in[i];
            if (!t || c->role[t] || c->whole[t] || !tensor_at(g, t)->loop || !is_sliced(c, &n, i)) continue;
            g->at.scope = n.scope;
            g->at.phase = n.phase;
            set_map(c, c->whole, t, op_copy(g, t, SPACE_DEVICE));
        }
    }
}

/* Returns input i of a node for the chunk. */
static id input_of(struct chunker *c, const struct node *n, int i)
{
    const id t = n->in[i];
    if (!t || c->map[t]) return t ? c->map[t] : 0;
    const bool sums = op_table[n->op].flags & OPF_ACCUM && op_must_alias(n, 0) == i && c->role[n->out[0]] == SUM;
    if (sums || !is_sliced(c, n, i)) return now(c, t);
    set_map(c, c->map, t, slice_of(c, c->whole[t] ? c->whole[t] : now(c, t)));
    return c->map[t];
}

/* Reports whether a sum is read at all. */
static bool is_read(const struct chunker *c, id t)
{
    return c->uses[storage_at(c, t)] > 1 || c->g->storages.at[storage_at(c, t)].kind != KIND_ACT;
}

/* Fills the sums of the region with 0, before the loop, where the node has nothing to add to. */
static void begin_sums(struct chunker *c)
{
    struct graph *g = c->g;
    for (uint32_t k = 0; k < c->inside.n; k++) {
        const struct node n = *node_at(g, c->inside.at[k]);
        for (int o = 0; o < n.nout; o++) {
            if (!n.out[o] || c->role[n.out[o]] != SUM || op_must_alias(&n, o) >= 0 || !is_read(c, n.out[o])) continue;
            const struct tensor y = *tensor_at(g, n.out[o]);
            g->at.scope = n.scope;
            g->at.phase = n.phase;
            const id zero = op_fill(g, y.dtype, y.rank, y.dim, 0);
            graph_redirect(g, zero, n.out[o]);
            c->after[n.out[o]] = zero;
        }
    }
}

/* Lets the chunk's output be a slice of the tensor of all tokens, where that leaves the region;
 * adds what a node without accumulator sums. */
static void put_output(struct chunker *c, const struct node *old, int o, id node)
{
    struct graph *g = c->g;
    const id t = old->out[o], y = node_at(g, node)->out[o];
    const bool aliased = op_table[old->op].flags & OPF_VIEW || op_must_alias(node_at(g, node), o) >= 0;
    if (c->role[t] == TOKENS) {
        if (!aliased && leaves(c, t)) {
            const struct tensor slice = *tensor_at(g, slice_of(c, t));
            struct tensor *x = tensor_at(g, y);
            x->storage = slice.storage, x->offset = slice.offset, x->loop = slice.loop, x->advance = slice.advance;
            memcpy(x->stride, slice.stride, sizeof x->stride);
        }
        tensor_at(g, t)->node = node;
        set_map(c, c->map, t, y);
    } else if (op_must_alias(node_at(g, node), o) >= 0) {
        c->after[t] = y;
    } else if (c->after[t]) {
        c->after[t] = op_accumulate(g, y, c->after[t]);
    }
}

static void emit_node(struct chunker *c, id node)
{
    struct graph *g = c->g;
    const struct node n = *node_at(g, node);
    union attr attr = n.attr;
    id in[MAX_IN] = {0};
    int nin = n.nin;
    fit_attr(c, &n, &attr);
    for (int i = 0; i < n.nin; i++) in[i] = input_of(c, &n, i);
    const int slot = op_table[n.op].max_in - 1;
    if (op_table[n.op].flags & OPF_ACCUM && c->role[n.out[0]] == SUM && c->after[n.out[0]]) {
        in[slot] = c->after[n.out[0]];
        nin = slot + 1;
    }
    g->at.phase = n.phase;
    g->at.scope = n.scope;
    g->at.origin = n.origin;
    const id chunk = graph_emit(g, n.op, &attr, in, nin);
    CHECK(chunk, "%s", g->error.text);
    for (int o = 0; o < n.nout; o++) {
        if (n.out[o]) put_output(c, &n, o, chunk);
        else node_at(g, chunk)->out[o] = 0;
    }
}

/* Emits `trip` chunks of `length` tokens from `first` on. */
static void emit_loop(struct chunker *c, uint32_t trip, int64_t first, int64_t length)
{
    struct graph *g = c->g;
    const id around = g->at.loop;
    c->loop = g->at.loop = graph_loop(g, "tokens", trip);
    g->loops.at[c->loop].tokens = true;
    g->loops.at[c->loop].first = (uint32_t)first;
    g->loops.at[c->loop].row = (uint32_t)c->row;
    g->loops.at[c->loop].portion = (struct portion){(uint32_t)length, (uint32_t)c->tokens};
    c->first = first;
    c->length = length;
    for (uint32_t k = 0; k < c->inside.n; k++) emit_node(c, c->inside.at[k]);
    g->at.loop = around;
    for (uint32_t k = 0; k < c->mapped.n; k++) c->map[c->mapped.at[k]] = 0;
}

static void push_nodes(struct chunker *c, const id *nodes, uint32_t n)
{
    for (uint32_t k = 0; k < n; k++) vec_push(&c->g->order[c->program].nodes, nodes[k]);
}

/* Emits the region, which is the nodes from position `from` to before `to`. */
static void emit_region(struct chunker *c, uint32_t from, uint32_t to)
{
    struct graph *g = c->g;
    const struct cursor before = g->at;
    if (is_worth(c)) {
        const uint32_t trip = (uint32_t)(c->tokens / c->chunk);
        push_nodes(c, c->before.at, c->before.n);
        g->at.loop = node_of(c, from)->loop;
        copy_sliced(c);
        begin_sums(c);
        emit_loop(c, trip, 0, c->chunk);
        if (trip * c->chunk < c->tokens) emit_loop(c, 1, trip * c->chunk, c->tokens - trip * c->chunk);
        g->at = before;
        for (uint32_t k = 0; k < c->mapped.n; k++) c->whole[c->mapped.at[k]] = 0;
        c->mapped.n = 0;
        push_nodes(c, c->later.at, c->later.n);
    } else push_nodes(c, c->nodes + from, to - from);
    clear_region(c);
}

/* --- nodes where they are read -----------------------------------------------------------------
 *
 * What is not local, attention, divides the run of a block into parts. A node whose results are
 * first read in a later part moves there, to be in the region of its readers: the gradient of what
 * the MLP's last product reads comes before the recomputation that the rest of the backward needs.
 *
 * The recomputation of a block comes before its backward. What it makes for several parts, such as
 * the input of q, k and v, is recomputed in each. Narrow results, such as statistics, are kept. */

enum { NARROW = 32 }; /* numbers of a token */

struct repeats {
    struct chunker *c;
    uint32_t *part;          /* by node: the part of the block's run that it is in; 0: no local node of it */
    uint32_t here;           /* the part that is being copied */
    id *copy;                /* by tensor: its repetition there */
    ids copied;
};

/* Returns the node that makes `t` in an earlier part, if it is repeated; 0: `t` is read as it
 * is. */
static id repeated_node(const struct repeats *r, id t)
{
    const struct graph *g = r->c->g;
    const id made = t < r->c->tensors ? tensor_at(g, t)->node : 0;
    const struct node *n = node_at(g, made);
    struct along a;
    bool output = false;
    for (int o = 0; made && o < n->nout; o++) {
        if (n->out[o] && op_must_alias(n, o) >= 0) return 0;
        output |= n->out[o] == t;
    }
    if (!output || n->phase != PHASE_RECOMPUTE || !r->part[made] || r->part[made] == r->here) return 0;
    if (!find_tokens(r->c, tensor_at(g, t), &a)) return 0;
    return tensor_elements(tensor_at(g, t)) / r->c->tokens > NARROW ? made : 0;
}

/* Returns `t`, or its repetition, which is emitted with those of its inputs. */
static id repeat_here(struct repeats *r, id t)
{
    struct graph *g = r->c->g;
    const id made = t && !r->copy[t] ? repeated_node(r, t) : 0;
    if (!made) return t && r->copy[t] ? r->copy[t] : t;
    struct node n = *node_at(g, made);
    for (int i = 0; i < n.nin; i++) n.in[i] = repeat_here(r, n.in[i]);
    g->at.phase = PHASE_RECOMPUTE;
    g->at.scope = n.scope;
    g->at.loop = n.loop;
    g->at.origin = n.origin;
    const id node = graph_emit(g, n.op, &n.attr, n.in, n.nin);
    CHECK(node, "the repetition of a valid node is not valid");
    for (int o = 0; o < n.nout; o++) {
        if (!n.out[o]) node_at(g, node)->out[o] = 0;
        else if (!r->copy[n.out[o]]) vec_push(&r->copied, n.out[o]), r->copy[n.out[o]] = node_at(g, node)->out[o];
    }
    return r->copy[t];
}

/* Reports whether the later of two nodes reads or writes what the first one makes, or writes what
 * it reads. */
static bool must_follow(const struct chunker *c, const struct node *first, const struct node *later)
{
    for (int i = 0; i < later->nin + later->nout; i++) {
        const id t = i < later->nin ? later->in[i] : later->out[i - later->nin], s = t ? storage_at(c, t) : 0;
        for (int o = 0; o < first->nout && s; o++)
            if (first->out[o] && storage_at(c, first->out[o]) == s) return true;
        for (int k = 0; k < first->nin && s && i >= later->nin && !(op_table[later->op].flags & OPF_VIEW); k++)
            if (first->in[k] && storage_at(c, first->in[k]) == s) return true;
    }
    return false;
}

/* Moves the nodes of a run whose results are first read in a later part to there. */
static void move_later(struct repeats *r, uint32_t from, uint32_t to)
{
    struct chunker *c = r->c;
    for (uint32_t k = to; k-- > from;) {
        const id node = c->nodes[k];
        uint32_t at = k + 1;
        if (!r->part[node]) continue;
        while (at < to && !must_follow(c, node_at(c->g, node), node_of(c, at))) at++;
        if (at == to || r->part[c->nodes[at]] <= r->part[node]) continue;
        memmove(c->nodes + k, c->nodes + k + 1, (at - 1 - k) * sizeof *c->nodes);
        c->nodes[at - 1] = node;
        r->part[node] = r->part[c->nodes[at]];
    }
}

/* Gives each local node of a run the number of its part: a node that is not local and reads tokens
 * divides two of them. */
static void number_parts(struct repeats *r, uint32_t from, uint32_t to)
{
    uint32_t part = 1;
    for (uint32_t k = from; k < to; k++) {
        const struct node *n = node_of(r->c, k);
        enum role role[MAX_OUT];
        bool tokens = false;
        for (int i = 0; i < n->nin; i++) tokens |= has_tokens(r->c, n->in[i]);
        if (find_roles(r->c, n, role)) r->part[r->c->nodes[k]] = part;
        else part += tokens;
    }
}

/* Copies a run with the repetitions before the nodes that read them. */
static void repeat_run(struct repeats *r, uint32_t from, uint32_t to)
{
    struct graph *g = r->c->g;
    for (uint32_t k = from; k < to; k++) {
        const id node = r->c->nodes[k];
        if (r->part[node] && r->part[node] != r->here) {
            for (uint32_t i = 0; i < r->copied.n; i++) r->copy[r->copied.at[i]] = 0;
            r->copied.n = 0;
            r->here = r->part[node];
        }
        for (int i = 0; i < node_at(g, node)->nin && r->part[node]; i++) {
            const id in = repeat_here(r, node_at(g, node)->in[i]);
            node_at(g, node)->in[i] = in;
        }
        vec_push(&g->order[r->c->program].nodes, node);
    }
    for (uint32_t i = 0; i < r->copied.n; i++) r->copy[r->copied.at[i]] = 0;
    r->copied.n = 0;
}

/* --- a program ------------------------------------------------------------------------------ */

/* Returns the tokens of a sample that x has; 0: it does not tell. */
static int64_t row_of(const struct tensor *x)
{
    int64_t n = x->rank > 2 ? 1 : 0;
    for (int i = 1; i + 1 < x->rank; i++) n *= x->dim[i];
    return n;
}

/* Returns the tokens of the run that begins at position k, and where the run ends: those of its
 * first product; 0: it has none. */
static int64_t find_run(struct chunker *c, uint32_t k, uint32_t *end)
{
    const struct graph *g = c->g;
    const id loop = node_of(c, k)->loop, block = graph_block_of(g, node_of(c, k)->scope);
    int64_t tokens = 0;
    for (; k < c->count && node_of(c, k)->loop == loop && graph_block_of(g, node_of(c, k)->scope) == block; k++) {
        const struct node *n = node_of(c, k);
        if (!block || tokens || !is_product(n) || !c->from_batch[n->in[0]]) continue;
        tokens = tensor_rows(tensor_at(g, n->in[0]));
        c->row = row_of(tensor_at(g, n->in[0]));
    }
    *end = k;
    return tokens;
}

/* Sets the size of a chunk: whole tiles of a product where they are large, or where rows are whole
 * tiles, as a sum of numbers in e4m3 has them (operands.c). */
static bool set_chunk(struct chunker *c, int64_t tokens)
{
    enum { TILE = 128 };
    c->tokens = tokens;
    c->chunk = ceil_div(tokens, c->chunks);
    if (c->chunk > TILE || (c->row && c->row % TILE == 0)) c->chunk = ceil_div(c->chunk, TILE) * TILE;
    c->length = c->chunk;
    return tokens > 1 && c->chunk < tokens;
}

/* Rewrites the run from position `from` to before `to`, region by region. */
static void rewrite_run(struct chunker *c, uint32_t from, uint32_t to)
{
    uint32_t begin = from; /* of the region */
    for (uint32_t k = from; k < to; k++) {
        enum role role[MAX_OUT];
        enum place place = place_of(c, node_of(c, k), role);
        if (place == END && c->inside.n) {
            emit_region(c, begin, k);
            place = place_of(c, node_of(c, k), role);
        }
        if (!c->inside.n && place != INSIDE) {
            push_nodes(c, c->nodes + k, 1);
            begin = k + 1;
        } else {
            if (!c->inside.n) begin = k;
            add_node(c, c->nodes[k], place, role);
        }
    }
    if (c->inside.n) emit_region(c, begin, to);
}

static void replace_sums(struct chunker *c)
{
    struct graph *g = c->g;
    for (enum program p = 0; p < PROGRAM_COUNT; p++) graph_replace_all(g, p, c->after, c->tensors);
    for (uint32_t i = 0; i < g->params.n; i++) g->params.at[i].grad = now(c, g->params.at[i].grad);
    for (uint32_t i = 0; i < g->outputs.n; i++) g->outputs.at[i].tensor = now(c, g->outputs.at[i].tensor);
}

/* Begins with the program's order as it is; it is empty then. */
static void open_chunker(struct chunker *c, struct graph *g, enum program p, int chunks)
{
    struct order *order = &g->order[p];
    *c = (struct chunker){.g = g, .program = p, .chunks = chunks, .count = order->nodes.n, .tensors = g->tensors.n};
    c->nodes = mem_copy(order->nodes.at, c->count * sizeof(id));
    c->from_batch = tensors_from_batch(g, p);
    c->uses = uses_by_storage(g, p);
    c->after = bump_alloc(&c->memory, c->tensors * sizeof(id));
    c->role = bump_alloc(&c->memory, c->tensors);
    c->map = bump_alloc(&c->memory, c->tensors * sizeof(id));
    c->whole = bump_alloc(&c->memory, c->tensors * sizeof(id));
    c->access = bump_alloc(&c->memory, g->storages.n);
    c->inner = bump_alloc(&c->memory, g->storages.n * sizeof *c->inner);
    order->nodes.n = 0;
}

static void close_chunker(struct chunker *c)
{
    vec_free(&c->before);
    vec_free(&c->inside);
    vec_free(&c->later);
    vec_free(&c->storages);
    vec_free(&c->mapped);
    mem_free(c->nodes);
    mem_free(c->from_batch);
    mem_free(c->uses);
    bump_free(&c->memory);
}

/* Calls `rewrite` for each run of a block with tokens; the rest of the order stays. */
static void for_runs(struct chunker *c, void (*rewrite)(struct chunker *c, uint32_t from, uint32_t to))
{
    for (uint32_t k = 0, end; k < c->count; k = end) {
        const int64_t tokens = find_run(c, k, &end);
        if (tokens && set_chunk(c, tokens)) rewrite(c, k, end);
        else push_nodes(c, c->nodes + k, end - k);
    }
}

static void repeat_recomputed(struct chunker *c, uint32_t from, uint32_t to)
{
    struct repeats r = {.c = c, .part = mem_alloc(c->g->nodes.n * sizeof *r.part), .copy = c->map};
    number_parts(&r, from, to);
    move_later(&r, from, to);
    repeat_run(&r, from, to);
    vec_free(&r.copied);
    mem_free(r.part);
}

static void chunk_program(struct graph *g, enum program p, int chunks)
{
    struct chunker c;
    const struct cursor before = graph_move(g, p, PHASE_FORWARD, "token_chunks");
    open_chunker(&c, g, p, chunks);
    for_runs(&c, repeat_recomputed);
    close_chunker(&c);
    graph_prune(g, p);
    open_chunker(&c, g, p, chunks);
    for_runs(&c, rewrite_run);
    replace_sums(&c);
    close_chunker(&c);
    g->at = before;
}

int64_t token_chunks_most(struct graph *g, const struct settings *s)
{
    int64_t most = 0;
    bool *from_batch = tensors_from_batch(g, PROGRAM_STEP);
    for (uint32_t k = 0; k < g->order[PROGRAM_STEP].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[PROGRAM_STEP].nodes.at[k]);
        if (is_product(n) && from_batch[n->in[0]] && graph_block_of(g, n->scope))
            most = max_i64(most, tensor_rows(tensor_at(g, n->in[0])));
    }
    mem_free(from_batch);
    return attention_chunks_most(g, s) ? most / TOKENS_LEAST : 0;
}

void pass_token_chunks(struct graph *g, const struct settings *s)
{
    if (s->token_chunks <= 1) return;
    FOR_PROGRAMS(p, PROGRAM_FORWARD)
        if (!program_is(p, PROGRAM_GENERATES)) chunk_program(g, p, s->token_chunks);
}

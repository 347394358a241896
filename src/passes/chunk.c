/*
 * chunk.c: a row-wise scope runs over pieces of its rows, so that what is wide
 * in it (the logits: rows x vocabulary) exists for one piece at a time.
 *
 *     hidden [R,C] ─ linear ─ logits [R,V] ─ xent ─ loss
 * becomes
 *     loop n { hidden[r..] ─ linear ─ logits [R/n,V] ─ xent ─ loss += }
 *
 * The loop walks over slices of the scope's inputs (the cut); scalars that leave
 * the scope are sums and are carried. Differentiation then puts the piece's
 * backward into the same iteration (autodiff.c). When the rows do not divide,
 * the last piece is filled up with rows of weight 0: zeros, and the label -100
 * that every loss ignores.
 *
 * Rows may come in groups. A mask decoder reads B image embeddings and B x M prompts:
 * a piece is then some images with all their prompts. With one image a piece is some
 * prompts, and what has a single row serves them all, as a weight does. Loops of the
 * scope (prompt rounds) become inner loops of the piece's.
 */
#include <string.h>

#include "graph/ops.h"
#include "passes/passes.h"

struct region {
    struct graph *g;
    enum program program;
    id *nodes;               /* the program's order before */
    uint32_t count;
    uint32_t from, to;       /* the scope's positions in it */
    int64_t rows, piece;     /* groups of rows in all, and in one piece */
    uint32_t trip;
    id loop;
    id *map;                 /* by old tensor: what stands for it inside the loop */
    id *after;               /* by old tensor: what stands for it behind the loop; 0: itself */
    id *sum;                 /* by old tensor: the accumulator of a scalar that leaves */
    bool *rowy;              /* by old tensor of the scope: its leading dimension counts rows */
    bool *given;             /* by old tensor: it comes from the step's batch, not from weights and tables alone */
};

/* --- finding the region ----------------------------------------------------------- */

static bool find_region(struct region *r)
{
    for (uint32_t k = 0; k < r->count; k++) {
        const struct node *n = node_at(r->g, r->nodes[k]);
        if (!graph_scope_is(r->g, n->scope, SCOPE_ROWS)) continue;
        if (!r->to) r->from = k;
        CHECK(!r->to || r->to == k, "a row-wise scope that is not in one piece");
        r->to = k + 1;
    }
    return r->to > r->from;
}

static bool made_inside(const struct region *r, id t)
{
    id made = tensor_at(r->g, t)->node;
    for (uint32_t k = r->from; k < r->to; k++)
        if (r->nodes[k] == made) return true;
    return false;
}

static void mark_given(struct region *r)
{
    for (uint32_t k = 0; k < r->count; k++) {
        const struct node *n = node_at(r->g, r->nodes[k]);
        bool any = false;
        for (int i = 0; i < n->nin; i++)
            if (n->in[i]) any |= r->given[n->in[i]] = r->given[n->in[i]] || storage_of(r->g, n->in[i])->kind == KIND_INPUT;
        for (int o = 0; o < n->nout; o++) r->given[n->out[o]] |= any;
    }
}

/* What the loop walks over: comes from outside and from the batch. A single row is everybody's. */
static bool is_cut(const struct region *r, id t)
{
    return t && r->given[t] && tensor_at(r->g, t)->rank && tensor_at(r->g, t)->dim[0] > 1 && !made_inside(r, t);
}

/* The groups are as many as the smallest number of rows; the piece's size follows. False:
 * nothing to gain. */
static bool measure(struct region *r, int chunks)
{
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t k = r->from; k < r->to; k++) {
            const struct node *n = node_at(r->g, r->nodes[k]);
            for (int i = 0; i < n->nin; i++) {
                if (!is_cut(r, n->in[i])) continue;
                int64_t rows = tensor_at(r->g, n->in[i])->dim[0];
                if (!pass && (!r->rows || rows < r->rows)) r->rows = rows;
                CHECK(rows % r->rows == 0 || !pass, "inputs of a row-wise scope with %lld and %lld rows", (long long)rows,
                      (long long)r->rows);
            }
        }
    if (r->rows < 2 || chunks < 2) return false;
    r->piece = (r->rows + chunks - 1) / chunks;
    r->trip = (uint32_t)((r->rows + r->piece - 1) / r->piece);
    return r->trip > 1;
}

/* --- slices -------------------------------------------------------------------------- */

/* Makes `t`'s storage hold trip * piece rows; the added rows weigh nothing. */
static void pad_rows(struct region *r, id t, bool fill)
{
    struct graph *g = r->g;
    struct tensor x = *tensor_at(g, t);
    int64_t extra = (int64_t)r->trip * r->piece - r->rows;
    if (!extra) return;
    uint64_t group = tensor_bytes(&x) / (uint64_t)r->rows;
    CHECK(tensor_is_dense(&x) && x.offset == 0, "a cut tensor that does not own its storage");
    g->storages.at[x.storage].bytes = group * (uint64_t)r->piece * r->trip;
    if (!fill) return;
    int64_t dim[MAX_RANK];
    memcpy(dim, x.dim, sizeof dim);
    dim[0] = extra * (x.dim[0] / r->rows);
    id zero = op_fill(g, x.dtype, x.rank, dim, x.dtype == DT_I32 ? -100 : 0);
    id tail = graph_view(g, t, x.dtype, x.rank, dim, NULL, group * (uint64_t)r->rows);
    graph_redirect(g, zero, tail);
}

/* The view of `t` that advances with the loop, one piece at a time. */
static id piece_of(struct region *r, id t)
{
    struct graph *g = r->g;
    struct tensor x = *tensor_at(g, t);
    uint64_t group = tensor_bytes(&x) / (uint64_t)r->rows;
    int64_t dim[MAX_RANK];
    memcpy(dim, x.dim, sizeof dim);
    dim[0] = r->piece * (x.dim[0] / r->rows);
    id slice = graph_view(g, t, x.dtype, x.rank, dim, NULL, x.offset);
    tensor_at(g, slice)->loop = r->loop;
    tensor_at(g, slice)->advance = (int64_t)(group * (uint64_t)r->piece);
    return slice;
}

/* What the loop can walk over in t's place: t, or a copy where t is a strided view, where
 * rows are to be added and t is a part of something, or where another loop will walk over
 * t: accumulation does over inputs. */
static id walkable(struct region *r, id t)
{
    const struct tensor *x = tensor_at(r->g, t);
    bool ragged = (int64_t)r->trip * r->piece != r->rows;
    bool fits = tensor_is_dense(x) && (!ragged || tensor_bytes(x) == r->g->storages.at[x->storage].bytes);
    return fits && storage_of(r->g, t)->kind != KIND_INPUT ? t : op_copy(r->g, t, SPACE_DEVICE);
}

static void cut_inputs(struct region *r)
{
    struct graph *g = r->g;
    for (uint32_t k = r->from; k < r->to; k++) {
        struct node n = *node_at(g, r->nodes[k]);
        for (int i = 0; i < n.nin; i++) {
            id t = n.in[i];
            if (!t || r->map[t] || made_inside(r, t)) continue;
            r->map[t] = t;
            if (!is_cut(r, t)) continue;
            id whole = walkable(r, t);
            pad_rows(r, whole, true);
            r->map[t] = piece_of(r, whole);
            vec_push(&g->cuts, ((struct cut){r->loop, whole, r->map[t]}));
        }
    }
}

/* --- what leaves ----------------------------------------------------------------------- */

static bool leaves(const struct region *r, id t)
{
    for (uint32_t i = 0; i < r->g->outputs.n; i++)
        if (r->g->outputs.at[i].tensor == t) return true;
    for (uint32_t k = r->to; k < r->count; k++)
        for (int i = 0; i < node_at(r->g, r->nodes[k])->nin; i++)
            if (node_at(r->g, r->nodes[k])->in[i] == t) return true;
    return false;
}

/* Scalars that leave begin at 0, before the loop. */
static void begin_sums(struct region *r)
{
    struct graph *g = r->g;
    for (uint32_t k = r->from; k < r->to; k++)
        for (int o = 0; o < node_at(g, r->nodes[k])->nout; o++) {
            id t = node_at(g, r->nodes[k])->out[o];
            if (t && tensor_at(g, t)->rank == 0 && leaves(r, t)) r->sum[t] = op_fill(g, tensor_at(g, t)->dtype, 0, NULL, 0);
        }
}

/* A scalar is a sum over pieces; anything else is gathered by rows. */
static void leave(struct region *r, id old, id piece)
{
    struct graph *g = r->g;
    if (!r->sum[old]) {
        pad_rows(r, old, false);
        tensor_at(g, old)->node = tensor_at(g, piece)->node;
        graph_redirect(g, piece, piece_of(r, old));
        return;
    }
    id sum = r->after[old] = op_accumulate(g, piece, r->sum[old]);
    for (uint32_t i = 0; i < g->outputs.n; i++)
        if (g->outputs.at[i].tensor == old) {
            g->outputs.at[i].tensor = sum;
            storage_of(g, sum)->kind = KIND_OUTPUT;
        }
}

/* --- rebuilding --------------------------------------------------------------------------- */

/* Shape rules find the shapes of a piece, but a reshape says its own: where it holds rows,
 * the first dimension larger than 1 counts them. */
static void fit_reshape(const struct region *r, union attr *attr)
{
    int i = 0;
    while (i < attr->reshape.rank && attr->reshape.dim[i] == 1) i++;
    if (i == attr->reshape.rank || attr->reshape.dim[i] < 0) return;
    attr->reshape.dim[i] = attr->reshape.dim[i] / r->rows * r->piece;
}

static bool holds_rows(const struct region *r, const struct node *n)
{
    for (int i = 0; i < n->nin; i++)
        if (n->in[i] && (r->rowy[n->in[i]] || is_cut(r, n->in[i]))) return true;
    return false;
}

/* The scope again, on pieces. */
static void emit_body(struct region *r)
{
    struct graph *g = r->g;
    for (uint32_t k = r->from; k < r->to; k++) {
        struct node n = *node_at(g, r->nodes[k]);
        id in[MAX_IN];
        for (int i = 0; i < n.nin; i++) in[i] = n.in[i] ? r->map[n.in[i]] : 0;
        bool rowy = holds_rows(r, &n);
        if (rowy && n.op == OP_RESHAPE) fit_reshape(r, &n.attr);
        if (n.loop && !g->loops.at[n.loop].parent) g->loops.at[n.loop].parent = r->loop;
        g->at.loop = n.loop ? n.loop : r->loop;
        g->at.scope = n.scope;
        g->at.origin = r->nodes[k];
        id again = graph_emit(g, n.op, &n.attr, in, n.nin);
        for (int o = 0; again && o < n.nout; o++)
            if (n.out[o]) {
                r->map[n.out[o]] = node_at(g, again)->out[o];
                r->rowy[n.out[o]] = rowy;
            }
    }
    g->at.origin = 0;
    g->at.loop = r->loop;
    for (uint32_t k = r->from; k < r->to; k++)
        for (int o = 0; o < node_at(g, r->nodes[k])->nout; o++) {
            id t = node_at(g, r->nodes[k])->out[o];
            if (t && r->map[t] && leaves(r, t)) leave(r, t, r->map[t]);
        }
    g->at.loop = 0;
}

static void append_rest(struct region *r)
{
    for (uint32_t k = r->to; k < r->count; k++) {
        struct node *n = node_at(r->g, r->nodes[k]);
        for (int i = 0; i < n->nin; i++)
            if (r->after[n->in[i]]) n->in[i] = r->after[n->in[i]];
        vec_push(&r->g->order[r->program].nodes, r->nodes[k]);
    }
}

static void chunk_program(struct graph *g, enum program p, int chunks)
{
    struct order *order = &g->order[p];
    struct region r = {.g = g, .program = p, .count = order->nodes.n};
    r.nodes = mem_copy(order->nodes.at, r.count * sizeof(id));
    r.given = mem_alloc(g->tensors.n);
    mark_given(&r);
    if (find_region(&r) && measure(&r, chunks)) {
        r.map = mem_alloc(g->tensors.n * sizeof(id));
        r.after = mem_alloc(g->tensors.n * sizeof(id));
        r.sum = mem_alloc(g->tensors.n * sizeof(id));
        r.rowy = mem_alloc(g->tensors.n);
        struct cursor before = graph_move(g, p, PHASE_FORWARD, "chunk");
        order->nodes.n = r.from;
        r.loop = graph_loop(g, "rows", r.trip);
        cut_inputs(&r);
        begin_sums(&r);
        emit_body(&r);
        append_rest(&r);
        g->at = before;
    }
    mem_free(r.nodes);
    mem_free(r.map);
    mem_free(r.after);
    mem_free(r.sum);
    mem_free(r.rowy);
    mem_free(r.given);
}

void chunk_pieces(struct graph *g, int chunks, int64_t piece[2])
{
    static const enum program programs[2] = {PROGRAM_STEP, PROGRAM_EVAL};
    for (int i = 0; i < 2; i++) {
        const struct order *order = &g->order[programs[i]];
        struct region r = {.g = g, .program = programs[i], .nodes = order->nodes.at, .count = order->nodes.n, .given = mem_alloc(g->tensors.n)};
        mark_given(&r);
        piece[i] = find_region(&r) && measure(&r, chunks) ? r.piece : 0;
        mem_free(r.given);
    }
}

void pass_chunk(struct graph *g, const struct settings *s)
{
    chunk_program(g, PROGRAM_STEP, s->head_chunks);
    chunk_program(g, PROGRAM_EVAL, s->head_chunks);
}

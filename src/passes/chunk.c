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
 */
#include <string.h>

#include "graph/ops.h"
#include "passes/passes.h"

struct region {
    struct graph *g;
    enum program program;
    uint32_t from, to;       /* positions in the order */
    int64_t rows, piece;     /* rows in all, rows in one piece */
    uint32_t trip;
    id loop;
    id *map;                 /* by old tensor: what stands for it inside the loop */
    id *after;               /* by old tensor: what stands for it behind the loop; 0: itself */
    uint32_t tensors;
};

static bool inside(const struct region *r, id node)
{
    for (uint32_t k = r->from; k < r->to; k++)
        if (r->g->order[r->program].nodes.at[k] == node) return true;
    return false;
}

static bool find_region(struct region *r)
{
    const struct order *order = &r->g->order[r->program];
    r->from = r->to = 0;
    for (uint32_t k = 0; k < order->nodes.n; k++) {
        const struct node *n = node_at(r->g, order->nodes.at[k]);
        if (!(r->g->scopes.at[n->scope].flags & SCOPE_ROWS)) continue;
        if (!r->to) r->from = k;
        CHECK(!r->to || r->to == k, "a row-wise scope that is not in one piece");
        r->to = k + 1;
    }
    return r->to > r->from;
}

/* The piece's size comes from the first input that is cut. */
static bool measure(struct region *r, int chunks)
{
    r->rows = 0;
    for (uint32_t k = r->from; k < r->to; k++) {
        const struct node *n = node_at(r->g, r->g->order[r->program].nodes.at[k]);
        for (int i = 0; i < n->nin; i++) {
            if (!n->in[i] || kind_is_persistent(storage_of(r->g, n->in[i])->kind)) continue;
            id made = tensor_at(r->g, n->in[i])->node;
            if (inside(r, made)) continue;
            int64_t rows = tensor_at(r->g, n->in[i])->dim[0];
            CHECK(!r->rows || r->rows == rows, "inputs of a row-wise scope differ in rows");
            r->rows = rows;
        }
    }
    if (r->rows < 2 || chunks < 2) return false;
    r->piece = (r->rows + chunks - 1) / chunks;
    r->trip = (uint32_t)((r->rows + r->piece - 1) / r->piece);
    return r->trip > 1;
}

/* Makes `t`'s storage hold trip * piece rows; the added rows weigh nothing. */
static void pad_rows(struct region *r, id t, bool fill)
{
    struct graph *g = r->g;
    struct tensor x = *tensor_at(g, t);
    int64_t extra = (int64_t)r->trip * r->piece - r->rows;
    if (!extra) return;
    uint64_t row = tensor_bytes(&x) / (uint64_t)r->rows;
    CHECK(tensor_is_dense(&x) && x.offset == 0, "a cut tensor that does not own its storage");
    g->storages.at[x.storage].bytes = row * (uint64_t)r->piece * r->trip;
    if (!fill) return;
    int64_t dim[MAX_RANK];
    memcpy(dim, x.dim, sizeof dim);
    dim[0] = extra;
    id zero = op_fill(g, x.dtype, x.rank, dim, dtype_is_float(x.dtype) ? 0 : -100);
    id tail = graph_view(g, t, x.dtype, x.rank, dim, NULL, row * (uint64_t)r->rows);
    graph_redirect(g, zero, tail);
}

/* The view of `t` that advances with the loop, one piece at a time. */
static id piece_of(struct region *r, id t)
{
    struct graph *g = r->g;
    struct tensor x = *tensor_at(g, t);
    uint64_t row = tensor_bytes(&x) / (uint64_t)x.dim[0];
    int64_t dim[MAX_RANK];
    memcpy(dim, x.dim, sizeof dim);
    dim[0] = r->piece;
    id slice = graph_view(g, t, x.dtype, x.rank, dim, NULL, x.offset);
    tensor_at(g, slice)->loop = r->loop;
    tensor_at(g, slice)->advance = (int64_t)(row * (uint64_t)r->piece);
    return slice;
}

static void cut_inputs(struct region *r, const id *nodes)
{
    struct graph *g = r->g;
    for (uint32_t k = r->from; k < r->to; k++) {
        struct node n = *node_at(g, nodes[k]);
        for (int i = 0; i < n.nin; i++) {
            id t = n.in[i];
            if (!t || r->map[t]) continue;
            id made = tensor_at(g, t)->node;
            bool mine = false;
            for (uint32_t j = r->from; j < r->to; j++) mine |= nodes[j] == made;
            if (mine) continue;
            r->map[t] = t;
            if (kind_is_persistent(storage_of(g, t)->kind)) continue;
            pad_rows(r, t, true);
            r->map[t] = piece_of(r, t);
            vec_push(&g->cuts, ((struct cut){r->loop, t, r->map[t]}));
        }
    }
}

static bool leaves(const struct region *r, id t, const id *nodes, uint32_t count)
{
    for (uint32_t i = 0; i < r->g->outputs.n; i++)
        if (r->g->outputs.at[i].tensor == t) return true;
    for (uint32_t k = r->to; k < count; k++)
        for (int i = 0; i < node_at(r->g, nodes[k])->nin; i++)
            if (node_at(r->g, nodes[k])->in[i] == t) return true;
    return false;
}

/* A scalar that leaves is a sum over pieces; anything else is gathered by rows. */
static void leave(struct region *r, id old, id piece, id acc)
{
    struct graph *g = r->g;
    if (acc) {
        id sum = op_accumulate(g, piece, acc);
        for (uint32_t i = 0; i < g->outputs.n; i++)
            if (g->outputs.at[i].tensor == old) {
                g->outputs.at[i].tensor = sum;
                storage_of(g, sum)->kind = KIND_OUTPUT;
            }
        r->after[old] = sum;
        return;
    }
    pad_rows(r, old, false);
    id target = piece_of(r, old);
    id made = tensor_at(g, piece)->node;
    graph_redirect(g, piece, target);
    tensor_at(g, old)->node = made;
}

static void chunk_program(struct graph *g, enum program p, int chunks)
{
    struct region r = {.g = g, .program = p};
    if (!find_region(&r) || !measure(&r, chunks)) return;
    struct order *order = &g->order[p];
    uint32_t count = order->nodes.n;
    id *nodes = mem_copy(order->nodes.at, count * sizeof(id)), scope = g->scope;
    r.tensors = g->tensors.n;
    r.map = mem_alloc(r.tensors * sizeof(id));
    r.after = mem_alloc(r.tensors * sizeof(id));
    id *acc = mem_alloc(r.tensors * sizeof(id));
    g->program = p;
    order->nodes.n = r.from;
    r.loop = graph_loop(g, "rows", r.trip);
    g->scope = node_at(g, nodes[r.from])->scope;
    cut_inputs(&r, nodes);
    for (uint32_t k = r.from; k < r.to; k++)
        for (int o = 0; o < node_at(g, nodes[k])->nout; o++) {
            id t = node_at(g, nodes[k])->out[o];
            if (t && tensor_at(g, t)->rank == 0 && leaves(&r, t, nodes, count))
                acc[t] = op_fill(g, tensor_at(g, t)->dtype, 0, NULL, 0);
        }
    g->loop = r.loop;
    for (uint32_t k = r.from; k < r.to; k++) {
        struct node n = *node_at(g, nodes[k]);
        id in[MAX_IN];
        for (int i = 0; i < n.nin; i++) in[i] = n.in[i] ? r.map[n.in[i]] : 0;
        g->scope = n.scope;
        g->origin = nodes[k];
        id again = graph_emit(g, n.op, &n.attr, in, n.nin);
        for (int o = 0; again && o < n.nout; o++) {
            if (!n.out[o]) continue;
            r.map[n.out[o]] = node_at(g, again)->out[o];
            if (leaves(&r, n.out[o], nodes, count)) leave(&r, n.out[o], node_at(g, again)->out[o], acc[n.out[o]]);
        }
    }
    g->loop = g->origin = 0;
    g->scope = scope;
    for (uint32_t k = r.to; k < count; k++) {
        struct node *n = node_at(g, nodes[k]);
        for (int i = 0; i < n->nin; i++)
            if (n->in[i] && r.after[n->in[i]]) n->in[i] = r.after[n->in[i]];
        vec_push(&order->nodes, nodes[k]);
    }
    mem_free(nodes);
    mem_free(r.map);
    mem_free(r.after);
    mem_free(acc);
}

void pass_chunk(struct graph *g, const struct settings *s)
{
    id made_by = g->made_by;
    uint8_t program = g->program;
    g->made_by = graph_intern(g, "chunk");
    chunk_program(g, PROGRAM_STEP, s->head_chunks);
    chunk_program(g, PROGRAM_EVAL, s->head_chunks);
    g->made_by = made_by;
    g->program = program;
}

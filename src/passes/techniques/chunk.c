/*
 * chunk.c: runs a row-wise scope (LM head or mask decoder) in chunks of its rows, so that its wide
 * tensors (the logits: rows x vocabulary) exist for one chunk at a time.
 *
 *     hidden [R,C] ─ linear ─ logits [R,V] ─ xent ─ loss
 * becomes
 *     loop n { hidden[r..] ─ linear ─ logits [R/n,V] ─ xent ─ loss += }
 *
 * The loop iterates over slices of the scope's inputs (the cut). Scalars that leave the scope are
 * sums and are carried. Differentiation puts the backward of a chunk into the same iteration
 * (autodiff.c). If the number of rows is not divisible by the number of chunks, the last chunk is
 * padded with rows of weight 0: zeros, and the label -100, which every loss ignores.
 *
 * Rows may come in groups. A mask decoder reads B image embeddings and B x M prompts: a chunk is
 * then some images with all their prompts. With one image a chunk is some prompts, and a tensor
 * with a single row is shared by all chunks, as a weight is. Loops of the scope (prompt rounds)
 * become inner loops of the chunk loop.
 *
 * Batch normalisation takes its statistics over groups of images, in order: a chunk is whole
 * groups, and no rows are added, which would move the running statistics.
 *
 * If only some rows have labels, those come first (labelled_first.c), and a step leaves out the
 * chunks after them.
 *
 * A model may have several such scopes beside each other: each has a loop of its own. Beside an LM
 * head, which has a cross-entropy, others may have another number of chunks (mask_chunks). They may
 * read the same rows. None reads the rows of another, because the backward of a loop runs within
 * it.
 */
#include "graph/ops.h"
#include "passes/passes.h"
#include "passes/uses.h"

struct region {
    struct graph *g;
    enum program program;
    id *nodes;               /* the program's original order */
    uint32_t count;
    id scope;                /* the row-wise scope... */
    uint32_t from, to;       /* ...and its positions in the order */
    int64_t rows, chunk;     /* groups of rows in total, and per chunk */
    uint32_t trip;
    id loop;
    id *map;                 /* by original tensor: its replacement inside the loop */
    id *after;               /* by original tensor: its replacement after the loop; 0: itself */
    id *sum;                 /* by original tensor: the accumulator of a scalar that leaves the scope */
    bool *has_rows;              /* by original tensor of the scope: its first dimension counts rows */
    bool *from_batch;             /* by original tensor (uses.h) */
};

/* --- finding the region ----------------------------------------------------------- */

/* Finds the row-wise scope that begins next in the order after `last`, or the first one if `last`
 * is 0; 0: there is none. */
static id next_scope(const struct graph *g, enum program p, id last)
{
    const struct order *order = &g->order[p];
    bool passed = !last;
    for (uint32_t k = 0; k < order->nodes.n; k++) {
        id scope = graph_rows_of(g, node_at(g, order->nodes.at[k])->scope);
        if (scope && passed && scope != last) return scope;
        passed |= scope == last;
    }
    return 0;
}

/* By scope: whether it is a head, a row-wise scope of the program, and whether it has a
 * cross-entropy, as an LM head has. The caller frees the result. */
enum { HEAD = 1, LM_HEAD = 2 };
static uint8_t *find_heads(const struct graph *g, enum program p)
{
    uint8_t *heads = mem_alloc(g->scopes.n);
    for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[p].nodes.at[k]);
        const id scope = graph_rows_of(g, n->scope);
        if (scope) heads[scope] |= n->op == OP_XENT || n->op == OP_XENT_JOIN ? HEAD | LM_HEAD : HEAD;
    }
    return heads;
}

/* Reports whether the scope, or with 0 any scope, is a head beside an LM head and no LM head
 * itself. */
static bool is_mask_head(const struct graph *g, enum program p, id scope)
{
    uint8_t *heads = find_heads(g, p);
    bool lm = false, mask = false;
    for (id s = 1; s < g->scopes.n; s++) {
        lm |= heads[s] & LM_HEAD;
        mask |= heads[s] == HEAD && (!scope || s == scope);
    }
    mem_free(heads);
    return lm && mask;
}

bool chunk_has_rows(const struct graph *g)
{
    bool any = false;
    FOR_PROGRAMS(p, PROGRAM_FORWARD) any |= next_scope(g, p, 0) != 0;
    return any;
}

bool chunk_same(const struct settings *a, const struct settings *b)
{
    const int x = a->mask_chunks != MASK_CHUNKS_SAME ? a->mask_chunks : a->head_chunks,
              y = b->mask_chunks != MASK_CHUNKS_SAME ? b->mask_chunks : b->head_chunks;
    return a->head_chunks == b->head_chunks && x == y;
}

bool chunk_has_masks(const struct graph *g)
{
    bool any = false;
    FOR_PROGRAMS(p, PROGRAM_FORWARD) any |= is_mask_head(g, p, 0);
    return any;
}

static int chunks_of(const struct graph *g, enum program p, id scope, const struct settings *s)
{
    return s->mask_chunks != MASK_CHUNKS_SAME && is_mask_head(g, p, scope) ? s->mask_chunks : s->head_chunks;
}

static bool find_region(struct region *r)
{
    for (uint32_t k = 0; k < r->count; k++) {
        const struct node *n = node_at(r->g, r->nodes[k]);
        if (graph_rows_of(r->g, n->scope) != r->scope) continue;
        if (!r->to) r->from = k;
        CHECK(!r->to || r->to == k, "the nodes of a row-wise scope are not contiguous");
        r->to = k + 1;
    }
    return r->to > r->from;
}

static bool is_inside(const struct region *r, id t)
{
    id made = tensor_at(r->g, t)->node;
    for (uint32_t k = r->from; k < r->to; k++)
        if (r->nodes[k] == made) return true;
    return false;
}

/* Reports whether the loop slices `t`: it comes from outside the scope and depends on the batch. A
 * tensor with a single row is shared by all chunks. */
static bool is_cut(const struct region *r, id t)
{
    return t && r->from_batch[t] && tensor_at(r->g, t)->rank && tensor_at(r->g, t)->dim[0] > 1 && !is_inside(r, t);
}

/* Returns the number of images that share batch statistics, which the scope adds to the running
 * ones; 0: it has none. */
static int64_t statistics_of(const struct region *r)
{
    int64_t group = 0;
    bool updates = false;
    for (uint32_t k = r->from; k < r->to; k++) {
        const struct node *n = node_at(r->g, r->nodes[k]);
        if (n->op == OP_BATCHNORM) group = max_i64(group, n->attr.batchnorm.group);
        updates |= n->op == OP_BATCHNORM_UPDATE;
    }
    return updates ? group : 0;
}

/* Sets the number of groups to the smallest number of rows, and the chunk size. Returns false if
 * there is nothing to split. */
static bool measure(struct region *r, int chunks)
{
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t k = r->from; k < r->to; k++) {
            const struct node *n = node_at(r->g, r->nodes[k]);
            for (int i = 0; i < n->nin; i++) {
                if (!is_cut(r, n->in[i])) continue;
                int64_t rows = tensor_at(r->g, n->in[i])->dim[0];
                if (!pass && (!r->rows || rows < r->rows)) r->rows = rows;
                CHECK(rows % r->rows == 0 || !pass, "inputs of a row-wise scope with %lld and %lld rows",
                      (long long)rows, (long long)r->rows);
            }
        }
    if (r->rows < 2 || chunks < 2) return false;
    r->chunk = (r->rows + chunks - 1) / chunks;
    const int64_t group = statistics_of(r);
    while (group && (r->rows % r->chunk || r->chunk % group)) r->chunk++;
    r->trip = (uint32_t)((r->rows + r->chunk - 1) / r->chunk);
    return r->trip > 1;
}

/* --- slices -------------------------------------------------------------------------- */

/* Enlarges the storage of `t` to trip * chunk rows; the added rows have weight 0. */
static void pad_rows(struct region *r, id t, bool fill)
{
    struct graph *g = r->g;
    struct tensor x = *tensor_at(g, t);
    int64_t extra = (int64_t)r->trip * r->chunk - r->rows;
    if (!extra) return;
    uint64_t group = tensor_bytes(&x) / (uint64_t)r->rows;
    CHECK(tensor_is_dense(&x) && x.offset == 0, "a sliced tensor does not own its storage");
    g->storages.at[x.storage].bytes = group * (uint64_t)r->chunk * r->trip;
    if (!fill) return;
    int64_t dim[MAX_RANK];
    memcpy(dim, x.dim, sizeof dim);
    dim[0] = extra * (x.dim[0] / r->rows);
    id zero = op_fill(g, x.dtype, x.rank, dim, x.dtype == DT_I32 ? -100 : 0);
    id tail = graph_view(g, t, x.dtype, x.rank, dim, NULL, group * (uint64_t)r->rows);
    graph_redirect(g, zero, tail);
}

/* Makes the view of one chunk of `t`, which advances with the loop. */
static id chunk_view(struct region *r, id t)
{
    struct graph *g = r->g;
    struct tensor x = *tensor_at(g, t);
    uint64_t group = tensor_bytes(&x) / (uint64_t)r->rows;
    int64_t dim[MAX_RANK];
    memcpy(dim, x.dim, sizeof dim);
    dim[0] = r->chunk * (x.dim[0] / r->rows);
    id slice = graph_view(g, t, x.dtype, x.rank, dim, NULL, x.offset);
    tensor_at(g, slice)->loop = r->loop;
    tensor_at(g, slice)->advance = (int64_t)(group * (uint64_t)r->chunk);
    return slice;
}

/* Returns a tensor that the loop can slice instead of `t`: `t` itself, or a copy if `t` is a
 * strided view, if rows must be added and `t` is part of a larger storage, or if `t` is an input,
 * which another loop may slice, as that of accumulation does. */
static id sliceable(struct region *r, id t)
{
    const struct tensor *x = tensor_at(r->g, t);
    bool ragged = (int64_t)r->trip * r->chunk != r->rows;
    bool fits = tensor_is_dense(x) && (!ragged || tensor_bytes(x) == r->g->storages.at[x->storage].bytes);
    return fits && storage_of(r->g, t)->kind != KIND_INPUT ? t : op_copy(r->g, t, SPACE_DEVICE);
}

/* Reports whether an earlier scope slices `t` in the same way, so that its storage has the added
 * rows already. */
static bool is_cut_alike(const struct region *r, id t)
{
    for (uint32_t c = 0; c < r->g->cuts.n; c++) {
        const struct cut *x = &r->g->cuts.at[c];
        const struct tensor *slice = tensor_at(r->g, x->slice);
        if (x->whole == t && r->g->loops.at[x->loop].trip == r->trip &&
            slice->dim[0] == r->chunk * (tensor_at(r->g, t)->dim[0] / r->rows))
            return true;
    }
    return false;
}

/* Tells the loop where the labels come from if the rows with labels come first (labelled_first.c):
 * the last iterations may have none. */
static void count_labels(struct region *r, id t)
{
    const struct graph *g = r->g;
    if (node_at(g, tensor_at(g, t)->node)->op != OP_LABELLED_FIRST || tensor_at(g, t)->dtype != DT_I32) return;
    while (storage_of(g, t)->kind != KIND_INPUT) t = node_at(g, tensor_at(g, t)->node)->in[0];
    g->loops.at[r->loop].counted = tensor_at(g, t)->storage;
    g->loops.at[r->loop].rows = (uint32_t)r->chunk;
}

static void cut_inputs(struct region *r)
{
    struct graph *g = r->g;
    for (uint32_t k = r->from; k < r->to; k++) {
        struct node n = *node_at(g, r->nodes[k]);
        for (int i = 0; i < n.nin; i++) {
            id t = n.in[i];
            if (!t || r->map[t] || is_inside(r, t)) continue;
            r->map[t] = t;
            if (!is_cut(r, t)) continue;
            const bool alike = is_cut_alike(r, t);
            id whole = alike ? t : sliceable(r, t);
            if (!alike) pad_rows(r, whole, true);
            r->map[t] = chunk_view(r, whole);
            vec_push(&g->cuts, ((struct cut){r->loop, whole, r->map[t]}));
            count_labels(r, whole);
        }
    }
}

/* --- outputs of the scope ------------------------------------------------------------ */

static bool leaves_scope(const struct region *r, id t)
{
    for (uint32_t i = 0; i < r->g->outputs.n; i++)
        if (r->g->outputs.at[i].tensor == t) return true;
    for (uint32_t k = r->to; k < r->count; k++)
        for (int i = 0; i < node_at(r->g, r->nodes[k])->nin; i++)
            if (node_at(r->g, r->nodes[k])->in[i] == t) return true;
    return false;
}

/* Fills the sums of the scalars that leave the scope with 0, before the loop. */
static void begin_sums(struct region *r)
{
    struct graph *g = r->g;
    for (uint32_t k = r->from; k < r->to; k++)
        for (int o = 0; o < node_at(g, r->nodes[k])->nout; o++) {
            id t = node_at(g, r->nodes[k])->out[o];
            if (t && tensor_at(g, t)->rank == 0 && leaves_scope(r, t))
                r->sum[t] = op_fill(g, tensor_at(g, t)->dtype, 0, NULL, 0);
        }
}

/* Makes `chunk`, and views of it within the scope, a slice of the rows that leave the scope. */
static void write_rows(struct region *r, id chunk, id slice)
{
    struct graph *g = r->g;
    const struct tensor was = *tensor_at(g, chunk);
    graph_redirect(g, chunk, slice);
    for (uint32_t k = r->from; k < r->to; k++)
        for (int o = 0; o < node_at(g, r->nodes[k])->nout; o++) {
            struct tensor *view = tensor_at(g, r->map[node_at(g, r->nodes[k])->out[o]]);
            if (view->storage != was.storage) continue;
            view->storage = tensor_at(g, chunk)->storage;
            view->offset += tensor_at(g, chunk)->offset - was.offset;
            view->loop = tensor_at(g, chunk)->loop;
            view->advance = tensor_at(g, chunk)->advance;
        }
}

/* Adds a scalar to its sum over the chunks, and gathers any other tensor by rows. */
static void emit_output(struct region *r, id old, id chunk)
{
    struct graph *g = r->g;
    if (!r->sum[old]) {
        pad_rows(r, old, false);
        tensor_at(g, old)->node = tensor_at(g, chunk)->node;
        write_rows(r, chunk, chunk_view(r, old));
        return;
    }
    id sum = r->after[old] = op_accumulate(g, chunk, r->sum[old]);
    for (uint32_t i = 0; i < g->outputs.n; i++)
        if (g->outputs.at[i].tensor == old) {
            g->outputs.at[i].tensor = sum;
            storage_of(g, sum)->kind = KIND_OUTPUT;
        }
}

/* --- emitting the loop -------------------------------------------------------------------- */

/* Fits the shape that a reshape holds to a chunk; shape rules infer all other shapes. In a reshape
 * with rows, the first dimension larger than 1 counts them. */
static void fit_reshape(const struct region *r, union attr *attr)
{
    int i = 0;
    while (i < attr->reshape.rank && attr->reshape.dim[i] == 1) i++;
    if (i == attr->reshape.rank || attr->reshape.dim[i] < 0) return;
    attr->reshape.dim[i] = attr->reshape.dim[i] / r->rows * r->chunk;
}

static bool holds_rows(const struct region *r, const struct node *n)
{
    for (int i = 0; i < n->nin; i++)
        if (n->in[i] && (r->has_rows[n->in[i]] || is_cut(r, n->in[i]))) return true;
    return false;
}

/* Emits the nodes of the scope for one chunk. */
static void emit_body(struct region *r)
{
    struct graph *g = r->g;
    for (uint32_t k = r->from; k < r->to; k++) {
        struct node n = *node_at(g, r->nodes[k]);
        id in[MAX_IN];
        for (int i = 0; i < n.nin; i++) in[i] = n.in[i] ? r->map[n.in[i]] : 0;
        bool has_rows = holds_rows(r, &n);
        if (has_rows && n.op == OP_RESHAPE) fit_reshape(r, &n.attr);
        if (n.loop && !g->loops.at[n.loop].parent) g->loops.at[n.loop].parent = r->loop;
        g->at.loop = n.loop ? n.loop : r->loop;
        g->at.scope = n.scope;
        g->at.origin = r->nodes[k];
        id emitted = graph_emit(g, n.op, &n.attr, in, n.nin);
        for (int o = 0; emitted && o < n.nout; o++)
            if (n.out[o]) {
                r->map[n.out[o]] = node_at(g, emitted)->out[o];
                r->has_rows[n.out[o]] = has_rows;
            }
    }
    g->at.origin = 0;
    g->at.loop = r->loop;
    for (uint32_t k = r->from; k < r->to; k++)
        for (int o = 0; o < node_at(g, r->nodes[k])->nout; o++) {
            id t = node_at(g, r->nodes[k])->out[o];
            if (t && r->map[t] && leaves_scope(r, t)) emit_output(r, t, r->map[t]);
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

static void chunk_scope(struct graph *g, enum program p, id scope, int chunks)
{
    struct order *order = &g->order[p];
    struct region r = {.g = g, .program = p, .scope = scope, .count = order->nodes.n};
    r.nodes = mem_copy(order->nodes.at, r.count * sizeof(id));
    r.from_batch = tensors_from_batch(g, p);
    if (find_region(&r) && measure(&r, chunks)) {
        r.map = mem_alloc(g->tensors.n * sizeof(id));
        r.after = mem_alloc(g->tensors.n * sizeof(id));
        r.sum = mem_alloc(g->tensors.n * sizeof(id));
        r.has_rows = mem_alloc(g->tensors.n);
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
    mem_free(r.has_rows);
    mem_free(r.from_batch);
}

/* Returns the rows of a chunk of one scope; 0: it is not split. */
static int64_t scope_rows(struct graph *g, enum program p, id scope, int chunks)
{
    const struct order *order = &g->order[p];
    struct region r = {.g = g, .program = p, .scope = scope, .nodes = order->nodes.at, .count = order->nodes.n,
                       .from_batch = tensors_from_batch(g, p)};
    int64_t rows = find_region(&r) && measure(&r, chunks) ? r.chunk : 0;
    mem_free(r.from_batch);
    return rows;
}

/* Combines the numbers of several scopes into one that differs if any of them does, as far as 64
 * bits allow. */
void chunk_rows(struct graph *g, const struct settings *s, int64_t rows[PROGRAM_COUNT])
{
    for (enum program p = 0; p < PROGRAM_COUNT; p++) rows[p] = 0;
    FOR_PROGRAMS(p, PROGRAM_FORWARD)
        for (id scope = 0; (scope = next_scope(g, p, scope));) {
            int64_t more = scope_rows(g, p, scope, chunks_of(g, p, scope, s));
            rows[p] = rows[p] ? (int64_t)hash_bytes(&more, sizeof more, (uint64_t)rows[p]) : more;
        }
}

void pass_chunk(struct graph *g, const struct settings *s)
{
    FOR_PROGRAMS(p, PROGRAM_FORWARD)
        for (id scope = 0; (scope = next_scope(g, p, scope));) chunk_scope(g, p, scope, chunks_of(g, p, scope, s));
}

bool head_chunks_excluded(const struct settings *s, const struct step_limits *l, struct text *why)
{
    if (l->trips && s->head_chunks > l->trips) text_printf(why, "a CUDA device takes %d at most", l->trips);
    return why->n;
}

bool mask_chunks_excluded(const struct settings *s, const struct step_limits *l, struct text *why)
{
    if (l->trips && s->mask_chunks > l->trips) text_printf(why, "a CUDA device takes %d at most", l->trips);
    return why->n;
}

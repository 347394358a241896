/*
 * operands.c: puts each operand of a product into the form in which the product reads it
 * (precision.h).
 *
 * A weight that is stored in fewer bits (quantize.c) is dequantized for each reader:
 *
 *     before   y = LINEAR(x, w)              dx = MATMUL(dy, w)
 *     after    v = DEQUANTIZE(bytes of w)    u = DEQUANTIZE(bytes of w)
 *              y = LINEAR(x, v)              dx = MATMUL(dy, u)
 *
 * Each reader in forward, recomputation and backward gets a dequantized weight of its own, a
 * transient that lives from the DEQUANTIZE before the reader to the reader: none is alive between
 * forward and backward. The readers in a loop over tokens share what is made of a weight, which is
 * made before the loop.
 *
 * Where weights are offloaded, because memory is scarce, the experts of a layer are dequantized and
 * multiplied group by group, each time in the same memory. A row has the same bits:
 *
 *     v = DEQUANTIZE(experts 0 to 15)     y  = GROUPED_LINEAR(x, v, their offsets)
 *     u = DEQUANTIZE(experts 16 to 31)    y' = GROUPED_LINEAR(x, u, their offsets, into y)   ...
 *
 * The dequantized weights of a matrix [inputs,outputs] (param.transposed), which is stored as its
 * transpose, are transposes too: their views have other strides.
 *
 * Where the policy of a layer says e4m3, its products read numbers of 8 bits with scales:
 *
 *     forward   y  = SCALED_LINEAR(rows of x, rows of w)
 *     dx        dx = SCALED_LINEAR(rows of dy, columns of the rows of w)
 *     dw        dw = MATMUL(dy, x), or SCALED_DW(blocks of the rows of dy, blocks of those of x)
 *
 * Where memory.saved says fp8, x of MATMUL(dy, x) is what the rows of x are, dequantized: x itself
 * is not kept for the backward.
 *
 * The columns of w, and blocks of 128 tokens of a sample, are those of the numbers in e4m3, not of
 * the numbers before. With scales that are powers of two the two differ only in numbers 2^15 times
 * smaller than the largest of their row. So whatever was made from a row's 8 bits, early or late,
 * has the same bits. No scale depends on another sample: the split into micro-batches changes none.
 */
#include "base/nf4.h"
#include "graph/ops.h"
#include "graph/stored.h"
#include "passes/passes.h"

/* Numbers in e4m3 and their scales. */
struct coded {
    id codes, scales;
};

/* A weight that is stored in a form of its own. */
struct quantized {
    id bytes;  /* the u8 tensor over the storage; 0: the storage is plain */
    id weight; /* the tensor that was read */
    bool transposed; /* the bytes are of its transpose */
    struct coded rows, columns; /* e4m3: the weight, and its transpose if that is stored too; 0: it is not */
};

/* What a loop over tokens has of a weight. */
enum made { DEQUANTIZED, ROWS_OF, COLUMNS_OF };
struct ahead {
    id weight;  /* the tensor that is read; DEQUANTIZED: its storage */
    enum made made;
    id result;  /* DEQUANTIZED: the tensor; else the node */
};

struct operands {
    struct graph *g;
    const struct settings *s;
    const struct quantized *stored; /* by storage; NULL: no weight has a form of its own */
    uint32_t storages;              /* before the pass */
    uint8_t *precision;             /* by scope: enum precision */
    bool *at_end;                   /* by scope: the first or the last of a row of blocks */
    uint32_t tensors;               /* before the program's rewrite */
    id *weight;                     /* by node: the weight of a layer whose products are scaled; 0: none */
    bool *read_plain;               /* by storage: a node of the backward reads it, other than for dw */
    id *rows, *blocks;              /* by tensor: the node that quantized it; 0: none */
    id *back;                       /* by tensor: the node that dequantized its rows; 0: none */
    id loop;                        /* the loop over tokens that the rewrite is in, with the next over the last... */
    uint32_t begin;                 /* ...tokens; where it begins in the order; 0: none */
    VEC(struct ahead) ahead;        /* made before it */
};

/* --- loops over tokens ------------------------------------------------------------------------ */

/* Notes that the rewrite comes to a node: a loop over the last tokens goes on with the one before
 * it. */
static void enter_loop(struct operands *o, const struct node *n)
{
    const struct loop *loop = &o->g->loops.at[n->loop];
    if (!loop->tokens) o->loop = 0;
    else if (!o->loop || (n->loop != o->loop && !loop->first)) {
        o->begin = o->g->order[n->program].nodes.n;
        o->ahead.n = 0;
    }
    if (loop->tokens) o->loop = n->loop;
}

/* Returns what the loop has of a weight already; 0: nothing. */
static id find_ahead(const struct operands *o, id weight, enum made made)
{
    for (uint32_t i = 0; i < o->ahead.n && o->loop; i++)
        if (o->ahead.at[i].weight == weight && o->ahead.at[i].made == made) return o->ahead.at[i].result;
    return 0;
}

/* Moves the nodes from position `from` of the order on before the loop, which then has `result`. */
static void move_ahead(struct operands *o, uint32_t from, id weight, enum made made, id result)
{
    struct graph *g = o->g;
    struct order *order = &g->order[g->at.program];
    const uint32_t n = order->nodes.n - from;
    if (!o->loop) return;
    id *moved = mem_copy(order->nodes.at + from, n * sizeof *moved);
    memmove(order->nodes.at + o->begin + n, order->nodes.at + o->begin, (from - o->begin) * sizeof *moved);
    memcpy(order->nodes.at + o->begin, moved, n * sizeof *moved);
    for (uint32_t i = 0; i < n; i++) node_at(g, moved[i])->loop = g->loops.at[o->loop].parent;
    o->begin += n;
    mem_free(moved);
    vec_push(&o->ahead, ((struct ahead){weight, made, result}));
}

/* --- dequantized weights ---------------------------------------------------------------------- */

/* Makes a view of the matrix w one of its transpose, which has the same elements in another order.
 * A stride is an index too: that of the element behind the first. */
static void turn_view(struct tensor *view, const struct tensor *w)
{
    const uint32_t size = dtype_size(view->dtype);
    for (int i = 0; i < view->rank; i++) view->stride[i] = transposed_index(view->stride[i], w->dim[0], w->dim[1]);
    view->offset = (uint64_t)transposed_index((int64_t)(view->offset / size), w->dim[0], w->dim[1]) * size;
}

/* Returns a dequantized weight. */
static id dequantized_whole(struct operands *o, const struct quantized *q)
{
    struct graph *g = o->g;
    const struct tensor w = *tensor_at(g, q->weight);
    const bool nested = storage_of(g, q->bytes)->form == STORED_NF4;
    const int64_t turned[] = {w.dim[1], w.dim[0]};
    const uint32_t from = g->order[g->at.program].nodes.n;
    const id have = find_ahead(o, w.storage, DEQUANTIZED);
    if (have) return have;
    const id whole = q->rows.codes ? op_dequantize_rows(g, q->rows.codes, q->rows.scales, w.dtype)
                                   : op_dequantize(g, q->bytes, nested, w.dtype, w.rank, q->transposed ? turned : w.dim,
                                                   (struct weight_range){0, tensor_elements(&w)});
    CHECK(whole, "%s", g->error.text);
    storage_of(g, whole)->name = tensor_at(g, whole)->name = w.name;
    move_ahead(o, from, w.storage, DEQUANTIZED, whole);
    return whole;
}

/* Returns the reader's view `t` on a dequantized weight. */
static id dequantized(struct operands *o, const struct quantized *q, id t)
{
    struct graph *g = o->g;
    const id whole = dequantized_whole(o, q);
    if (t == q->weight && !q->transposed) return whole;
    struct tensor view = *tensor_at(g, t);
    if (q->transposed) turn_view(&view, tensor_at(g, q->weight));
    view.storage = tensor_at(g, whole)->storage;
    view.node = tensor_at(g, whole)->node;
    vec_push(&g->tensors, view);
    return g->tensors.n - 1;
}

/* Groups in which the experts of a layer are dequantized, at most. */
enum { EXPERT_GROUPS = 8 };

/* Returns the experts of a group of w [experts,rows,columns], each group at the begin of a block of
 * NF4; 0: w is not divided. */
static int64_t group_experts(const struct tensor *w)
{
    const int64_t E = w->dim[0], matrix = tensor_elements(w) / E;
    int64_t each = (E + EXPERT_GROUPS - 1) / EXPERT_GROUPS;
    while (each < E && each * matrix % NF4_BLOCK) each++;
    return each < E ? each : 0;
}

/* Emits `n` dequantized experts from `first` on, and returns the reader's view `t` on them. */
static id dequantized_experts(struct graph *g, const struct quantized *q, id t, int64_t first, int64_t n)
{
    const struct tensor w = *tensor_at(g, q->weight);
    const int64_t dim[] = {n, w.dim[1], w.dim[2]};
    const bool nested = storage_of(g, q->bytes)->form == STORED_NF4;
    const id part = op_dequantize(g, q->bytes, nested, w.dtype, 3, dim,
                                  (struct weight_range){first * w.dim[1] * w.dim[2], tensor_elements(&w)});
    CHECK(part, "%s", g->error.text);
    storage_of(g, part)->name = tensor_at(g, part)->name = w.name;
    struct tensor view = *tensor_at(g, t);
    view.dim[0] = n;
    view.storage = tensor_at(g, part)->storage;
    view.node = tensor_at(g, part)->node;
    vec_push(&g->tensors, view);
    return g->tensors.n - 1;
}

/* Emits all groups of a GROUPED_LINEAR but the last, which becomes the node's own. */
static void divide_experts(struct graph *g, const struct quantized *q, id node, int64_t each)
{
    const struct node n = *node_at(g, node);
    const int64_t E = tensor_at(g, n.in[1])->dim[0];
    const union attr a = {.grouped_linear = {E}};
    id y = 0;
    for (int64_t first = 0; first < E; first += each) {
        const int64_t some = min_i64(each, E - first);
        id in[] = {n.in[0], 0, 0, y};
        in[1] = dequantized_experts(g, q, n.in[1], first, some);
        in[2] = op_slice(g, n.in[2], 0, first, some + 1);
        if (first + some == E) {
            struct node *last = node_at(g, node);
            memcpy(last->in, in, sizeof in);
            last->nin = COUNT(in);
            last->attr = a;
            return;
        }
        const id next = op_apply(g, OP_GROUPED_LINEAR, &a, in, y ? 4 : 3);
        CHECK(next, "%s", g->error.text);
        if (!y) graph_redirect(g, next, n.out[0]);
        y = next;
    }
}

/* --- which products are scaled ---------------------------------------------------------------- */

/* Tokens of a block of SCALED_DW; dimensions of scaled products are multiples of SCALED_UNIT. */
enum { BLOCK_TOKENS = 128, SCALED_UNIT = 16 };

static const struct policy *policy_of(const struct operands *o, const struct node *n)
{
    return &policies[o->precision[n->scope]];
}

/* Returns the parameter whose values a tensor has, all or a part of them; NULL: none. */
static const struct param *param_of(const struct graph *g, id t)
{
    const id storage = tensor_at(g, t)->storage;
    for (uint32_t i = 0; g->storages.at[storage].kind == KIND_PARAM && i < g->params.n; i++)
        if (tensor_at(g, g->params.at[i].tensor)->storage == storage) return &g->params.at[i];
    return NULL;
}

/* Reports whether a matrix, or its transpose, has dense rows. */
static bool is_matrix(const struct tensor *w)
{
    return w->rank == 2 && (w->stride[1] == 1 || w->stride[0] == 1) && w->dim[0] % SCALED_UNIT == 0 &&
           w->dim[1] % SCALED_UNIT == 0;
}

/* Returns a weight that is stored in e4m3 as a whole; NULL: it is not. */
static const struct quantized *stored_rows(const struct operands *o, id w)
{
    const id s = tensor_at(o->g, w)->storage;
    const struct quantized *q = o->stored && s < o->storages ? &o->stored[s] : NULL;
    return q && q->rows.codes && q->weight == w ? q : NULL;
}

/* Reports whether the products of a linear layer are scaled: its weight is stored in e4m3, or it is
 * one of a block, whose policy says so and whose weight is the model's own. */
static bool is_scaled(const struct operands *o, const struct node *n)
{
    const struct graph *g = o->g;
    if ((n->op != OP_LINEAR && n->op != OP_LINEAR_ACT) || n->phase == PHASE_BACKWARD) return false;
    const struct tensor *x = tensor_at(g, n->in[0]), *w = tensor_at(g, n->in[1]);
    if (stored_rows(o, n->in[1])) return x->dtype == w->dtype;
    if (policy_of(o, n)->x != STORED_E4M3 || !graph_block_of(g, n->scope) || o->at_end[graph_block_of(g, n->scope)])
        return false;
    const struct param *p = param_of(g, n->in[1]);
    return p && !p->added && is_matrix(w) && x->dtype == policy_of(o, n)->compute && x->dtype == w->dtype &&
           !graph_scope_is(g, n->scope, SCOPE_ROWS);
}

/* The products of a linear layer. */
enum product { PRODUCT_NONE, PRODUCT_FORWARD, PRODUCT_DX, PRODUCT_DW };

/* Returns which product of a scaled layer the node is. */
static enum product product_of(const struct operands *o, id node)
{
    const struct node *n = node_at(o->g, node);
    if (o->weight[node]) return PRODUCT_FORWARD;
    if (n->op != OP_MATMUL || n->phase != PHASE_BACKWARD || !o->weight[n->origin] || n->attr.matmul.tb)
        return PRODUCT_NONE;
    if (n->attr.matmul.ta) return PRODUCT_DW;
    return tensor_at(o->g, n->in[1])->storage == tensor_at(o->g, o->weight[n->origin])->storage ? PRODUCT_DX
                                                                                                  : PRODUCT_NONE;
}

/* Returns the tokens of a sample whose rows x has; 0: not known. */
static int64_t sample_tokens(const struct tensor *x)
{
    int64_t tokens = x->rank > 2 ? 1 : 0;
    for (int i = 1; i + 1 < x->rank; i++) tokens *= x->dim[i];
    return tokens;
}

/* Reports whether dw is summed over blocks: of tokens of one sample, of which a launch has all, or
 * in a loop over tokens whole blocks. */
static bool has_blocks(const struct operands *o, const struct node *n)
{
    const int64_t dy = sample_tokens(tensor_at(o->g, n->in[0])), x = sample_tokens(tensor_at(o->g, n->in[1]));
    const struct loop *loop = &o->g->loops.at[n->loop];
    const int64_t row = loop->tokens ? loop->row : x;
    return policy_of(o, n)->summed == STORED_E4M3_BLOCKS && row && x && dy == x && row % BLOCK_TOKENS == 0 &&
           x % BLOCK_TOKENS == 0 && !o->g->sequence.ranges;
}

/* Reports whether dw reads the rows of x instead of x. */
static bool reads_rows(const struct operands *o, const struct node *n) { return o->s->saved || has_blocks(o, n); }

/* Finds the scaled layers of a program, and what its backward reads in another form. */
static void find_products(struct operands *o, enum program p)
{
    const struct graph *g = o->g;
    const struct order *order = &g->order[p];
    for (uint32_t k = 0; k < order->nodes.n; k++) {
        const id node = order->nodes.at[k];
        if (is_scaled(o, node_at(g, node))) o->weight[node] = node_at(g, node)->in[1];
    }
    for (uint32_t k = 0; k < order->nodes.n; k++) {
        const struct node *n = node_at(g, order->nodes.at[k]);
        const bool dw = product_of(o, order->nodes.at[k]) == PRODUCT_DW && reads_rows(o, n);
        for (int i = 0; i < n->nin && n->phase != PHASE_FORWARD; i++)
            if (!dw || i != 1) o->read_plain[tensor_at(g, n->in[i])->storage] = true;
    }
}

/* --- operands in e4m3 ------------------------------------------------------------------------- */

static struct coded outputs_of(const struct graph *g, id node)
{
    return (struct coded){node_at(g, node)->out[0], node_at(g, node)->out[1]};
}

static id emit_rows(struct graph *g, id x)
{
    const id node = graph_emit(g, OP_QUANTIZE_ROWS, NULL, &x, 1);
    CHECK(node, "%s", g->error.text);
    return node;
}

/* Emits the columns of blocks of `rows` rows of x, which has scales if it is in e4m3. */
static id emit_columns(struct graph *g, struct coded x, int64_t rows)
{
    const union attr a = {.quantize_columns = {rows}};
    const id node = graph_emit(g, OP_QUANTIZE_COLUMNS, &a, (id[]){x.codes, x.scales}, x.scales ? 2 : 1);
    CHECK(node, "%s", g->error.text);
    return node;
}

/* Reports whether what a node made can be read at node n: it is in the same loop, and nothing is
 * kept from forward to backward but what takes the place of x itself. */
static bool is_shared(const struct operands *o, id made, id t, const struct node *n)
{
    const struct node *m = node_at(o->g, made);
    const bool kept = (m->phase == PHASE_FORWARD) == (n->phase == PHASE_FORWARD) ||
                      !o->read_plain[tensor_at(o->g, t)->storage];
    return made && m->loop == n->loop && kept;
}

/* Returns the rows of an activation, or a gradient, for a product of node n. */
static struct coded rows_of(struct operands *o, id t, const struct node *n)
{
    struct graph *g = o->g;
    if (!is_shared(o, o->rows[t], t, n)) o->rows[t] = emit_rows(g, o->s->device.dense_operands ? op_dense(g, t) : t);
    return outputs_of(g, o->rows[t]);
}

/* Returns its blocks. */
static struct coded blocks_of(struct operands *o, id t, const struct node *n)
{
    if (!is_shared(o, o->blocks[t], t, n)) o->blocks[t] = emit_columns(o->g, rows_of(o, t, n), BLOCK_TOKENS);
    return outputs_of(o->g, o->blocks[t]);
}

/* Returns the rows of a matrix, or those of the transpose of one whose columns are dense. */
static struct coded weight_rows(struct operands *o, id w)
{
    struct graph *g = o->g;
    const struct tensor t = *tensor_at(g, w);
    const uint32_t from = g->order[g->at.program].nodes.n;
    if (stored_rows(o, w)) return stored_rows(o, w)->rows;
    id node = find_ahead(o, w, ROWS_OF);
    if (node) return outputs_of(g, node);
    if (t.stride[1] == 1) node = emit_rows(g, w);
    else node = emit_columns(g, (struct coded){op_permute(g, w, (int[]){1, 0}), 0}, t.dim[1]);
    move_ahead(o, from, w, ROWS_OF, node);
    return outputs_of(g, node);
}

/* Returns the rows of its transpose. */
static struct coded weight_columns(struct operands *o, id w)
{
    struct graph *g = o->g;
    const struct quantized *q = stored_rows(o, w);
    if (q && q->columns.codes) return q->columns;
    id node = find_ahead(o, w, COLUMNS_OF);
    if (node) return outputs_of(g, node);
    const struct coded rows = weight_rows(o, w);
    const uint32_t from = g->order[g->at.program].nodes.n;
    node = emit_columns(g, rows, tensor_at(g, w)->dim[0]);
    move_ahead(o, from, w, COLUMNS_OF, node);
    return outputs_of(g, node);
}

/* --- scaled products -------------------------------------------------------------------------- */

/* Makes node n the scaled product of x and w, and of its results the first `y`. */
static void set_linear(struct graph *g, id node, struct coded x, struct coded w, id bias, id add, id y)
{
    struct node *n = node_at(g, node);
    const id in[] = {x.codes, x.scales, w.codes, w.scales, bias, add};
    n->op = OP_SCALED_LINEAR;
    memcpy(n->in, in, sizeof in);
    n->nin = add ? 6 : bias ? 5 : 4;
    n->out[0] = y;
    n->nout = 1;
    n->attr = (union attr){.scaled = {tensor_at(g, y)->dtype}};
    n->made_by = graph_intern(g, "operands");
    tensor_at(g, y)->node = node;
}

/* Emits the activation behind a scaled product. The activation of a LINEAR_ACT has its bits. */
static void split_activation(struct operands *o, id node, struct coded x, struct coded w)
{
    struct graph *g = o->g;
    const struct node n = *node_at(g, node);
    const struct tensor y = *tensor_at(g, n.out[0]);
    const id z = op_scaled_linear(g, x.codes, x.scales, w.codes, w.scales, n.nin > 2 ? n.in[2] : 0, 0, y.dtype);
    CHECK(z, "%s", g->error.text);
    const id into = n.nout > 1 && n.out[1] ? n.out[1] : z, product = tensor_at(g, z)->node;
    if (into != z) {
        node_at(g, product)->out[0] = into;
        tensor_at(g, into)->node = product;
    }
    struct node *act = node_at(g, node);
    act->op = OP_ACT;
    act->in[0] = into;
    act->nin = act->nout = 1;
}

static void scale_forward(struct operands *o, id node)
{
    const struct node n = *node_at(o->g, node);
    const struct coded x = rows_of(o, n.in[0], &n), w = weight_rows(o, n.in[1]);
    if (n.op == OP_LINEAR_ACT) split_activation(o, node, x, w);
    else set_linear(o->g, node, x, w, n.nin > 2 ? n.in[2] : 0, n.nin > 3 ? n.in[3] : 0, n.out[0]);
}

static void scale_dx(struct operands *o, id node)
{
    const struct node n = *node_at(o->g, node);
    const struct coded dy = rows_of(o, n.in[0], &n), w = weight_columns(o, n.in[1]);
    set_linear(o->g, node, dy, w, 0, n.nin > 2 ? n.in[2] : 0, n.out[0]);
}

/* Gives dw the rows of x, dequantized. */
static void dequantize_saved(struct operands *o, id node)
{
    const struct node n = *node_at(o->g, node);
    id *back = &o->back[n.in[1]];
    if (!is_shared(o, *back, n.in[1], &n)) {
        const struct coded x = rows_of(o, n.in[1], &n);
        const id plain = op_dequantize_rows(o->g, x.codes, x.scales, tensor_at(o->g, n.in[1])->dtype);
        CHECK(plain, "%s", o->g->error.text);
        *back = tensor_at(o->g, plain)->node;
    }
    node_at(o->g, node)->in[1] = node_at(o->g, *back)->out[0];
}

static void scale_dw(struct operands *o, id node)
{
    const struct node n = *node_at(o->g, node);
    const struct coded dy = blocks_of(o, n.in[0], &n), x = blocks_of(o, n.in[1], &n);
    const id in[] = {dy.codes, dy.scales, x.codes, x.scales, n.nin > 2 ? n.in[2] : 0};
    struct node *to = node_at(o->g, node);
    to->op = OP_SCALED_DW;
    memcpy(to->in, in, sizeof in);
    to->nin = in[4] ? 5 : 4;
    to->attr = (union attr){.scaled = {n.attr.matmul.dtype}};
    to->made_by = graph_intern(o->g, "operands");
}

/* --- the rewrite ------------------------------------------------------------------------------ */

/* Gives a node dequantized weights. Returns false if it is a view of one that is stored in fewer
 * bits: its reader gets the view of a dequantized weight. */
static bool dequantize_inputs(struct operands *o, id node, enum product product)
{
    struct graph *g = o->g;
    const struct node n = *node_at(g, node);
    const bool scarce = o->s->offload & OFFLOAD_WEIGHTS;
    for (int i = 0; i < n.nin; i++) {
        const id s = n.in[i] ? tensor_at(g, n.in[i])->storage : 0;
        if (s >= o->storages || !o->stored[s].bytes) continue;
        if (op_table[n.op].flags & OPF_VIEW) return false;
        /* a scaled product reads the codes */
        if (i == 1 && (product == PRODUCT_FORWARD || product == PRODUCT_DX) && stored_rows(o, n.in[1])) continue;
        const bool divides = scarce && n.op == OP_GROUPED_LINEAR && i == 1;
        const int64_t each = divides ? group_experts(tensor_at(g, o->stored[s].weight)) : 0;
        if (each) {
            divide_experts(g, &o->stored[s], node, each);
            continue;
        }
        const id here = dequantized(o, &o->stored[s], n.in[i]);
        node_at(g, node)->in[i] = here;
    }
    return true;
}

static void rewrite_node(struct operands *o, id node, enum product product)
{
    switch (product) {
    case PRODUCT_FORWARD: scale_forward(o, node); break;
    case PRODUCT_DX: scale_dx(o, node); break;
    case PRODUCT_DW:
        if (has_blocks(o, node_at(o->g, node))) scale_dw(o, node);
        else if (o->s->saved) dequantize_saved(o, node);
        break;
    default: break;
    }
}

static void rewrite_program(struct operands *o, enum program p)
{
    struct graph *g = o->g;
    struct order *order = &g->order[p];
    const uint32_t count = order->nodes.n;
    id *old = mem_copy(order->nodes.at, count * sizeof(id));
    struct cursor before = graph_move(g, p, PHASE_FORWARD, "operands");
    order->nodes.n = 0;
    for (uint32_t k = 0; k < count; k++) {
        const struct node *n = node_at(g, old[k]);
        g->at.phase = n->phase;
        g->at.scope = n->scope;
        g->at.loop = n->loop;
        g->at.origin = old[k];
        enter_loop(o, n);
        const enum product product = product_of(o, old[k]);
        if (o->stored && !dequantize_inputs(o, old[k], product)) continue;
        rewrite_node(o, old[k], product);
        vec_push(&order->nodes, old[k]);
    }
    g->at = before;
    mem_free(old);
}

/* --- the pass --------------------------------------------------------------------------------- */

/* Adds the array `part` of a weight's storage as a tensor. */
static id part_tensor(struct graph *g, const struct tensor *w, int part, enum dtype t, int rank, const int64_t *dim)
{
    const struct stored_form *f = &stored_forms[g->storages.at[w->storage].form];
    const uint64_t at = stored_part_offset(f, part, stored_shape_of(w));
    const id x = graph_tensor(g, graph_name(g, w->name), w->storage, t, rank, dim, at);
    tensor_at(g, x)->part = true;
    return x;
}

/* Returns a weight in e4m3, or with `first` 2 its transpose: from that part of its storage on. */
static struct coded coded_parts(struct graph *g, const struct tensor *w, int first)
{
    const int64_t turned[] = {w->dim[1], w->dim[0]}, *dim = first ? turned : w->dim;
    const id codes = part_tensor(g, w, first, DT_E4M3, 2, dim);
    return (struct coded){codes, part_tensor(g, w, first + 1, DT_F32, 1, dim)};
}

/* Returns, by storage, the weights that are stored in a form of their own; NULL: none are. */
static struct quantized *list_stored(struct graph *g)
{
    const uint32_t storages = g->storages.n;
    struct quantized *by_storage = NULL;
    for (uint32_t i = 0; i < g->params.n; i++) {
        const struct param *p = &g->params.at[i];
        const struct tensor w = *tensor_at(g, p->tensor);
        const int64_t bytes = (int64_t)g->storages.at[w.storage].bytes;
        if (!g->storages.at[w.storage].form) continue;
        if (!by_storage) by_storage = mem_alloc(storages * sizeof *by_storage);
        const id raw = graph_tensor(g, graph_name(g, w.name), w.storage, DT_U8, 1, &bytes, 0);
        struct quantized *q = &by_storage[w.storage];
        const uint8_t form = g->storages.at[w.storage].form;
        *q = (struct quantized){raw, p->tensor, p->transposed, {0}, {0}};
        if (form == STORED_E4M3 || form == STORED_E4M3_BOTH) q->rows = coded_parts(g, &w, 0);
        if (form == STORED_E4M3_BOTH) q->columns = coded_parts(g, &w, 2);
    }
    return by_storage;
}

/* Returns the length of a block's name without its number. */
static size_t prefix_of(const char *block)
{
    const char *dot = strrchr(block, '.');
    return dot ? (size_t)(dot - block) : strlen(block);
}

/* Reports whether two blocks are of one row: their names differ by the last number. */
static bool same_row(const struct graph *g, id a, id b)
{
    const char *x = graph_name(g, g->scopes.at[a].name), *y = graph_name(g, g->scopes.at[b].name);
    return prefix_of(x) == prefix_of(y) && !strncmp(x, y, prefix_of(x));
}

/* Marks the first and the last block of each row of blocks of a program. */
static void mark_ends(struct operands *o, enum program p)
{
    const struct graph *g = o->g;
    id *block = mem_alloc(g->scopes.n * sizeof *block), last = 0;
    uint32_t n = 0;
    for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
        const struct node *x = node_at(g, g->order[p].nodes.at[k]);
        const id b = x->phase == PHASE_FORWARD ? graph_block_of(g, x->scope) : 0;
        if (b && b != last) block[n++] = last = b;
        if (n == g->scopes.n) break;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (!i || !same_row(g, block[i - 1], block[i])) o->at_end[block[i]] = true;
        if (i + 1 == n || !same_row(g, block[i], block[i + 1])) o->at_end[block[i]] = true;
    }
    mem_free(block);
}

/* Fills the policy of each scope. Returns whether any scales products. */
static bool set_policies(struct operands *o)
{
    bool any = false;
    for (id scope = 0; scope < o->g->scopes.n; scope++) {
        o->precision[scope] = (uint8_t)scope_precision(o->s, o->g, scope);
        any |= policies[o->precision[scope]].x == STORED_E4M3;
    }
    return any;
}

static void operands_in(struct operands *o, enum program p)
{
    struct graph *g = o->g;
    o->tensors = g->tensors.n;
    o->weight = mem_alloc(g->nodes.n * sizeof *o->weight);
    o->read_plain = mem_alloc(g->storages.n * sizeof *o->read_plain);
    o->rows = mem_alloc(o->tensors * sizeof *o->rows);
    o->blocks = mem_alloc(o->tensors * sizeof *o->blocks);
    o->back = mem_alloc(o->tensors * sizeof *o->back);
    find_products(o, p);
    rewrite_program(o, p);
    mem_free(o->weight);
    mem_free(o->read_plain);
    mem_free(o->rows);
    mem_free(o->blocks);
    mem_free(o->back);
    vec_free(&o->ahead);
    o->loop = 0;
}

void pass_operands(struct graph *g, const struct settings *s)
{
    struct operands o = {.g = g, .s = s, .storages = g->storages.n};
    o.precision = mem_alloc(g->scopes.n);
    o.at_end = mem_alloc(g->scopes.n * sizeof *o.at_end);
    struct quantized *stored = list_stored(g);
    o.stored = stored;
    const bool any = set_policies(&o) || stored;
    for (enum program p = 0; p < PROGRAM_COUNT && s->bf16_ends; p++) mark_ends(&o, p);
    for (enum program p = 0; p < PROGRAM_COUNT && any; p++)
        if (g->order[p].nodes.n) operands_in(&o, p);
    mem_free(stored);
    mem_free(o.precision);
    mem_free(o.at_end);
}

/*
 * build.c: the builder: a user's layers become nodes of the graph.
 *
 * It wraps the functions of src/graph/ops.h, a row each, and adds only the checks that internal
 * callers do not need: tensor ids and names are valid. An error is the graph's sticky
 * error, so pl_plan reports it with scope and shapes.
 *
 * Invariant: whatever a callback does, the graph is accepted by the passes, or has an error.
 */
#include "plimsoll.h"

#include "graph/ops.h"
#include "lib/builder.h"

_Static_assert((int)PL_MAX_RANK == (int)MAX_RANK, "PL_MAX_RANK of the public header differs");
_Static_assert((int)PL_GELU == (int)ACT_GELU && (int)PL_GELU_TANH == (int)ACT_GELU_TANH &&
                   (int)PL_QUICK_GELU == (int)ACT_QUICK_GELU && (int)PL_RELU == (int)ACT_RELU &&
                   (int)PL_SIGMOID == (int)ACT_SIGMOID && (int)PL_SILU == (int)ACT_SILU &&
                   (int)PL_TANH == (int)ACT_TANH && (int)PL_EXP == (int)ACT_EXP,
               "the order of activations in the public header differs");

/* Elements of one tensor: far beyond any memory, far below where products overflow. */
#define ELEMENTS_MOST ((int64_t)1 << 40)

/* --- checks of the caller's arguments --------------------------------------------------- */

id builder_tensor(struct pl_builder *b, pl_tensor x)
{
    if (b->g->error.code) return 0;
    if (!x) return graph_fail(b->g, "an op was given 0, which is not a tensor");
    if (x >= b->g->tensors.n) return graph_fail(b->g, "an op was given %u, which no call of this builder returned", x);
    return x;
}

static id in(struct pl_builder *b, pl_tensor x) { return builder_tensor(b, x); }

/* Reports whether all of several required tensors are valid, checked in this order: the first
 * invalid one is reported. */
static bool needs(struct pl_builder *b, int n, const pl_tensor *x)
{
    for (int i = 0; i < n; i++)
        if (!in(b, x[i])) return false;
    return true;
}

/* Returns an optional tensor; 0: it is not given, or invalid. */
static id optional(struct pl_builder *b, pl_tensor x) { return x ? in(b, x) : 0; }

bool builder_named(struct pl_builder *b, const char *what, const char *name)
{
    if (!name || !*name) return graph_fail(b->g, "%s without a name", what);
    if (strlen(name) > NAME_MOST)
        return graph_fail(b->g, "the name of %s has %zu bytes, at most %d: %.40s...", what, strlen(name), NAME_MOST,
                          name);
    return !b->g->error.code;
}

/* Checks the dimensions of a leaf: given, positive, and not too large together. */
static bool shaped(struct pl_builder *b, const char *name, int rank, const int64_t *dim)
{
    int64_t left = ELEMENTS_MOST;
    if (rank < 0 || rank > MAX_RANK) return graph_fail(b->g, "%s: rank %d, expected 0 to %d", name, rank, MAX_RANK);
    if (rank && !dim) return graph_fail(b->g, "%s: dimensions are NULL", name);
    for (int i = 0; i < rank; i++) {
        if (dim[i] < 1) return graph_fail(b->g, "%s: dimension %d is %lld", name, i, (long long)dim[i]);
        if (dim[i] > left) return graph_fail(b->g, "%s: more than %lld elements", name, (long long)ELEMENTS_MOST);
        left /= dim[i];
    }
    return true;
}

/* Returns the existing leaf of that name; 0: none. */
static id find_leaf(const struct pl_builder *b, const char *name)
{
    for (id t = 1; t < b->g->tensors.n; t++) {
        const struct tensor *x = tensor_at(b->g, t);
        enum kind k = storage_of(b->g, t)->kind;
        if (!x->node && (k == KIND_PARAM || k == KIND_INPUT || k == KIND_CONST) &&
            !strcmp(graph_name(b->g, x->name), name))
            return t;
    }
    return 0;
}

/* Checks that a name refers to the same tensor in both programs; false, with the graph's error: it
 * does not. */
static bool agrees(struct pl_builder *b, const char *name, enum kind kind, enum dtype t, int rank, const int64_t *dim)
{
    id have = find_leaf(b, name);
    const struct tensor *x = tensor_at(b->g, have);
    char text[160];
    if (!have) return true;
    if (storage_of(b->g, have)->kind == kind && x->dtype == t && x->rank == rank &&
        !memcmp(x->dim, dim, (size_t)rank * sizeof *dim))
        return true;
    return graph_fail(b->g, "the name %s is used twice, for different things; the first is %s", name,
                      tensor_print(b->g, have, text));
}

/* --- leaves ------------------------------------------------------------------------------ */

pl_tensor pl_param(struct pl_builder *b, const char *name, int rank, const int64_t *dim, enum pl_init init, float std)
{
    char full[2 * NAME_MOST + 1];
    if (!builder_named(b, "a parameter", name)) return 0;
    snprintf(full, sizeof full, "%s%s", b->prefix, name);
    name = full;
    if (!builder_named(b, "a parameter", name) || !shaped(b, name, rank, dim) ||
        !agrees(b, name, KIND_PARAM, DT_F32, rank, dim))
        return 0;
    if (init != PL_ZEROS && init != PL_ONES && init != PL_NORMAL)
        return graph_fail(b->g, "%s: init %d is not one of enum pl_init", name, (int)init);
    if (init == PL_NORMAL && !(std > 0 && std < 1e6f))
        return graph_fail(b->g, "%s: std is %g, expected more than 0", name, (double)std);
    enum init_kind kind = init == PL_ZEROS ? INIT_ZERO : init == PL_ONES ? INIT_ONE : INIT_NORMAL;
    return graph_param(b->g, name, DT_F32, rank, dim, (struct init){kind, std, 0});
}

pl_tensor pl_input(struct pl_builder *b, const char *name, enum pl_dtype type, int rank, const int64_t *dim)
{
    return pl_input_along(b, name, type, 0, rank, dim);
}

pl_tensor pl_input_along(struct pl_builder *b, const char *name, enum pl_dtype type, int axis, int rank,
                         const int64_t *dim)
{
    static const char *const nth[MAX_RANK] = {"first", "second", "third", "fourth", "fifth", "sixth"};
    enum dtype t = type == PL_F32 ? DT_F32 : type == PL_I32 ? DT_I32 : DT_NONE;
    if (!builder_named(b, "an input", name) || !shaped(b, name, rank, dim)) return 0;
    if (!t) return graph_fail(b->g, "input %s: dtype %d, expected PL_F32 or PL_I32", name, (int)type);
    if (axis < PL_SHARED || axis >= MAX_RANK)
        return graph_fail(b->g, "input %s: axis %d, expected a dimension from 0, or PL_SHARED", name, axis);
    if (axis >= 0 && (axis >= rank || dim[axis] % b->batch))
        return graph_fail(b->g, "input %s: the %s dimension is %lld, expected the batch, %lld, or a multiple of it",
                          name, nth[axis], axis < rank ? (long long)dim[axis] : 0, (long long)b->batch);
    return agrees(b, name, KIND_INPUT, t, rank, dim) ? graph_input_along(b->g, name, t, rank, dim, axis) : 0;
}

pl_tensor pl_constant(struct pl_builder *b, const char *name, int rank, const int64_t *dim, const float *data)
{
    if (!builder_named(b, "a constant", name) || !shaped(b, name, rank, dim) ||
        !agrees(b, name, KIND_CONST, DT_F32, rank, dim))
        return 0;
    if (!data) return graph_fail(b->g, "constant %s: data is NULL", name);
    const id x = graph_const(b->g, name, DT_F32, rank, dim, data);
    const struct param *p = x ? graph_param_of(b->g, x) : NULL;
    if (p && memcmp(b->g->blob.at + p->init.data, data, tensor_bytes(tensor_at(b->g, x))))
        return graph_fail(b->g, "constant %s: its data differ from those of an earlier call; expected another name",
                          name);
    return x;
}

/* Keeps only the loss of the step program. Other outputs come from the evaluation program, whose
 * results do not depend on the split into micro-batches. */
void pl_output(struct pl_builder *b, const char *name, pl_tensor x)
{
    struct graph *g = b->g;
    char text[160];
    if (!builder_named(b, "an output", name) || !in(b, x)) return;
    bool loss = !strcmp(name, "loss");
    if (graph_find_output(g, g->at.program, name)) graph_fail(g, "two outputs %s", name);
    else if (loss && tensor_at(g, x)->rank) graph_fail(g, "loss must be a scalar: %s", tensor_print(g, x, text));
    else if (kind_is_persistent(storage_of(g, x)->kind) && storage_of(g, x)->kind != KIND_OUTPUT)
        graph_fail(g, "output %s is not computed: %s", name, tensor_print(g, x, text));
    else if (!tensor_is_dense(tensor_at(g, x)))
        graph_fail(g, "output %s is a slice whose elements are not contiguous", name);
    else if (loss || program_is(g->at.program, PROGRAM_BESIDE)) graph_output(g, name, x);
}

/* --- scopes --------------------------------------------------------------------------------- */

bool builder_open(struct pl_builder *b, const char *name, int flags)
{
    if (b->depth == DEPTH_MOST) return graph_fail(b->g, "more than %d nested scopes", DEPTH_MOST);
    b->open[b->depth++] = (struct open_scope){graph_scope_push(b->g, name, flags), strlen(b->prefix)};
    return true;
}

void builder_close(struct pl_builder *b)
{
    const struct open_scope s = b->open[--b->depth];
    graph_scope_pop(b->g, s.outer);
    b->prefix[s.prefix] = 0;
}

void pl_scope_begin(struct pl_builder *b, const char *name, int flags)
{
    if (builder_named(b, "a scope", name))
        builder_open(b, name, (flags & PL_BLOCK ? SCOPE_BLOCK : 0) | (flags & PL_ROWS ? SCOPE_ROWS : 0));
}

void pl_scope_end(struct pl_builder *b)
{
    if (b->g->error.code) return;
    if (!b->depth) graph_fail(b->g, "pl_scope_end without pl_scope_begin");
    else builder_close(b);
}

void pl_fail(struct pl_builder *b, const char *message)
{
    graph_fail(b->g, "%s", message ? message : "pl_fail without a message");
}

/* --- ops ------------------------------------------------------------------------------------ */

/* OP(name, (parameters), (tensors), call) defines pl_name, which calls if all tensors are valid. */
#define OP(name, PARAMETERS, TENSORS, call) \
    pl_tensor pl_##name PARAMETERS { return needs(b, PL_TENSORS TENSORS) ? call : 0; }
#define B struct pl_builder *b
#define T pl_tensor

OP(linear, (B, T x, T w, T bias), (x, w), op_linear(b->g, x, w, optional(b, bias)))
OP(rmsnorm, (B, T x, T w, float eps), (x, w), op_rmsnorm(b->g, x, w, eps))
OP(layernorm, (B, T x, T w, T bias, float eps), (x, w, bias), op_layernorm(b->g, x, w, bias, eps))
OP(rope, (B, T x, T inv_freq, float scale), (x, inv_freq), op_rope(b->g, x, inv_freq, scale, false))
OP(rope_at, (B, T x, T inv_freq, T positions, float scale), (x, inv_freq, positions),
   op_rope_at(b->g, x, inv_freq, positions, NULL, scale))
OP(silu_gate, (B, T gate, T up), (gate, up), op_silu_gate(b->g, gate, up))
OP(embedding, (B, T ids, T table), (ids, table), op_embedding(b->g, ids, table))
OP(shift_labels, (B, T labels), (labels), op_shift_labels(b->g, labels))
OP(add, (B, T x, T y), (x, y), op_add(b->g, x, y))
OP(mul, (B, T x, T y), (x, y), op_mul(b->g, x, y))
OP(scale, (B, T x, double value), (x), op_scale(b->g, x, value))
OP(sum, (B, T x), (x), op_sum(b->g, x))
OP(softmax, (B, T x), (x), op_softmax(b->g, x))
OP(gather, (B, T x, T index), (x, index), op_gather(b->g, x, index))
OP(cross_entropy, (B, T logits, T labels), (logits, labels), op_xent(b->g, logits, labels, NULL))
OP(attention, (B, T q, T k, T v, float scale, int causal), (q, k, v), op_attention(b->g, q, k, v, scale, causal))
OP(attention_ranges, (B, T q, T k, T v, T ranges, float scale, int64_t window), (q, k, v, ranges),
   op_attention_with(b->g, q, k, v, 0,
                     (struct attention_options){.scale = scale, .window = window, .ranges = ranges}))
OP(matmul, (B, T x, T y, int transpose_x, int transpose_y), (x, y),
   op_matmul(b->g, x, y, transpose_x, transpose_y, tensor_at(b->g, x)->dtype))
OP(bmm, (B, T x, T y, int transpose_x, int transpose_y), (x, y),
   op_bmm(b->g, x, y, transpose_x, transpose_y, tensor_at(b->g, x)->dtype))
OP(conv, (B, T x, T w, T bias, int stride, int pad, int groups), (x, w),
   op_conv(b->g, x, w, optional(b, bias), stride, pad, groups))
OP(conv_transpose, (B, T x, T w, T bias, int stride, int pad), (x, w),
   op_conv_transpose(b->g, x, w, optional(b, bias), stride, pad))
#undef B
#undef T

pl_tensor pl_reshape(struct pl_builder *b, pl_tensor x, int rank, const int64_t *dim)
{
    if (rank < 0 || rank > MAX_RANK || (rank && !dim))
        return graph_fail(b->g, "pl_reshape: rank %d, expected 0 to %d, with dimensions", rank, MAX_RANK);
    return in(b, x) ? op_reshape(b->g, x, rank, dim) : 0;
}

pl_tensor pl_slice(struct pl_builder *b, pl_tensor x, int axis, int64_t start, int64_t length)
{
    if (axis < 0 || axis >= MAX_RANK || start < 0 || length < 1 || length > ELEMENTS_MOST || start > ELEMENTS_MOST)
        return graph_fail(b->g, "pl_slice: axis %d, %lld elements from %lld", axis, (long long)length,
                          (long long)start);
    return in(b, x) ? op_slice(b->g, x, axis, start, length) : 0;
}

pl_tensor pl_activate(struct pl_builder *b, pl_tensor x, enum pl_activation kind)
{
    if ((int)kind < 0 || (int)kind >= (int)ACT_KINDS)
        return graph_fail(b->g, "pl_activate: kind %d is not an activation", (int)kind);
    return op_act(b->g, in(b, x), (enum act_kind)kind);
}

/* Emits a dropout, whose random choices depend on the samples' indices, an input that the run
 * fills. */
static pl_tensor drop(struct pl_builder *b, pl_tensor x, float p, id (*op)(struct graph *, id, id, float))
{
    if (!in(b, x)) return 0;
    if (!(p >= 0 && p < 1)) return graph_fail(b->g, "the probability %g of a dropout is not within [0, 1)", (double)p);
    return agrees(b, "samples", KIND_INPUT, DT_I32, 1, &b->batch) ? op(b->g, x, op_samples(b->g, b->batch), p) : 0;
}

pl_tensor pl_dropout(struct pl_builder *b, pl_tensor x, float p) { return drop(b, x, p, op_dropout); }
pl_tensor pl_drop_path(struct pl_builder *b, pl_tensor x, float p) { return drop(b, x, p, op_drop_path); }

pl_tensor pl_permute(struct pl_builder *b, pl_tensor x, int rank, const int *axes)
{
    if (!in(b, x)) return 0;
    if (!axes || rank != tensor_at(b->g, x)->rank)
        return graph_fail(b->g, "pl_permute: %d axes for a tensor of %d", rank, tensor_at(b->g, x)->rank);
    for (int i = 0; i < rank; i++)
        if (axes[i] < 0 || axes[i] >= rank) return graph_fail(b->g, "pl_permute: axis %d is %d", i, axes[i]);
    return op_permute(b->g, x, axes);
}

pl_tensor pl_concat(struct pl_builder *b, int n, const pl_tensor *x, int axis)
{
    if (n < 1 || !x || axis < 0 || axis >= MAX_RANK)
        return graph_fail(b->g, "pl_concat: %d tensors along axis %d", n, axis);
    for (int i = 0; i < n; i++)
        if (!in(b, x[i])) return 0;
    return op_concat(b->g, x, n, axis);
}

pl_tensor pl_resize(struct pl_builder *b, pl_tensor x, int64_t H, int64_t W, int align_corners)
{
    if (H < 1 || W < 1 || H > ELEMENTS_MOST / W)
        return graph_fail(b->g, "pl_resize: to %lld x %lld", (long long)H, (long long)W);
    return op_resize(b->g, in(b, x), H, W, align_corners);
}

pl_tensor pl_avgpool(struct pl_builder *b, pl_tensor x, int64_t H, int64_t W)
{
    if (H < 1 || W < 1 || H > ELEMENTS_MOST / W)
        return graph_fail(b->g, "pl_avgpool: to %lld x %lld", (long long)H, (long long)W);
    return op_avgpool_adaptive(b->g, in(b, x), H, W);
}

const char *builder_op_refused(int op)
{
    if (op_table[op].flags & (OPF_GRAD | OPF_EFFECT))
        return "belongs to the backward pass, the update or a memory technique";
    const bool parts = op == OP_ENTER || op == OP_PART_IDS || op == OP_XENT_PART || op == OP_XENT_JOIN;
    if (op_table[op].flags & OPF_COMM || parts) return "belongs to the passes for several ranks";
    return op == OP_XENT || op == OP_MASK_LOSS
               ? "reads a count of the step; pl_cross_entropy and pl_per_count do that"
               : NULL;
}

/* Reports whether a model may use the op on these inputs: not an op of the backward pass, none that
 * reads a count, and none that writes to its inputs. */
static bool emittable(struct pl_builder *b, enum op op, int n, const pl_tensor *x)
{
    const struct op_row *row = &op_table[op];
    const char *refused = builder_op_refused(op);
    if (refused) return graph_fail(b->g, "pl_op: %s %s", row->name, refused);
    if (n < row->min_in || n > row->max_in || !n)
        return graph_fail(b->g, "pl_op: %s takes %d to %d inputs, not %d", row->name, row->min_in, row->max_in, n);
    for (int o = 0; o < row->outs; o++)
        if (row->alias[o] > 0 && row->alias[o] <= n && x[row->alias[o] - 1])
            return graph_fail(b->g, "pl_op: %s would write to its input %d: leave it out", row->name,
                              row->alias[o] - 1);
    return true;
}

pl_tensor pl_op(struct pl_builder *b, const char *name, int n, const pl_tensor *x, const char *attributes)
{
    union attr attr;
    enum op op = name ? op_named(name) : OP_NONE;
    struct error e = {0};
    id inputs[MAX_IN] = {0};
    if (b->g->error.code) return 0;
    if (op == OP_NONE)
        return graph_fail(b->g, "pl_op: there is no op %s; docs/reference/ops.md lists them", name ? name : "NULL");
    if (!x) n = 0;
    if (!emittable(b, op, n, x)) return 0;
    for (int i = 0; i < n; i++) {
        inputs[i] = i < op_table[op].min_in ? in(b, x[i]) : optional(b, x[i]);
        if (b->g->error.code) return 0;
    }
    if (attr_read(&attr, op, tensor_at(b->g, inputs[0])->dtype, attributes, &e))
        return graph_fail(b->g, "pl_op: %s", e.text);
    id y = op_apply(b->g, op, &attr, inputs, n);
    return y || b->g->error.code
               ? y
               : graph_fail(b->g, "pl_op: %s needs arguments that pl_op cannot pass", op_table[op].name);
}

static pl_tensor per_count(struct pl_builder *b, const char *call, pl_tensor sum, const char *count)
{
    char text[160];
    if (!in(b, sum)) return 0;
    if (tensor_at(b->g, sum)->rank)
        return graph_fail(b->g, "%s takes a scalar: %s", call, tensor_print(b->g, sum, text));
    return op_mul(b->g, sum, graph_count(b->g, count));
}

/* Checks the name of a count, which is at most as long as pl_set_count_of takes it. */
static bool counted(struct pl_builder *b, const char *count)
{
    if (!builder_named(b, "a count", count)) return false;
    const size_t most = sizeof ((struct session_count *)0)->name - 1;
    return strlen(count) <= most ||
           graph_fail(b->g, "the name of a count has %zu bytes, at most %zu: %.40s...", strlen(count), most, count);
}

pl_tensor pl_per_count(struct pl_builder *b, pl_tensor sum) { return per_count(b, "pl_per_count", sum, NULL); }
pl_tensor pl_per_count_of(struct pl_builder *b, pl_tensor sum, const char *count)
{
    return counted(b, count) ? per_count(b, "pl_per_count_of", sum, count) : 0;
}
pl_tensor pl_cross_entropy_of(struct pl_builder *b, pl_tensor logits, pl_tensor labels, const char *count)
{
    return counted(b, count) && needs(b, PL_TENSORS(logits, labels)) ? op_xent(b->g, logits, labels, count) : 0;
}

/* --- the family of all user-defined models -------------------------------------------------- */

static void defined_build(const struct model *m, struct graph *g, const struct batch *batch)
{
    struct pl_session *s = m->config;
    struct pl_builder b = {.g = g, .batch = batch->B};
    s->build(&b, batch->B, s->build_user);
    if (g->error.code) return;
    bool weights = false;
    for (uint32_t i = 0; i < g->params.n; i++) weights |= !weight_is_constant(g, &g->params.at[i]);
    if (b.depth)
        graph_fail(g, "the model ends with %d scopes open: pl_scope_end is missing, or a loop was left before its end",
                   b.depth);
    else if (!weights) graph_fail(g, "the model has no parameters");
    else if (!graph_find_output(g, g->at.program, "loss"))
        graph_fail(g, "the model has no output loss: pl_output(b, \"loss\", ...) names it");
    else builder_check_rows(g, g->at.program);
}

const struct family defined_family = {"custom", NULL, defined_build, "", false};

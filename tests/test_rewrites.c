/*
 * test_rewrites.c: a rewrite (passes/rewrites) does what it is for, and the values stay.
 *
 *     suite   a pass, the passes around it, and a function that emits a graph
 *     case    a graph of the suite, and how the numbers of some nodes change where the pass rewrites it; 0: it must
 *             leave the graph as it is
 *
 * Each case runs without the pass on one thread, with it on three, and with it where outputs
 * overwrite inputs (reuse). Gradients and outputs have the same bits, or, where the pass changes
 * the order of a sum, are within the suite's tolerance. Dead and new bytes are NaN. Every program
 * runs twice, the second time over the results of the first.
 */
#include "optest.h"

#include "passes/passes.h"

typedef void pass_function(struct graph *, const struct settings *);

/* What a case asks of the settings, beside the bits below 256, which are the suite's own. */
enum { ON_GPU = 1 << 8, MICRO_BATCHES = 1 << 9, CHUNKS = 1 << 10, SELECTIVE = 1 << 11, FORWARD = 1 << 12,
       BF16_ONLY = 1 << 13 };

/* Counts nodes of an op with at least `outputs` outputs. OP_NONE: of all ops; OP_COUNT: nodes that
 * launch nothing. */
struct counted {
    enum op op;
    int outputs;
};

struct suite {
    const char *name;
    pass_function *passes[6], *tested; /* in order; `tested` is one of them */
    struct counted counted[2];
    /* Returns the tensor whose sum of squares is the loss; 0: there is no loss, or `emit` declared
     * it. */
    id (*emit)(struct graph *g, int how, enum dtype f);
    int types;           /* 1: f32; 2: also bf16; 3: also f16 */
    double tolerance[3]; /* in units of a dtype's epsilon, by type; 0: the same bits */
    bool ref;            /* also with the reference kernels */
    const struct rewrite_case {
        const char *what;
        int how, change[2]; /* of the numbers of counted nodes */
    } *cases;
};

static int count(const struct graph *g, struct counted c)
{
    int n = 0;
    for (uint32_t k = 0; k < g->order[PROGRAM_STEP].nodes.n; k++) {
        const struct node *x = node_at(g, g->order[PROGRAM_STEP].nodes.at[k]);
        n += c.op == OP_COUNT ? x->silent : (c.op == OP_NONE || x->op == c.op) && x->nout >= c.outputs;
    }
    return n;
}

enum variant { WITHOUT, WITH, OVERWRITTEN };

static void build(struct rig *r, const struct suite *u, const struct rewrite_case *c, enum dtype f,
                  enum device_kind device, enum variant v)
{
    struct graph *g = &r->graph;
    const struct settings s = {.micro_batch = 1,
                               .accumulation = c->how & MICRO_BATCHES ? 3 : 1,
                               .precision = PRECISION_F32,
                               .head_chunks = c->how & CHUNKS ? 3 : 1,
                               .forward = c->how & FORWARD,
                               .device = device_traits(c->how & ON_GPU ? DEVICE_CUDA : DEVICE_CPU),
                               .recompute = {.kind = c->how & SELECTIVE ? RECOMPUTE_SELECTIVE : RECOMPUTE_NONE}};
    memset(r, 0, sizeof *r);
    graph_init(g);
    g->at.program = PROGRAM_STEP;
    id y = u->emit(g, c->how, f);
    if (y) graph_output(g, "loss", op_sum(g, op_mul(g, y, y)));
    for (int p = 0; u->passes[p]; p++) {
        const bool tested = u->passes[p] == u->tested;
        const int before[2] = {count(g, u->counted[0]), count(g, u->counted[1])};
        if (tested ? v != WITHOUT : !(u->passes[p] == pass_differentiate && c->how & FORWARD)) u->passes[p](g, &s);
        graph_verify(g, u->name);
        for (int i = 0; i < 2 && tested && v != WITHOUT; i++)
            if (count(g, u->counted[i]) - before[i] != c->change[i])
                fail_msg("%s, %s: %s: %d before, %d after, expected a change of %d", u->name, c->what,
                         u->counted[i].op % OP_COUNT ? op_table[u->counted[i].op].name : "nodes", before[i],
                         count(g, u->counted[i]), c->change[i]);
    }
    if (v == OVERWRITTEN) pass_reuse(g, &s);
    graph_verify(g, "reuse");
    rig_open_on(r, device, v == WITHOUT ? 1 : v == WITH ? 3 : 2);
    rig_run(r);
    rig_run(r);
}

static void same_outputs(const struct rig *a, const struct rig *b, double tolerance, const char *what)
{
    for (uint32_t i = 0; i < a->graph.outputs.n; i++) {
        const char *name = graph_name(&a->graph, a->graph.outputs.at[i].name);
        rig_same_values(a, a->graph.outputs.at[i].tensor, b, graph_find_output(&b->graph, PROGRAM_STEP, name),
                        tolerance, what, name);
    }
}

static void check_case(const struct suite *u, const struct rewrite_case *c, int type, enum device_kind device)
{
    static const enum dtype TYPES[] = {DT_F32, DT_BF16, DT_F16};
    struct rig r[3];
    char what[160];
    snprintf(what, sizeof what, "%s, %s, %s", u->name, c->what, dtype_name(TYPES[type]));
    for (enum variant v = WITHOUT; v <= OVERWRITTEN; v++) build(&r[v], u, c, TYPES[type], device, v);
    for (enum variant v = WITH; v <= OVERWRITTEN; v++) {
        const double tolerance = v == WITH && (c->change[0] || c->change[1])
                                     ? u->tolerance[type] * dtype_table[TYPES[type]].epsilon
                                     : 0;
        rig_same_gradients(&r[v - 1], &r[v], tolerance, what);
        same_outputs(&r[v - 1], &r[v], tolerance, what);
    }
    for (enum variant v = WITHOUT; v <= OVERWRITTEN; v++) rig_close(&r[v]);
}

static void test_suite(void **state)
{
    const struct suite *u = *state;
    for (const struct rewrite_case *c = u->cases; c->what; c++)
        for (int type = 0; type < u->types; type++)
            for (int ref = 0; ref <= u->ref; ref++)
                if (type || !(c->how & BF16_ONLY)) check_case(u, c, type, ref ? DEVICE_REF : DEVICE_CPU);
}

static id param(struct graph *g, const char *name, enum dtype f, int rank, const int64_t *dim)
{
    return graph_param(g, name, f, rank, dim, (struct init){INIT_NORMAL, 0.3f, 0});
}

/* --- an activation in the product of few rows, its only reader -------------------------------- */

enum { RESHAPED = 1, RELU = 2, SECOND_READER = 4, MANY_ROWS = 8, NOT_TRANSPOSED = 16, LOWER = 32, STRIDED = 64 };

static const struct rewrite_case act_bmm_cases[] = {
    {"filters", 0, {-1, 1}},
    {"a map between them is reshaped", RESHAPED, {-1, 1}},
    {"RELU", RELU, {-1, 1}},
    {"a second reader", SECOND_READER},
    {"a reader of the view", RESHAPED | SECOND_READER},
    {"more rows than a filter bank", MANY_ROWS},
    {"not transposed", NOT_TRANSPOSED},
    {"the result is not f32", LOWER | BF16_ONLY},
    {"strided rows", STRIDED},
    {0},
};

static id emit_filters(struct graph *g, int how, enum dtype f)
{
    enum { B = 3, N = 40, K = 8 };
    id a = op_scale(g, param(g, "a", f, DIM(B, how & MANY_ROWS ? 65 : 3, how & NOT_TRANSPOSED ? N : K)), 1.5);
    id z = op_scale(
        g, how & RESHAPED ? param(g, "z", f, DIM(B, 5, 8, K)) : param(g, "z", f, DIM(B, N, how & STRIDED ? 2 * K : K)),
        1.5);
    if (how & STRIDED) z = op_slice(g, z, 2, 1, K);
    id h = op_act(g, z, how & RELU ? ACT_RELU : ACT_GELU);
    if (how & RESHAPED) h = op_reshape(g, h, DIM(B, N, K));
    id y = op_bmm(g, a, h, false, !(how & NOT_TRANSPOSED), how & LOWER ? DT_BF16 : DT_F32);
    if (how & SECOND_READER) graph_output(g, "more", op_sum(g, op_mul(g, h, h)));
    return y;
}

/* --- a weight's gradient recomputes the activation in the activation's backward --------------- */

enum { MORE = 1, TWICE = 2, NO_ACT = 4, NO_BIAS = 8 };

static const struct rewrite_case gate_cases[] = {
    {"a gate", SELECTIVE, {1}},
    {"micro-batches", SELECTIVE | MICRO_BATCHES, {1}},
    {"on a GPU", SELECTIVE | ON_GPU, {1}},
    {"another reader", SELECTIVE | MORE},
    {"it is kept", 0},
    {0},
};
static const struct rewrite_case act_cases[] = {
    {"on a GPU", SELECTIVE | ON_GPU, {1}},
    {"micro-batches", SELECTIVE | ON_GPU | MICRO_BATCHES, {1}},
    {"another reader", SELECTIVE | ON_GPU | MORE},
    {"on a CPU", SELECTIVE},
    {0},
};

/* z = y w2^T; with MORE another node reads y. */
static id behind(struct graph *g, id y, int how)
{
    id z = op_linear(g, y, param(g, "w2", DT_F32, DIM(16, 16)), 0);
    return how & MORE ? op_concat(g, (id[]){z, op_mul(g, y, y)}, 2, 1) : z;
}

static id emit_gate(struct graph *g, int how, enum dtype f)
{
    id x = param(g, "x", f, DIM(12, 5)), h = op_linear(g, x, param(g, "w1", f, DIM(16, 5)), 0);
    return behind(g, op_silu_gate(g, h, op_linear(g, x, param(g, "w0", f, DIM(16, 5)), 0)), how);
}

static id emit_act(struct graph *g, int how, enum dtype f)
{
    id x = param(g, "x", f, DIM(12, 5));
    return behind(g, op_act(g, op_linear(g, x, param(g, "w1", f, DIM(16, 5)), param(g, "b", f, DIM(16))), ACT_GELU),
                  how);
}

/* --- on a GPU the activation's backward sums the bias gradient -------------------------------- */

static const struct rewrite_case bias_grad_cases[] = {
    {"a layer", ON_GPU, {1}},
    {"micro-batches", ON_GPU | MICRO_BATCHES, {1}},
    {"two inputs, one bias: the second sum is added to the first", ON_GPU | TWICE, {1}},
    {"no activation", ON_GPU | NO_ACT},
    {"no bias", ON_GPU | NO_BIAS},
    {"on a CPU", 0},
    {0},
};

static id emit_layer(struct graph *g, int how, enum dtype f)
{
    id w = param(g, "w", f, DIM(7, 5)), b = how & NO_BIAS ? 0 : param(g, "b", f, DIM(7)), y[2];
    for (int i = 0; i <= !!(how & TWICE); i++) {
        y[i] = op_linear(g, param(g, i ? "x1" : "x0", f, DIM(12, 5)), w, b);
        if (!(how & NO_ACT)) y[i] = op_act(g, y[i], ACT_GELU);
    }
    return how & TWICE ? op_concat(g, y, 2, 0) : y[0];
}

/* --- the backward of a norm adds the gradient that bypasses the norm -------------------------- */

/* The uses of x in the order of the forward, two bits each; the backward visits them in reverse. */
enum { END, PAST, SQUARE, NORM, CENTRED = 1 << 6, SCALED_FIRST = 1 << 7 };
#define USES(a, b, c) (a | b << 2 | c << 4)

static const struct rewrite_case residual_cases[] = {
    {"a residual", USES(NORM, PAST, END), {-1}},
    {"onto a sum", USES(NORM, SQUARE, END), {-1}},
    {"two norms", USES(NORM, NORM, END), {-1}},
    {"two norms and a residual", USES(NORM, NORM, PAST), {-2}},
    {"the norm comes first", SCALED_FIRST | USES(NORM, END, END)},
    {"no sum", USES(NORM, END, END)},
    {"a residual, centred", CENTRED | USES(NORM, PAST, END), {-1}},
    {"onto a sum, centred", CENTRED | USES(NORM, SQUARE, END), {-1}},
    {"two norms, the first centred", CENTRED | USES(NORM, NORM, END), {-1}},
    {"two norms and a residual, the first centred", CENTRED | USES(NORM, NORM, PAST), {-2}},
    {"the norm comes first, centred", CENTRED | SCALED_FIRST | USES(NORM, END, END)},
    {"no sum, centred", CENTRED | USES(NORM, END, END)},
    {0},
};

static id emit_uses(struct graph *g, int how, enum dtype f)
{
    enum { ROWS = 5, WIDE = 37 };
    id x = op_scale(g, param(g, "x", f, DIM(ROWS, WIDE)), 0.5), total = how & SCALED_FIRST ? op_scale(g, x, 3) : 0;
    for (int i = 0; i < 3 && how >> 2 * i & 3; i++) {
        const int use = how >> 2 * i & 3;
        id y = use == SQUARE ? op_mul(g, x, x) : x,
           w = use == NORM ? param(g, (char[]){'w', (char)('0' + i), 0}, f, DIM(WIDE)) : 0;
        if (w)
            y = how & CENTRED && !i ? op_layernorm(g, x, w, param(g, "b", f, DIM(WIDE)), 1e-3f)
                                    : op_rmsnorm(g, x, w, 1e-3f);
        total = total ? op_add(g, total, y) : y;
    }
    return total;
}

/* --- LoRA's first factors of layers that read the same rows ----------------------------------- */

enum { SAME_INPUT = 1, BASE_WEIGHT, INPUTS, TWO_SCALES, OTHER_READER, OTHER_SCOPE, WIDE_FACTOR };

static const struct rewrite_case group_lora_cases[] = {
    {"three layers", SAME_INPUT, {-2, -2}},
    {"a weight of the model", BASE_WEIGHT, {-1, -1}},
    {"another input", INPUTS, {-1, -1}},
    {"another scale", TWO_SCALES, {-2, 0}},
    {"a product with another reader", OTHER_READER, {-2, 0}},
    {"another scope", OTHER_SCOPE, {-1, -1}},
    {"as many rows as columns", WIDE_FACTOR, {-1, -1}},
    {0},
};

static id emit_factors(struct graph *g, int how, enum dtype f)
{
    enum { B = 3, T = 5, DEEP = 24, OUT = 7, LAYERS = 3 };
    id x = param(g, "x", f, DIM(B, T, DEEP)), x2 = op_mul(g, x, x), sum = 0;
    for (int i = 0; i < LAYERS; i++) {
        char a[8], b[8];
        snprintf(a, sizeof a, "a%d", i), snprintf(b, sizeof b, "b%d", i);
        const bool other = i == 1;
        const int64_t r = other && how == WIDE_FACTOR ? DEEP : 2 + i;
        const struct cursor before = g->at;
        if (other && how == OTHER_SCOPE) graph_enter_scope(g, "elsewhere", 0);
        const id w = param(g, a, f, DIM(r, DEEP));
        graph_param_of(g, w)->added = !(other && how == BASE_WEIGHT);
        id u = op_linear(g, other && how == INPUTS ? x2 : x, w, 0);
        const id raw = u;
        u = op_scale(g, u, other && how == TWO_SCALES ? 0.5 : 2);
        id y = op_linear(g, u, param(g, b, f, DIM(OUT, r)), 0);
        if (other && how == OTHER_READER) y = op_add(g, y, op_linear(g, raw, param(g, "c", f, DIM(OUT, r)), 0));
        g->at = before;
        sum = sum ? op_add(g, sum, y) : y;
    }
    return sum;
}

/* --- a product of a sum with a constant becomes two products ---------------------------------- */

enum sum_case { POSITIONS, SWAPPED, ROW, SAME_SHAPE, COMPUTED, VIEWED, READ_TWICE, BATCH, CONSTANTS, WIDER, OUTPUT };

/* x [B,T,DEEP] depends on the batch; c is added to it. */
static const struct rewrite_case split_linear_cases[] = {
    {"x + c", POSITIONS, {1}},
    {"c + x", SWAPPED, {1}},
    {"c is a row, no matrix", ROW},
    {"c has x's shape", SAME_SHAPE, {1}},
    {"c is computed from two weights", COMPUTED, {1}},
    {"a view, and a second product", VIEWED, {2}},
    {"the sum has a second reader", READ_TWICE},
    {"c depends on the batch", BATCH},
    {"x does not", CONSTANTS},
    {"the product is wider than the sum", WIDER},
    {"the product is an output", OUTPUT},
    {0},
};

static id emit_sum(struct graph *g, int how, enum dtype f)
{
    enum { B = 3, T = 5, DEEP = 24, WIDE = 17 };
    const int64_t wide = how == WIDER ? DEEP + 1 : WIDE;
    id x = param(g, "x", f, DIM(B, T, DEEP)), c = how == ROW          ? param(g, "c", f, DIM(DEEP))
                                                  : how == SAME_SHAPE ? param(g, "c", f, DIM(B, T, DEEP))
                                                                      : param(g, "c", f, DIM(T, DEEP));
    if (how != CONSTANTS)
        x = op_mul(g, x,
                   op_embedding(g, graph_input(g, "ids", DT_I32, DIM(B, T)), param(g, "table", f, DIM(11, DEEP))));
    if (how == COMPUTED) c = op_mul(g, c, param(g, "d", f, DIM(DEEP)));
    if (how == BATCH) c = op_mul(g, x, c);
    id s = how == SWAPPED ? op_add(g, c, x) : op_add(g, x, c), w = param(g, "w", f, DIM(wide, DEEP)),
       y = op_linear(g, s, w, param(g, "bias", f, DIM(wide)));
    if (how == READ_TWICE) y = op_mul(g, y, op_linear(g, s, w, 0));
    if (how == OUTPUT) graph_output(g, "y", y);
    if (how != VIEWED) return y;
    return op_linear(g, op_add(g, op_reshape(g, y, DIM(T, B, WIDE)), param(g, "e", f, DIM(B, WIDE))),
                     param(g, "v", f, DIM(WIDE - 1, WIDE)), 0);
}

/* --- gradients of slices that cover a tensor are concatenated --------------------------------- */

static const struct slicing {
    int axis, n;
    int64_t from[4], length[4];
} slicings[] = {
    {0, 3, {0, 4, 8}, {4, 4, 4}}, {0, 3, {7, 0, 3}, {5, 3, 4}}, {1, 4, {0, 1, 2, 3}, {1, 1, 1, 1}},
    {0, 2, {0, 8}, {4, 4}},       {0, 2, {0, 4}, {4, 4}},       {0, 3, {0, 4, 6}, {6, 4, 6}},
};
static const struct rewrite_case join_cases[] = {
    {"three thirds", 0, {1, -3}},
    {"out of order, unequal", 1, {1, -3}},
    {"four, the other axis", 2, {1, -4}},
    {"a gap", 3},
    {"the end is missing", 4},
    {"an overlap", 5},
    {0},
};

/* The slices are squared, so that gradients differ between elements. */
static id emit_slices(struct graph *g, int how, enum dtype f)
{
    const struct slicing *c = &slicings[how];
    id w = param(g, "w", f, DIM(12, 4)), loss = 0;
    for (int i = 0; i < c->n; i++) {
        id part = op_dense(g, op_slice(g, w, c->axis, c->from[i], c->length[i])),
           term = op_sum(g, op_mul(g, part, part));
        loss = loss ? op_add(g, loss, term) : term;
    }
    return loss;
}

/* --- an activation as the epilogue of a product ----------------------------------------------- */

/* Rows, columns, depth: smaller and larger than the blocks of the products. */
static const int64_t products[][3] = {{1, 1, 1},      {1, 77, 300},   {3, 130, 19},  {7, 259, 40},
                                      {50, 131, 530}, {203, 800, 24}, {401, 37, 270}};
enum { ONE_KIND = 8, BY_RELU = 16, PERMUTED = 32 };
#define EVERY {-ACT_KINDS, ACT_KINDS}

/* With a backward only RELU is fused, whose gradient does not read the product. */
static const struct rewrite_case fuse_cases[] = {
    {"1 x 1", FORWARD | 0, EVERY},
    {"a row", FORWARD | 1, EVERY},
    {"3 rows", FORWARD | 2, EVERY},
    {"7 rows", FORWARD | 3, EVERY},
    {"deep", FORWARD | 4, EVERY},
    {"wide", FORWARD | 5, EVERY},
    {"many rows", FORWARD | 6, EVERY},
    {"3 rows, trained", 2, {-1, 1}},
    {"deep, trained", 4, {-1, 1}},
    {"dense", FORWARD | ONE_KIND | 2, {-1, 1}},
    {"a strided x, which kernels with the same bits do not take", FORWARD | ONE_KIND | PERMUTED | 2},
    {"a strided x, RELU", FORWARD | ONE_KIND | PERMUTED | BY_RELU | 2, {-1, 1}},
    {0},
};
static const struct rewrite_case fuse_trim_cases[] = {{"a row", FORWARD | 1, EVERY},
                                                      {"7 rows", FORWARD | 3, EVERY},
                                                      {"many rows", FORWARD | 6, EVERY},
                                                      {"3 rows, trained", 2, {-1, 1}},
                                                      {0}};
static const struct rewrite_case fuse_gpu_cases[] = {
    {"a strided x", FORWARD | ONE_KIND | PERMUTED | ON_GPU | 2, {-1, 1}}, {0}};

static id emit_products(struct graph *g, int how, enum dtype f)
{
    const int64_t *n = products[how & 7];
    id x = how & PERMUTED ? op_permute(g, param(g, "x", f, DIM(n[2], n[0])), (int[]){1, 0})
                          : param(g, "x", f, DIM(n[0], n[2])),
       all[ACT_KINDS];
    const int kinds = how & ONE_KIND ? 1 : ACT_KINDS;
    for (int kind = 0; kind < kinds; kind++) {
        char name[2][8] = {{'w', (char)('0' + kind)}, {'b', (char)('0' + kind)}};
        id y = op_linear(g, x, param(g, name[0], f, DIM(n[1], n[2])),
                         (kind + how) % 2 ? param(g, name[1], f, DIM(n[1])) : 0);
        all[kind] = op_act(g, y, kinds > 1 ? (enum act_kind)kind : how & BY_RELU ? ACT_RELU : ACT_GELU);
    }
    id y = op_concat(g, all, kinds, 0);
    graph_output(g, "y", y);
    return how & FORWARD ? 0 : op_scale(g, y, 1e-3); /* f16 holds the loss */
}

/* --- gradients of slices that attention reads are written into one tensor --------------------- */

enum { PLAIN, RELATIVE, WINDOWED, BIASED, THREE };

static const struct rewrite_case concat_in_place_cases[] = {
    {"plain", PLAIN, {-1}},      {"over a grid", RELATIVE, {-1}},           {"within windows", WINDOWED, {-1}},
    {"by a bias", BIASED, {-1}}, {"heads of three: unaligned rows", THREE}, {0},
};

static id emit_attention(struct graph *g, int how, enum dtype f)
{
    enum { B = 2, SIDE = 4, T = SIDE * SIDE, HEADS = 2, WINDOW = 3 };
    const int64_t D = how == THREE ? 3 : how == BIASED ? 12 : 8, C = HEADS * D, size = how == RELATIVE ? SIDE : WINDOW;
    id part[3], x = param(g, "x", f, DIM(B, T, C)),
                qkv = op_reshape(g, op_linear(g, x, param(g, "weight", f, DIM(3 * C, C)), 0), DIM(B, T, 3 * HEADS, D));
    for (int i = 0; i < 3; i++) part[i] = op_slice(g, qkv, 2, i * HEADS, HEADS);
    if (how == PLAIN || how == THREE) return op_attention(g, part[0], part[1], part[2], 0.5f, false);
    if (how == BIASED)
        return op_attention_bias(g, part[0], part[1], part[2], param(g, "b", f, DIM(HEADS, SIDE * SIDE)), SIDE, 0.5f);
    id h = param(g, "h", f, DIM(2 * size - 1, D)), w = param(g, "w", f, DIM(2 * size - 1, D));
    if (how == RELATIVE) return op_attention_rel(g, part[0], part[1], part[2], h, w, SIDE, SIDE, 0.5f);
    return op_attention_window(g, part[0], part[1], part[2], h, w, 0,
                               (struct window_options){SIDE, SIDE, WINDOW, 0.5f});
}

/* --- the first micro-batch, or chunk, writes the sum that the others add to ------------------- */

enum { TIED = 1, GATED = 2 };

static const struct rewrite_case first_sum_cases[] = {
    {"one micro-batch", 0},
    {"micro-batches", MICRO_BATCHES, {4}},
    {"a weight with two uses", MICRO_BATCHES | TIED, {3}},
    {"a head in chunks", CHUNKS, {1}},
    {"a head in chunks, micro-batches", CHUNKS | MICRO_BATCHES, {4}},
    {"a tied head in chunks, micro-batches", CHUNKS | MICRO_BATCHES | TIED, {3}},
    {"chunks share a result of each micro-batch: its gradient starts anew in each",
     CHUNKS | MICRO_BATCHES | GATED,
     {5}},
    {0},
};

static id emit_head(struct graph *g, int how, enum dtype f)
{
    id x = graph_input(g, "x", f, DIM(12, 5)), w1 = param(g, "w1", f, DIM(16, 5));
    id y = op_act(g, op_linear(g, x, w1, param(g, "b", f, DIM(16))), ACT_GELU),
       z = op_linear(g, y, param(g, "w2", f, DIM(5, 16)), 0);
    id gate = how & GATED ? op_act(g, param(g, "s", f, DIM(16)), ACT_GELU) : 0,
       scope = graph_scope_push(g, "head", SCOPE_ROWS);
    id h = op_linear(g, z, how & TIED ? w1 : param(g, "w3", f, DIM(16, 5)), 0);
    if (gate) h = op_mul(g, h, gate);
    graph_output(g, "loss", op_sum(g, op_mul(g, h, h)));
    graph_scope_pop(g, scope);
    return 0;
}

/* --- the product at the end of a residual branch adds the residual ---------------------------- */

enum addend {
    RESIDUAL,
    AFTER,
    BIAS,
    INTERMEDIATE,
    PRODUCTS,
    CHAIN,
    PRODUCT_READ,
    DOUBLED,
    PRODUCT_OUTPUT,
    LATER,
    BROADCAST,
    STRIDED_ROWS,
    OTHER_BLOCK
};

/* r is the term that the sum adds to z = x w^T. */
static const struct rewrite_case linear_add_cases[] = {
    {"r + z", RESIDUAL, {-1}},
    {"z + r", AFTER, {-1}},
    {"with a bias", BIAS, {-1}},
    {"r is an intermediate that dies at the sum", INTERMEDIATE, {-1}},
    {"r is an earlier product", PRODUCTS, {-1}},
    {"two sums in a row", CHAIN, {-2}},
    {"z has a second reader", PRODUCT_READ},
    {"z + z", DOUBLED},
    {"z is an output", PRODUCT_OUTPUT},
    {"r is computed after z", LATER},
    {"r is one row", BROADCAST},
    {"r's rows are strided", STRIDED_ROWS},
    {"the sum is in another block", OTHER_BLOCK},
    {0},
};
enum { SUM_ROWS = 9, SUM_DEEP = 300, SUM_WIDE = 37 };

static id other_term(struct graph *g, int how, enum dtype f, id x)
{
    const int64_t wide = how == STRIDED_ROWS ? 2 * SUM_WIDE : SUM_WIDE;
    id r = how == BROADCAST || how == PRODUCTS ? param(g, "r", f, DIM(SUM_WIDE))
                                               : param(g, "r", f, DIM(SUM_ROWS, wide));
    if (how == PRODUCTS) return op_linear(g, op_mul(g, x, x), param(g, "w0", f, DIM(SUM_WIDE, SUM_DEEP)), r);
    return how == INTERMEDIATE || how == LATER ? op_scale(g, r, 0.5)
           : how == STRIDED_ROWS               ? op_slice(g, r, 1, SUM_WIDE / 2, SUM_WIDE)
                                               : r;
}

static id emit_branch(struct graph *g, int how, enum dtype f)
{
    id x = param(g, "x", f, DIM(SUM_ROWS, SUM_DEEP)), w = param(g, "w", f, DIM(SUM_WIDE, SUM_DEEP)),
       r = how == LATER ? 0 : other_term(g, how, f, x);
    id outer = graph_scope_push(g, "layers.0", SCOPE_BLOCK),
       z = op_linear(g, x, w, how == BIAS ? param(g, "bias", f, DIM(SUM_WIDE)) : 0);
    if (how == OTHER_BLOCK) {
        graph_scope_pop(g, outer);
        outer = graph_scope_push(g, "layers.1", SCOPE_BLOCK);
    }
    if (!r) r = other_term(g, how, f, x);
    id y = how == DOUBLED ? op_add(g, z, z) : how == AFTER ? op_add(g, z, r) : op_add(g, r, z);
    if (how == CHAIN) y = op_add(g, y, op_linear(g, x, param(g, "w2", f, DIM(SUM_WIDE, SUM_DEEP)), 0));
    if (how == PRODUCT_READ || how == DOUBLED) y = op_mul(g, y, how == DOUBLED ? r : z);
    if (how == PRODUCT_OUTPUT) graph_output(g, "z", z);
    graph_scope_pop(g, outer);
    return y;
}

/* --- a sum and the norm after it as one op ---------------------------------------------------- */

static const struct rewrite_case add_norm_cases[] = {{"RMSNORM", 0, {-1, -1}}, {"LAYERNORM", CENTRED, {-1, -1}}, {0}};
static const struct rewrite_case add_norm_apart_cases[] = {
    {"an input dies at the sum, which has other bytes", 0}, {"the same, centred", CENTRED}, {0}};

static id emit_norm(struct graph *g, int how, enum dtype f)
{
    enum { ROWS = 7, WIDE = 331 };
    id a = param(g, "a", f, DIM(ROWS, WIDE)), b = op_scale(g, param(g, "b", f, DIM(ROWS, WIDE)), 0.3),
       w = param(g, "w", f, DIM(WIDE)), sum = op_add(g, a, b);
    id y = how & CENTRED ? op_layernorm(g, sum, w, param(g, "c", f, DIM(WIDE)), 1e-3f) : op_rmsnorm(g, sum, w, 1e-3f);
    graph_output(g, "r", op_scale(g, sum, 1));
    graph_output(g, "y", y);
    graph_output(g, "rstd", node_at(g, tensor_at(g, y)->node)->out[how & CENTRED ? 2 : 1]);
    return 0;
}

/* --- the norm of a head and its rotation as one op -------------------------------------------- */

enum { UNIT_OFFSET = 1, AT_POSITIONS = 2, MORE_READERS = 4, OF_SLICE = 8, WHOLE_ROW = 16 };
static const struct rewrite_case norm_rope_cases[] = {{"heads", 0, {-1, 1}},
                                                      {"1 + w", UNIT_OFFSET, {-1, 1}},
                                                      {"positions", UNIT_OFFSET | AT_POSITIONS, {-1, 1}},
                                                      {"a second reader", MORE_READERS},
                                                      {"strided heads", OF_SLICE},
                                                      {"a norm over all heads", WHOLE_ROW},
                                                      {0}};

static id emit_heads(struct graph *g, int how, enum dtype f)
{
    enum { B = 2, T = 11, H = 3, D = 10 };
    const float table[D / 2] = {1, 0.5f, 0.25f, 0.1f, 0.01f};
    const int64_t heads[] = {B, T, H, D};
    id x = param(g, "x", f, DIM(B, T, how & OF_SLICE ? 2 * H : H, D));
    if (how & OF_SLICE) x = op_slice(g, x, 2, 1, H);
    if (how & WHOLE_ROW) x = op_reshape(g, x, DIM(B, T, H * D));
    id y = op_rmsnorm_with(g, x, param(g, "w", f, DIM(how & WHOLE_ROW ? H * D : D)), 1e-3f, how & UNIT_OFFSET);
    if (how & MORE_READERS) graph_output(g, "more", op_scale(g, y, 2));
    if (how & WHOLE_ROW) y = op_reshape(g, y, 4, heads);
    return op_rope_at(g, y, graph_const(g, "inv_freq", DT_F32, DIM(D / 2), table),
                      how & AT_POSITIONS ? graph_input(g, "positions", DT_I32, DIM(B, T)) : 0, NULL, 0.8f);
}

/* --- the suites ------------------------------------------------------------------------------- */

static struct suite suites[] = {
    {"act_bmm",
     {pass_act_bmm, pass_differentiate},
     pass_act_bmm,
     {{OP_ACT}, {OP_BMM_ACT}},
     emit_filters,
     2,
     .cases = act_bmm_cases},
    {"act_recompute of a gate",
     {pass_differentiate, pass_bias_grad, pass_accumulate, pass_selective, pass_act_recompute},
     pass_act_recompute,
     {{OP_SILU_GATE_BWD_Y, 3}, {OP_ACT_BWD_SUM, 3}},
     emit_gate,
     1,
     .cases = gate_cases},
    {"act_recompute",
     {pass_differentiate, pass_bias_grad, pass_accumulate, pass_selective, pass_act_recompute},
     pass_act_recompute,
     {{OP_ACT_BWD_SUM, 3}, {OP_SILU_GATE_BWD_Y, 3}},
     emit_act,
     1,
     .cases = act_cases},
    {"bias_grad",
     {pass_differentiate, pass_bias_grad, pass_accumulate},
     pass_bias_grad,
     {{OP_ACT_BWD_SUM}, {OP_COUNT}},
     emit_layer,
     1,
     {84},
     .cases = bias_grad_cases},
    {"residual",
     {pass_differentiate, pass_residual},
     pass_residual,
     {{OP_ACCUMULATE}, {OP_COUNT}},
     emit_uses,
     1,
     .cases = residual_cases},
    {"split_linear",
     {pass_split_linear, pass_differentiate},
     pass_split_linear,
     {{OP_LINEAR}, {OP_ADD}},
     emit_sum,
     1,
     {40},
     .cases = split_linear_cases},
    {"group_lora",
     {pass_group_lora, pass_differentiate},
     pass_group_lora,
     {{OP_LINEAR}, {OP_SCALE}},
     emit_factors,
     2,
     {40, 40},
     .cases = group_lora_cases},
    {"join",
     {pass_differentiate, pass_join},
     pass_join,
     {{OP_CONCAT}, {OP_PAD}},
     emit_slices,
     1,
     .ref = true,
     .cases = join_cases},
    {"fuse",
     {pass_fuse, pass_differentiate},
     pass_fuse,
     {{OP_ACT}, {OP_LINEAR_ACT}},
     emit_products,
     3,
     .cases = fuse_cases},
    {"fuse, trim",
     {pass_fuse, pass_trim, pass_differentiate},
     pass_fuse,
     {{OP_ACT}, {OP_LINEAR_ACT}},
     emit_products,
     3,
     .cases = fuse_trim_cases},
    {"fuse for a GPU",
     {pass_fuse},
     pass_fuse,
     {{OP_ACT}, {OP_LINEAR_ACT}},
     emit_products,
     1,
     {8},
     .cases = fuse_gpu_cases},
    {"concat_in_place",
     {pass_differentiate, pass_join, pass_concat_in_place},
     pass_concat_in_place,
     {{OP_CONCAT}, {OP_COUNT}},
     emit_attention,
     1,
     .ref = true,
     .cases = concat_in_place_cases},
    {"first_sum",
     {pass_chunk, pass_differentiate, pass_accumulate, pass_reuse, pass_first_sum},
     pass_first_sum,
     {{OP_COUNT}, {OP_FILL}},
     emit_head,
     1,
     .cases = first_sum_cases},
    {"linear_add",
     {pass_linear_add, pass_differentiate},
     pass_linear_add,
     {{OP_ADD}, {OP_COUNT}},
     emit_branch,
     2,
     {69, 24},
     .cases = linear_add_cases},
    {"norm_rope",
     {pass_norm_rope, pass_differentiate},
     pass_norm_rope,
     {{OP_RMSNORM}, {OP_RMSNORM_ROPE}},
     emit_heads,
     3,
     .ref = true,
     .cases = norm_rope_cases},
    {"add_norm",
     {pass_reuse, pass_add_norm},
     pass_add_norm,
     {{OP_ADD}, {OP_NONE}},
     emit_norm,
     3,
     .cases = add_norm_cases},
    {"add_norm without reuse",
     {pass_add_norm},
     pass_add_norm,
     {{OP_ADD}, {OP_NONE}},
     emit_norm,
     3,
     .cases = add_norm_apart_cases},
};

/* --- first_sum, linear_add: what the values do not show ------------------------------------- */

/* A fill remains where a node other than a sum reads it, where it is not 0, or where the sum covers
 * only a slice of it. */
static void test_fill_remains(void **state)
{
    const struct settings s = {.micro_batch = 1, .accumulation = 1};
    for (int how = 0; how < 3; how++) {
        struct graph g;
        graph_init(&g);
        g.at.program = PROGRAM_STEP;
        id a = param(&g, "a", DT_F32, DIM(4, 4)), zero = op_fill(&g, DT_F32, DIM(4, 4), how == 1 ? 1 : 0);
        id fill = tensor_at(&g, zero)->node;
        g.at.loop = graph_loop(&g, "loop", 3);
        if (how == 0) graph_output(&g, "read", op_add(&g, zero, a));
        union attr attr = {.matmul = {.dtype = DT_F32}};
        id sum = how == 2 ? op_slice(&g, zero, 0, 0, 2) : zero, rows = how == 2 ? op_slice(&g, a, 0, 0, 2) : a;
        op_apply(&g, OP_MATMUL, &attr, (id[]){rows, a, sum}, 3);
        g.at.loop = 0;
        pass_first_sum(&g, &s);
        if (node_at(&g, fill)->silent) fail_msg("case %d: the fill was removed", how);
        graph_free(&g);
    }
}

/* A view of a part of an input advances by a whole micro-batch, or share, as the input does. */
static void test_part_of_input(void **state)
{
    for (int how = 1; how < 4; how++) {
        const int micro = how & 1 ? 3 : 1, shares = how & 2 ? 2 : 1;
        struct graph g;
        const struct settings s = {.micro_batch = 1, .accumulation = micro, .shares = shares, .train = true,
                                   .precision = PRECISION_F32, .head_chunks = 1};
        graph_init(&g);
        g.at.program = PROGRAM_STEP;
        id x = graph_input(&g, "x", DT_F32, DIM(12, 5)), part = op_slice(&g, x, 1, 2, 2);
        id y = op_mul(&g, op_dense(&g, part), graph_param(&g, "w", DT_F32, DIM(2), (struct init){INIT_ONE}));
        graph_output(&g, "loss", op_add(&g, op_sum(&g, y), op_sum(&g, x)));
        pass_differentiate(&g, &s);
        pass_accumulate(&g, &s);
        pass_shares(&g, &s);
        graph_verify(&g, "shares");
        assert_int_equal(storage_of(&g, x)->bytes, (uint64_t)(micro * shares) * 12 * 5 * sizeof(float));
        assert_int_equal(tensor_at(&g, x)->advance, 12 * 5 * sizeof(float));
        assert_int_equal(tensor_at(&g, part)->advance, 12 * 5 * sizeof(float));
        graph_free(&g);
    }
}

/* z = 1 + 2^-8 rounds to 1 in bf16. It must not be rounded before -1 is added. */
static void test_rounded_once(void **state)
{
    struct rig r = {0};
    struct graph *g = &r.graph;
    graph_init(g);
    g->at.program = PROGRAM_STEP;
    id x = graph_param(g, "x", DT_BF16, DIM(1, 2), (struct init){INIT_ONE}),
       w = graph_param(g, "w", DT_BF16, DIM(1, 2), (struct init){INIT_ONE});
    id add = graph_param(g, "r", DT_BF16, DIM(1, 1), (struct init){INIT_ONE});
    id y = op_add(g, add, op_linear(g, x, w, 0));
    graph_output(g, "y", y);
    pass_linear_add(g, NULL);
    assert_int_equal(count_ops(g, OP_ADD), 0);
    rig_open(&r, DEVICE_CPU);
    const double terms[2] = {1, 1.0 / 256};
    for (int i = 0; i < 2; i++) dtype_store(tape_address(&r.tape, x), DT_BF16, i, terms[i]);
    for (int i = 0; i < 2; i++) dtype_store(tape_address(&r.tape, w), DT_BF16, i, 1);
    dtype_store(tape_address(&r.tape, add), DT_BF16, 0, -1);
    rig_run(&r);
    assert_true(dtype_load(tape_address(&r.tape, graph_find_output(g, PROGRAM_STEP, "y")), DT_BF16, 0) == 1.0 / 256);
    rig_close(&r);
}

int main(void)
{
    struct CMUnitTest tests[COUNT(suites) + 3] = {
        cmocka_unit_test(test_fill_remains), cmocka_unit_test(test_part_of_input), cmocka_unit_test(test_rounded_once)};
    seed_begin();
    for (size_t i = 0; i < COUNT(suites); i++)
        tests[i + 3] = (struct CMUnitTest){suites[i].name, test_suite, NULL, NULL, &suites[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

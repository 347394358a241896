/*
 * test_linear_add.c: the matrix product at the end of a residual branch adds the residual. The
 * gradients are those of the two ops, with the same bits whether the sum overwrites the residual or
 * not. The separate sum remains where another node reads the product, or where the other term has
 * another shape or layout or is computed later.
 */
#include "optest.h"

#include "passes/passes.h"

enum { ROWS = 9, DEEP = 300, WIDE = 37 };

/* r is the term that the sum adds to z = x w^T. */
enum addend_case {
    CASE_RESIDUAL,      /* r + z */
    CASE_SWAPPED,       /* z + r */
    CASE_BIAS,          /* r + z, z with a bias */
    CASE_INTERMEDIATE,  /* r is an intermediate that dies at the sum */
    CASE_PRODUCTS,      /* r is a product, too, and computed earlier */
    CASE_CHAIN,         /* r + z + z2, one sum after the other */
    CASE_SECOND_READER, /* z has a second reader */
    CASE_TWICE,         /* z + z */
    CASE_OUTPUT,        /* z is a graph output */
    CASE_LATER,         /* r is computed after z */
    CASE_BROADCAST,     /* r is one row, broadcast */
    CASE_STRIDED,       /* r's rows are strided */
    CASE_OTHER_BLOCK,   /* the sum is in another block */
    CASES
};

static const struct {
    const char *what;
    int joined;
} expected[CASES] = {
    {"r + z", 1}, {"z + r", 1}, {"with a bias", 1}, {"r is an intermediate", 1}, {"two products", 1}, {"two sums", 2}, {"z has a second reader", 0}, {"z + z", 0},
    {"z is an output", 0}, {"r is computed after z", 0}, {"r is broadcast", 0}, {"r is strided", 0}, {"another block", 0},
};

static id param(struct graph *g, const char *name, enum dtype f, int64_t rows, int64_t columns)
{
    return graph_param(g, name, f, columns ? 2 : 1, (int64_t[]){rows, columns}, (struct init){INIT_NORMAL, 0.3f, 0});
}

static id other_term(struct graph *g, enum addend_case addend_case, enum dtype f, id x)
{
    id r = addend_case == CASE_BROADCAST || addend_case == CASE_PRODUCTS ? param(g, "r", f, WIDE, 0) : param(g, "r", f, ROWS, addend_case == CASE_STRIDED ? 2 * WIDE : WIDE);
    if (addend_case == CASE_INTERMEDIATE || addend_case == CASE_LATER) return op_scale(g, r, 0.5);
    if (addend_case == CASE_PRODUCTS) {
        id square = op_mul(g, x, x), w0 = param(g, "w0", f, WIDE, DEEP);
        return op_linear(g, square, w0, r);
    }
    return addend_case == CASE_STRIDED ? op_slice(g, r, 1, WIDE / 2, WIDE) : r;
}

static id emit(struct graph *g, enum addend_case addend_case, enum dtype f)
{
    id x = param(g, "x", f, ROWS, DEEP), w = param(g, "w", f, WIDE, DEEP), bias = addend_case == CASE_BIAS ? param(g, "bias", f, WIDE, 0) : 0;
    id r = addend_case == CASE_LATER ? 0 : other_term(g, addend_case, f, x), outer = graph_scope_push(g, "layers.0", SCOPE_BLOCK);
    id z = op_linear(g, x, w, bias);
    if (addend_case == CASE_OTHER_BLOCK) {
        graph_scope_pop(g, outer);
        outer = graph_scope_push(g, "layers.1", SCOPE_BLOCK);
    }
    if (!r) r = other_term(g, addend_case, f, x);
    id y = addend_case == CASE_TWICE ? op_add(g, z, z) : addend_case == CASE_SWAPPED ? op_add(g, z, r) : op_add(g, r, z);
    if (addend_case == CASE_CHAIN) y = op_add(g, y, op_linear(g, x, param(g, "w2", f, WIDE, DEEP), 0));
    if (addend_case == CASE_SECOND_READER || addend_case == CASE_TWICE) y = op_mul(g, y, addend_case == CASE_SECOND_READER ? z : r);
    if (addend_case == CASE_OUTPUT) graph_output(g, "z", z);
    graph_scope_pop(g, outer);
    return y;
}

static void build(struct rig *r, enum addend_case addend_case, enum dtype f, bool join, bool reuse)
{
    struct graph *g = &r->graph;
    const struct settings s = {.micro_batch = 1, .accumulation = 1, .precision = DT_F32, .head_chunks = 1};
    memset(r, 0, sizeof *r);
    graph_init(g);
    g->at.program = PROGRAM_STEP;
    id y = emit(g, addend_case, f);
    graph_output(g, "loss", op_sum(g, op_mul(g, y, y)));
    const int before = count_ops(g, OP_ADD);
    if (join) pass_linear_add(g, &s);
    graph_verify(g, "linear_add");
    if (join && before - count_ops(g, OP_ADD) != expected[addend_case].joined)
        fail_msg("%s: of %d sums %d are joined, expected %d", expected[addend_case].what, before, before - count_ops(g, OP_ADD), expected[addend_case].joined);
    pass_differentiate(g, &s);
    graph_verify(g, "differentiate");
    if (reuse) pass_reuse(g, &s);
    graph_verify(g, "reuse");
    rig_open(r, DEVICE_CPU);
    rig_run(r);
}

static void test_cases(void **state)
{
    (void)state;
    for (enum addend_case addend_case = 0; addend_case < CASES; addend_case++)
        for (int type = 0; type < 2; type++) {
            const enum dtype f = type ? DT_BF16 : DT_F32;
            struct rig two, one, over;
            build(&two, addend_case, f, false, false);
            build(&one, addend_case, f, true, false);
            build(&over, addend_case, f, true, true);
            /* f32: another order of the sum; bf16: one rounding less, of which x's gradient sums
             * WIDE. */
            rig_same_gradients(&two, &one, 4 * dtype_table[f].epsilon * sqrt(type ? WIDE : DEEP), expected[addend_case].what);
            rig_same_gradients(&one, &over, 0, expected[addend_case].what);
            rig_close(&two);
            rig_close(&one);
            rig_close(&over);
        }
}

/* z = 1 + 2^-8 rounds to 1 in bf16. It must not be rounded before -1 is added. */
static void test_rounding(void **state)
{
    (void)state;
    struct rig r = {0};
    struct graph *g = &r.graph;
    graph_init(g);
    g->at.program = PROGRAM_STEP;
    id x = graph_param(g, "x", DT_BF16, 2, (int64_t[]){1, 2}, (struct init){INIT_ONE}), w = graph_param(g, "w", DT_BF16, 2, (int64_t[]){1, 2}, (struct init){INIT_ONE});
    id add = graph_param(g, "r", DT_BF16, 2, (int64_t[]){1, 1}, (struct init){INIT_ONE});
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
    seed_begin();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases), cmocka_unit_test(test_rounding)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

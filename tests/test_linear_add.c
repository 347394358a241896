/*
 * test_linear_add.c: a residual is added by the product that ends its branch: the gradients of the two ops, and the same
 * bits whether the sum lies on the residual or on bytes of its own; where somebody else reads the product, or the
 * other term is of another kind or not there yet, the sum stays.
 */
#include "optest.h"

#include "passes/passes.h"

enum { ROWS = 9, DEEP = 300, WIDE = 37 };

/* r is what the sum adds to z = x w^T. */
enum form {
    FORM_RESIDUAL,  /* r + z */
    FORM_TURNED,    /* z + r */
    FORM_BIAS,      /* r + z, z with a bias */
    FORM_SCALED,    /* r is made here, and ends with the sum */
    FORM_PRODUCTS,  /* r is a product too, and comes before */
    FORM_CHAIN,     /* r + z + z2, one sum behind the other */
    FORM_READ,      /* z is read once more */
    FORM_TWICE,     /* z + z */
    FORM_OUTPUT,    /* the host reads z */
    FORM_LATE,      /* r comes behind z */
    FORM_ROW,       /* r is one row, repeated */
    FORM_STRIDED,   /* r's rows are apart */
    FORM_BLOCK,     /* the sum is in another block */
    FORMS
};

static const struct {
    const char *what;
    int joined;
} expected[FORMS] = {
    {"r + z", 1}, {"z + r", 1}, {"with a bias", 1}, {"onto what ends there", 1}, {"two products", 1}, {"two sums", 2}, {"z is read", 0}, {"z + z", 0},
    {"z is an output", 0}, {"r comes behind z", 0}, {"r is a row", 0}, {"r is strided", 0}, {"another block", 0},
};

static id param(struct graph *g, const char *name, enum dtype f, int64_t rows, int64_t columns)
{
    return graph_param(g, name, f, columns ? 2 : 1, (int64_t[]){rows, columns}, (struct init){INIT_NORMAL, 0.3f, 0});
}

static id other_term(struct graph *g, enum form form, enum dtype f, id x)
{
    id r = form == FORM_ROW || form == FORM_PRODUCTS ? param(g, "r", f, WIDE, 0) : param(g, "r", f, ROWS, form == FORM_STRIDED ? 2 * WIDE : WIDE);
    if (form == FORM_SCALED || form == FORM_LATE) return op_scale(g, r, 0.5);
    if (form == FORM_PRODUCTS) {
        id square = op_mul(g, x, x), w0 = param(g, "w0", f, WIDE, DEEP);
        return op_linear(g, square, w0, r);
    }
    return form == FORM_STRIDED ? op_slice(g, r, 1, WIDE / 2, WIDE) : r;
}

static id emit(struct graph *g, enum form form, enum dtype f)
{
    id x = param(g, "x", f, ROWS, DEEP), w = param(g, "w", f, WIDE, DEEP), bias = form == FORM_BIAS ? param(g, "bias", f, WIDE, 0) : 0;
    id r = form == FORM_LATE ? 0 : other_term(g, form, f, x), outer = graph_scope_push(g, "layers.0", SCOPE_BLOCK);
    id z = op_linear(g, x, w, bias);
    if (form == FORM_BLOCK) {
        graph_scope_pop(g, outer);
        outer = graph_scope_push(g, "layers.1", SCOPE_BLOCK);
    }
    if (!r) r = other_term(g, form, f, x);
    id y = form == FORM_TWICE ? op_add(g, z, z) : form == FORM_TURNED ? op_add(g, z, r) : op_add(g, r, z);
    if (form == FORM_CHAIN) y = op_add(g, y, op_linear(g, x, param(g, "w2", f, WIDE, DEEP), 0));
    if (form == FORM_READ || form == FORM_TWICE) y = op_mul(g, y, form == FORM_READ ? z : r);
    if (form == FORM_OUTPUT) graph_output(g, "z", z);
    graph_scope_pop(g, outer);
    return y;
}

static void build(struct rig *r, enum form form, enum dtype f, bool join, bool reuse)
{
    struct graph *g = &r->graph;
    const struct settings s = {.micro_batch = 1, .accumulation = 1, .precision = DT_F32, .head_chunks = 1};
    memset(r, 0, sizeof *r);
    graph_init(g);
    g->at.program = PROGRAM_STEP;
    id y = emit(g, form, f);
    graph_output(g, "loss", op_sum(g, op_mul(g, y, y)));
    const int before = count_ops(g, OP_ADD);
    if (join) pass_linear_add(g, &s);
    graph_verify(g, "linear_add");
    if (join && before - count_ops(g, OP_ADD) != expected[form].joined)
        fail_msg("%s: of %d sums %d are joined, expected %d", expected[form].what, before, before - count_ops(g, OP_ADD), expected[form].joined);
    pass_differentiate(g, &s);
    graph_verify(g, "differentiate");
    if (reuse) pass_reuse(g, &s);
    graph_verify(g, "reuse");
    rig_open(r, DEVICE_CPU);
    rig_run(r);
}

static void test_forms(void **state)
{
    (void)state;
    for (enum form form = 0; form < FORMS; form++)
        for (int type = 0; type < 2; type++) {
            const enum dtype f = type ? DT_BF16 : DT_F32;
            struct rig two, one, over;
            build(&two, form, f, false, false);
            build(&one, form, f, true, false);
            build(&over, form, f, true, true);
            /* f32: another order of the sum; bf16: one rounding less, of which x's gradient sums WIDE. */
            rig_same_gradients(&two, &one, 4 * dtype_table[f].epsilon * sqrt(type ? WIDE : DEEP), expected[form].what);
            rig_same_gradients(&one, &over, 0, expected[form].what);
            rig_close(&two);
            rig_close(&one);
            rig_close(&over);
        }
}

/* z = 1 + 2^-8 is 1 in bf16. It is not rounded before -1 is added. */
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_forms), cmocka_unit_test(test_rounding)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

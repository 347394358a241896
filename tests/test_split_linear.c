/*
 * test_split_linear.c: a product of a sum with a constant becomes two products. The gradients are
 * those of the product of the sum. The sum remains where something else reads it, where both terms
 * depend on the batch or neither does, and where the product is wider than the sum.
 */
#include "optest.h"

#include "passes/passes.h"

enum { B = 3, T = 5, DEEP = 24, WIDE = 17 };

/* x [B,T,DEEP] depends on the batch; c is added to it. */
enum sum_case {
    CASE_POSITIONS,     /* x + c, c [T,DEEP] */
    CASE_SWAPPED,       /* c + x */
    CASE_ROW,           /* c [DEEP], which is no matrix */
    CASE_SAME_SHAPE,    /* c [B,T,DEEP] */
    CASE_COMPUTED,      /* c is computed from two weights */
    CASE_VIEW,          /* the product is read through a view, and a second split product reads it */
    CASE_SECOND_READER, /* the sum has a second reader */
    CASE_BATCH,         /* c depends on the batch too */
    CASE_CONSTANTS,     /* neither depends on the batch */
    CASE_WIDER,         /* the product is wider than the sum */
    CASE_OUTPUT,        /* the product is a graph output */
    CASES
};

static const struct {
    const char *what;
    int split;
} expected[CASES] = {
    {"x + c", 1}, {"c + x", 1}, {"c is a row", 0}, {"c has x's shape", 1}, {"c is computed", 1}, {"a view, and a second product", 2}, {"the sum has a second reader", 0},
    {"c depends on the batch", 0}, {"x is a constant", 0}, {"a wider product", 0}, {"the product is an output", 0},
};

static id param(struct graph *g, const char *name, int rank, const int64_t *dim)
{
    return graph_param(g, name, DT_F32, rank, dim, (struct init){INIT_NORMAL, 0.3f, 0});
}

static id constant(struct graph *g, enum sum_case c, id x)
{
    if (c == CASE_ROW) return param(g, "c", DIM(DEEP));
    if (c == CASE_SAME_SHAPE) return param(g, "c", DIM(B, T, DEEP));
    id positions = param(g, "c", DIM(T, DEEP));
    if (c == CASE_COMPUTED) return op_mul(g, positions, param(g, "d", DIM(DEEP)));
    return c == CASE_BATCH ? op_mul(g, x, positions) : positions;
}

static id emit(struct graph *g, enum sum_case c)
{
    const int64_t wide = c == CASE_WIDER ? DEEP + 1 : WIDE;
    id ids = graph_input(g, "ids", DT_I32, DIM(B, T));
    id scale = param(g, "x", DIM(B, T, DEEP)), x = c == CASE_CONSTANTS ? scale : op_mul(g, scale, op_embedding(g, ids, param(g, "table", DIM(7, DEEP))));
    id p = constant(g, c, x), s = c == CASE_SWAPPED ? op_add(g, p, x) : op_add(g, x, p);
    id w = param(g, "w", DIM(wide, DEEP)), y = op_linear(g, s, w, param(g, "bias", DIM(wide)));
    if (c == CASE_SECOND_READER) y = op_mul(g, y, op_linear(g, s, w, 0));
    if (c == CASE_OUTPUT) graph_output(g, "y", y);
    if (c != CASE_VIEW) return y;
    y = op_reshape(g, y, DIM(T, B, WIDE));
    id next = op_add(g, y, param(g, "e", DIM(B, WIDE)));
    return op_linear(g, next, param(g, "v", DIM(WIDE - 1, WIDE)), 0);
}

static void build(struct rig *r, enum sum_case c, bool split)
{
    struct graph *g = &r->graph;
    const struct settings s = {.micro_batch = 1, .accumulation = 1, .precision = DT_F32, .head_chunks = 1};
    memset(r, 0, sizeof *r);
    graph_init(g);
    g->at.program = PROGRAM_STEP;
    id y = emit(g, c);
    graph_output(g, "loss", op_sum(g, op_mul(g, y, y)));
    const int products = count_ops(g, OP_LINEAR), sums = count_ops(g, OP_ADD);
    if (split) pass_split_linear(g, &s);
    graph_verify(g, "split_linear");
    if (split && (count_ops(g, OP_LINEAR) - products != expected[c].split || count_ops(g, OP_ADD) != sums))
        fail_msg("%s: %d products are split, expected %d", expected[c].what, count_ops(g, OP_LINEAR) - products, expected[c].split);
    pass_differentiate(g, &s);
    graph_verify(g, "differentiate");
    rig_open(r, DEVICE_CPU);
    rig_run(r);
}

static void test_cases(void **state)
{
    (void)state;
    for (enum sum_case c = 0; c < CASES; c++) {
        struct rig one, two;
        build(&one, c, false);
        build(&two, c, true);
        rig_same_gradients(&one, &two, expected[c].split ? 8 * dtype_table[DT_F32].epsilon * sqrt(DEEP) : 0, expected[c].what);
        rig_close(&one);
        rig_close(&two);
    }
}

int main(void)
{
    seed_begin();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

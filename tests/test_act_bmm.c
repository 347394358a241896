/*
 * test_act_bmm.c: an activation that only a product of few rows reads is computed in that product.
 * On a CPU the gradients have the bits of the two ops, in f32 and bf16. The two ops remain where
 * something else reads the activation, where the product has many rows or another form, and where
 * an operand is strided.
 */
#include "optest.h"

#include "passes/passes.h"

enum { B = 3, N = 40, K = 8 };

enum filter_case {
    CASE_FILTERS,       /* a [B,3,K], z [B,N,K] */
    CASE_RESHAPED,      /* z is a map [B,5,8,K], reshaped between the two */
    CASE_RELU,
    CASE_SECOND_READER, /* the activation has a second reader */
    CASE_VIEW_READ,     /* a view of it has one */
    CASE_MANY_ROWS,     /* a has more rows than a filter bank */
    CASE_NOT_TRANSPOSED,
    CASE_LOWER,         /* the result is not f32 */
    CASE_STRIDED,       /* z's rows are strided */
    CASES
};

static const struct {
    const char *what;
    int fused;
} expected[CASES] = {
    {"filters", 1}, {"a map", 1}, {"RELU", 1}, {"a second reader", 0}, {"a reader of the view", 0}, {"many rows", 0}, {"not transposed", 0}, {"a lower result", 0}, {"strided", 0},
};

/* An activation: a weight times a number. */
static id drawn(struct graph *g, const char *name, enum dtype f, int rank, const int64_t *dim)
{
    return op_scale(g, graph_param(g, name, f, rank, dim, (struct init){INIT_NORMAL, 0.5f, 0}), 1.5);
}

static id emit(struct graph *g, enum filter_case c, enum dtype f)
{
    const int64_t rows = c == CASE_MANY_ROWS ? 65 : 3, k = c == CASE_NOT_TRANSPOSED ? N : K;
    const bool reshaped = c == CASE_RESHAPED || c == CASE_VIEW_READ;
    id a = drawn(g, "a", f, DIM(B, rows, k)), z = reshaped ? drawn(g, "z", f, DIM(B, 5, 8, K)) : drawn(g, "z", f, DIM(B, N, c == CASE_STRIDED ? 2 * K : K));
    if (c == CASE_STRIDED) z = op_slice(g, z, 2, 1, K);
    id h = op_act(g, z, c == CASE_RELU ? ACT_RELU : ACT_GELU), v = h;
    if (reshaped) v = op_reshape(g, h, DIM(B, N, K));
    id y = op_bmm(g, a, v, false, c != CASE_NOT_TRANSPOSED, c == CASE_LOWER ? DT_BF16 : DT_F32);
    if (c == CASE_SECOND_READER || c == CASE_VIEW_READ) graph_output(g, "more", op_sum(g, op_mul(g, v, v)));
    return y;
}

static void build(struct rig *r, enum filter_case c, enum dtype f, bool fuse)
{
    struct graph *g = &r->graph;
    const struct settings s = {.micro_batch = 1, .accumulation = 1, .precision = DT_F32, .head_chunks = 1};
    memset(r, 0, sizeof *r);
    graph_init(g);
    g->at.program = PROGRAM_STEP;
    id y = emit(g, c, f);
    graph_output(g, "loss", op_sum(g, op_mul(g, y, y)));
    if (fuse) pass_act_bmm(g, &s);
    graph_verify(g, "act_bmm");
    if (fuse && (count_ops(g, OP_BMM_ACT) != expected[c].fused || count_ops(g, OP_ACT) != !expected[c].fused))
        fail_msg("%s: %d products compute the activation, expected %d", expected[c].what, count_ops(g, OP_BMM_ACT), expected[c].fused);
    pass_differentiate(g, &s);
    graph_verify(g, "differentiate");
    rig_open(r, DEVICE_CPU);
    rig_run(r);
}

static void test_cases(void **state)
{
    (void)state;
    for (enum filter_case c = 0; c < CASES; c++)
        for (int type = 0; type < 2; type++) {
            const enum dtype f = type || c == CASE_LOWER ? DT_BF16 : DT_F32;
            struct rig two, one;
            build(&two, c, f, false);
            build(&one, c, f, true);
            rig_same_gradients(&two, &one, 0, expected[c].what);
            rig_close(&two);
            rig_close(&one);
        }
}

int main(void)
{
    seed_begin();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

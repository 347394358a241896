/*
 * test_first_sum.c: the first micro-batch writes the gradient that the others add to, so no zeros
 * are needed. Dead and new bytes are NaN here, so any use of zeros that nothing wrote is detected.
 * The gradients have the same bits as with the zeros.
 */
#include "optest.h"

#include "passes/passes.h"

enum { ROWS = 12, DEEP = 5, WIDE = 16 };

/* z = act(x w1^T + b) w2^T, with w1 a second time where it is tied. The head, which contains the
 * loss, runs in chunks. With `shared` the chunks share a result of each micro-batch: its gradient
 * is a sum over the chunks, which starts anew in each micro-batch. */
struct layer {
    const char *what;
    int accumulation, chunks;
    bool tied, shared;
    int silent; /* number of removed fills, at least */
};

static const struct layer all[] = {
    {"one micro-batch", 1, 1, false, false, 0},
    {"three micro-batches", 3, 1, false, false, 4},
    {"a weight with two uses", 3, 1, true, false, 3},
    {"a head in chunks", 1, 3, false, false, 1},
    {"a head in chunks, two micro-batches", 2, 3, false, false, 4},
    {"a tied head in chunks, two micro-batches", 2, 4, true, false, 3},
    {"a head in chunks that share a result of each of two micro-batches", 2, 3, false, true, 5},
};

static id param(struct graph *g, const char *name, int64_t rows, int64_t columns)
{
    return graph_param(g, name, DT_F32, columns ? 2 : 1, (int64_t[]){rows, columns}, (struct init){INIT_NORMAL, 0.5});
}

static int count_silent(const struct graph *g)
{
    int n = 0;
    for (uint32_t k = 0; k < g->order[PROGRAM_STEP].nodes.n; k++) n += node_at(g, g->order[PROGRAM_STEP].nodes.at[k])->silent;
    return n;
}

static void build(struct rig *r, const struct layer *l, bool first)
{
    struct graph *g = &r->graph;
    const struct settings s = {.micro_batch = 1, .accumulation = l->accumulation, .precision = DT_F32, .head_chunks = l->chunks};
    memset(r, 0, sizeof *r);
    graph_init(g);
    g->at.program = PROGRAM_STEP;
    id x = graph_input(g, "x", DT_F32, 2, (int64_t[]){ROWS, DEEP}), w1 = param(g, "w1", WIDE, DEEP);
    id y = op_act(g, op_linear(g, x, w1, param(g, "b", WIDE, 0)), ACT_GELU);
    id z = op_linear(g, y, param(g, "w2", DEEP, WIDE), 0);
    id gate = l->shared ? op_act(g, param(g, "s", WIDE, 0), ACT_GELU) : 0;
    id scope = graph_scope_push(g, "head", SCOPE_ROWS);
    id h = op_linear(g, z, l->tied ? w1 : param(g, "w3", WIDE, DEEP), 0);
    if (gate) h = op_mul(g, h, gate);
    id loss = op_sum(g, op_mul(g, h, h));
    graph_scope_pop(g, scope);
    graph_output(g, "loss", loss);
    pass_chunk(g, &s);
    graph_verify(g, "chunk");
    pass_differentiate(g, &s);
    pass_accumulate(g, &s);
    pass_reuse(g, &s);
    graph_verify(g, "reuse");
    if (first) pass_first_sum(g, &s);
    graph_verify(g, "first_sum");
    if (first && (count_silent(g) < l->silent || (!l->silent && count_silent(g))))
        fail_msg("%s: %d fills are silent, expected %d", l->what, count_silent(g), l->silent);
    rig_open(r, DEVICE_CPU);
    rig_run(r);
    rig_run(r); /* runs over the results of the first run */
}

static void test_layers(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(all); i++) {
        struct rig a, b;
        build(&a, &all[i], false);
        build(&b, &all[i], true);
        rig_same_gradients(&a, &b, 0, all[i].what);
        rig_close(&a);
        rig_close(&b);
    }
}

/* A fill remains where a node other than a sum reads it, where it is not 0, or where the sum covers
 * only a slice of it. */
static void test_fill_remains(void **state)
{
    (void)state;
    const struct settings s = {.micro_batch = 1, .accumulation = 1};
    for (int how = 0; how < 3; how++) {
        struct graph g;
        graph_init(&g);
        g.at.program = PROGRAM_STEP;
        id a = param(&g, "a", 4, 4), zero = op_fill(&g, DT_F32, 2, (int64_t[]){4, 4}, how == 1 ? 1 : 0);
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
    (void)state;
    for (int how = 1; how < 4; how++) {
        const int micro = how & 1 ? 3 : 1, shares = how & 2 ? 2 : 1;
        struct graph g;
        const struct settings s = {.micro_batch = 1, .accumulation = micro, .shares = shares, .train = true, .precision = DT_F32, .head_chunks = 1};
        graph_init(&g);
        g.at.program = PROGRAM_STEP;
        id x = graph_input(&g, "x", DT_F32, 2, (int64_t[]){ROWS, DEEP}), part = op_slice(&g, x, 1, 2, 2);
        id y = op_mul(&g, op_dense(&g, part), graph_param(&g, "w", DT_F32, 1, (int64_t[]){2}, (struct init){INIT_ONE}));
        graph_output(&g, "loss", op_add(&g, op_sum(&g, y), op_sum(&g, x)));
        pass_differentiate(&g, &s);
        pass_accumulate(&g, &s);
        pass_shares(&g, &s);
        graph_verify(&g, "shares");
        assert_int_equal(storage_of(&g, x)->bytes, (uint64_t)(micro * shares) * ROWS * DEEP * sizeof(float));
        assert_int_equal(tensor_at(&g, x)->advance, ROWS * DEEP * sizeof(float));
        assert_int_equal(tensor_at(&g, part)->advance, ROWS * DEEP * sizeof(float));
        graph_free(&g);
    }
}

int main(void)
{
    seed_begin();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_layers), cmocka_unit_test(test_fill_remains), cmocka_unit_test(test_part_of_input)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

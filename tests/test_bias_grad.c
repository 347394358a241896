/*
 * test_bias_grad.c: on a GPU the activation's backward kernel also computes the gradient of the
 * bias before the activation, and it is the same sum. The separate sum remains where there is no
 * activation, no bias or no GPU, or where the sum is added to another one.
 */
#include "optest.h"

#include "passes/passes.h"

enum { ROWS = 12, DEEP = 5, WIDE = 7 };

/* y = f(x w^T + b), the loss is the sum of its squares. */
struct layer {
    const char *what;
    bool act, bias, twice, gpu; /* twice: the same weights and bias for two inputs */
    int accumulation;
    int joined;
};

static const struct layer all[] = {
    {"a layer", true, true, false, true, 1, 1},
    {"micro-batches", true, true, false, true, 3, 1},
    {"two inputs, one bias", true, true, true, true, 1, 1}, /* the second sum is added to the first one */
    {"no activation", false, true, false, true, 1, 0},
    {"no bias", true, false, false, true, 1, 0},
    {"a processor", true, true, false, false, 1, 0},
};

static id param(struct graph *g, const char *name, int rank, int64_t a, int64_t b)
{
    return graph_param(g, name, DT_F32, rank, (int64_t[]){a, b}, (struct init){INIT_NORMAL, 0.5});
}

static void build(struct rig *r, const struct layer *l, bool join)
{
    struct graph *g = &r->graph;
    const struct settings s = {.micro_batch = 1, .accumulation = l->accumulation, .precision = DT_F32, .head_chunks = 1, .device = device_traits(l->gpu ? DEVICE_CUDA : DEVICE_CPU)};
    memset(r, 0, sizeof *r);
    graph_init(g);
    g->at.program = PROGRAM_STEP;
    id w = param(g, "w", 2, WIDE, DEEP), b = l->bias ? param(g, "b", 1, WIDE, 0) : 0, loss = 0;
    for (int i = 0; i <= l->twice; i++) {
        id y = op_linear(g, param(g, i ? "x1" : "x0", 2, ROWS, DEEP), w, b);
        if (l->act) y = op_act(g, y, ACT_GELU);
        y = op_sum(g, op_mul(g, y, y));
        loss = loss ? op_add(g, loss, y) : y;
    }
    graph_output(g, "loss", loss);
    pass_differentiate(g, &s);
    graph_verify(g, "differentiate");
    if (join) pass_bias_grad(g, &s);
    graph_verify(g, "bias_grad");
    if (join && count_ops(g, OP_ACT_BWD_SUM) != l->joined) fail_msg("%s: %d sums are joined, expected %d", l->what, count_ops(g, OP_ACT_BWD_SUM), l->joined);
    pass_accumulate(g, &s);
    graph_verify(g, "accumulate");
    pass_reuse(g, &s);
    graph_verify(g, "reuse");
    rig_open(r, DEVICE_CPU);
    rig_run(r);
}

static void test_layers(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(all); i++) {
        struct rig a, b;
        build(&a, &all[i], false);
        build(&b, &all[i], true);
        rig_same_gradients(&a, &b, 1e-5, all[i].what); /* the f32 sums differ in order */
        rig_close(&a);
        rig_close(&b);
    }
}

int main(void)
{
    seed_begin();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_layers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * test_act_recompute.c: an activation that is recomputed only for a weight's gradient is computed
 * by the activation's backward kernel, with the same bits, also where outputs overwrite inputs. The
 * separate recomputation remains where another node reads it earlier.
 */
#include "optest.h"

#include "passes/passes.h"

enum { ROWS = 12, DEEP = 5, WIDE = 16 };

/* y = f(x w1^T + b) or silu(x w1^T) * (x w0^T), z = y w2^T; the loss is the sum of squares of z,
 * and with `more` of y. */
struct layer {
    const char *what;
    bool gate, gpu, more, selective;
    int accumulation;
    int gates, acts; /* number of backward nodes that recompute it */
};

static const struct layer all[] = {
    {"a gate", true, false, false, true, 1, 1, 0},
    {"a gate, micro-batches", true, false, false, true, 3, 1, 0},
    {"a gate on a GPU", true, true, false, true, 1, 1, 0},
    {"a gate with another reader", true, false, true, true, 1, 0, 0},
    {"a gate that is kept", true, false, false, false, 1, 0, 0},
    {"an activation on a GPU", false, true, false, true, 1, 0, 1},
    {"an activation on a GPU, micro-batches", false, true, false, true, 3, 0, 1},
    {"an activation with another reader", false, true, true, true, 1, 0, 0},
    {"an activation on a CPU", false, false, false, true, 1, 0, 0},
};

static id param(struct graph *g, const char *name, int64_t rows, int64_t columns)
{
    return graph_param(g, name, DT_F32, columns ? 2 : 1, (int64_t[]){rows, columns}, (struct init){INIT_NORMAL, 0.5});
}

static int count_recomputing(const struct graph *g, enum op op)
{
    int n = 0;
    for (uint32_t k = 0; k < g->order[PROGRAM_STEP].nodes.n; k++) {
        const struct node *x = node_at(g, g->order[PROGRAM_STEP].nodes.at[k]);
        n += x->op == op && x->nout == 3;
    }
    return n;
}

static void build(struct rig *r, const struct layer *l, bool fused)
{
    struct graph *g = &r->graph;
    const struct settings s = {.micro_batch = 1, .accumulation = l->accumulation, .precision = DT_F32, .head_chunks = 1, .device = device_traits(l->gpu ? DEVICE_CUDA : DEVICE_CPU),
                               .recompute = {.kind = l->selective ? RECOMPUTE_SELECTIVE : RECOMPUTE_NONE}};
    memset(r, 0, sizeof *r);
    graph_init(g);
    g->at.program = PROGRAM_STEP;
    id x = param(g, "x", ROWS, DEEP), w1 = param(g, "w1", WIDE, DEEP), b = l->gate ? 0 : param(g, "b", WIDE, 0);
    id h = op_linear(g, x, w1, b);
    id y = l->gate ? op_silu_gate(g, h, op_linear(g, x, param(g, "w0", WIDE, DEEP), 0)) : op_act(g, h, ACT_GELU);
    id z = op_linear(g, y, param(g, "w2", DEEP, WIDE), 0), loss = op_sum(g, op_mul(g, z, z));
    if (l->more) loss = op_add(g, loss, op_sum(g, op_mul(g, y, y)));
    graph_output(g, "loss", loss);
    pass_differentiate(g, &s);
    pass_bias_grad(g, &s);
    pass_accumulate(g, &s);
    pass_selective(g, &s);
    graph_verify(g, "selective");
    if (fused) pass_act_recompute(g, &s);
    graph_verify(g, "act_recompute");
    if (fused && (count_recomputing(g, OP_SILU_GATE_BWD_Y) != l->gates || count_recomputing(g, OP_ACT_BWD_SUM) != l->acts))
        fail_msg("%s: backward kernels recompute %d gates and %d activations, expected %d and %d", l->what, count_recomputing(g, OP_SILU_GATE_BWD_Y),
                 count_recomputing(g, OP_ACT_BWD_SUM), l->gates, l->acts);
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
        rig_same_gradients(&a, &b, 0, all[i].what);
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

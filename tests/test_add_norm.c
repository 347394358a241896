/*
 * test_add_norm.c: a sum and the following norm as one op have the bits of the two ops, in every
 * dtype. They remain two ops where another node lies between them, or where an input dies at the
 * sum and the sum is not stored in its bytes.
 */
#include "optest.h"

#include "passes/passes.h"

enum { ROWS = 7, WIDE = 331 };

/* apart: nothing is fused, because the sum's input is an intermediate that dies here. */
static void build(struct rig *r, enum dtype f, bool centred, bool join, bool apart)
{
    struct graph *g = &r->graph;
    const struct init normal = {INIT_NORMAL, 1, 0};
    memset(r, 0, sizeof *r);
    graph_init(g);
    g->at.program = PROGRAM_STEP;
    id a = graph_param(g, "a", f, 2, (int64_t[]){ROWS, WIDE}, normal), b = op_scale(g, graph_param(g, "b", f, 2, (int64_t[]){ROWS, WIDE}, normal), 0.3);
    id w = graph_param(g, "w", f, 1, (int64_t[]){WIDE}, normal), c = centred ? graph_param(g, "c", f, 1, (int64_t[]){WIDE}, normal) : 0;
    id sum = op_add(g, a, b), y = centred ? op_layernorm(g, sum, w, c, 1e-3f) : op_rmsnorm(g, sum, w, 1e-3f);
    graph_output(g, "r", op_scale(g, sum, 1));
    graph_output(g, "y", y);
    graph_output(g, "rstd", node_at(g, tensor_at(g, y)->node)->out[centred ? 2 : 1]);
    if (join && !apart) pass_reuse(g, NULL); /* the sum overwrites b */
    if (join) pass_add_norm(g, NULL);
    graph_verify(g, "add_norm");
    const uint32_t nodes = g->order[PROGRAM_STEP].nodes.n, expected = join && !apart ? 3 : 4;
    if (nodes != expected) fail_msg("%u nodes, expected %u", nodes, expected);
    rig_open(r, DEVICE_CPU);
    rig_run(r);
}

static void same(const struct rig *a, const struct rig *b, const char *name)
{
    id s = graph_find_output(&a->graph, PROGRAM_STEP, name), t = graph_find_output(&b->graph, PROGRAM_STEP, name);
    double *x = rig_read(a, s), *y = rig_read(b, t);
    for (int64_t k = 0; k < tensor_elements(tensor_at(&a->graph, s)); k++)
        if (x[k] != y[k]) fail_msg("%s[%d] is %g, the two ops give %g", name, (int)k, y[k], x[k]);
    mem_free(x);
    mem_free(y);
}

static void test_bits(void **state)
{
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16};
    (void)state;
    for (int i = 0; i < 12; i++) {
        struct rig a, b;
        build(&a, types[i / 4], i & 1, false, false);
        build(&b, types[i / 4], i & 1, true, i & 2);
        same(&a, &b, "r");
        same(&a, &b, "y");
        same(&a, &b, "rstd");
        rig_close(&a);
        rig_close(&b);
    }
}

int main(void)
{
    seed_begin();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

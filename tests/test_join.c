/*
 * test_join.c: the gradients of slices that cover the whole tensor are concatenated, with the same
 * bits. The gradients of slices that overlap, leave gaps or have other readers are summed.
 */
#include "optest.h"

#include "passes/passes.h"

enum { WIDE = 12, DEEP = 4 };

struct slicing {
    const char *what;
    int64_t from[4], length[4];
    int axis;
    bool joined;
};

static const struct slicing slicings[] = {
    {"three thirds", {0, 4, 8}, {4, 4, 4}, 0, true},
    {"out of order, unequal", {7, 0, 3}, {5, 3, 4}, 0, true},
    {"four, the other axis", {0, 1, 2, 3}, {1, 1, 1, 1}, 1, true},
    {"a gap", {0, 8}, {4, 4}, 0, false},
    {"the end is missing", {0, 4}, {4, 4}, 0, false},
    {"an overlap", {0, 4, 6}, {6, 4, 6}, 0, false},
};

/* The loss contains the square of each slice, so that gradients differ between elements. */
static void build(struct rig *r, const struct slicing *c, bool join)
{
    struct graph *g = &r->graph;
    memset(r, 0, sizeof *r);
    graph_init(g);
    g->at.program = PROGRAM_STEP;
    id w = graph_param(g, "w", DT_F32, 2, (int64_t[]){WIDE, DEEP}, (struct init){INIT_NORMAL, 1, 0}), loss = 0;
    for (int i = 0; i < 4 && c->length[i]; i++) {
        id part = op_dense(g, op_slice(g, w, c->axis, c->from[i], c->length[i]));
        id term = op_sum(g, op_mul(g, part, part));
        loss = loss ? op_add(g, loss, term) : term;
    }
    graph_output(g, "loss", loss);
    const struct settings s = {.micro_batch = 1, .accumulation = 1, .precision = DT_F32, .head_chunks = 1};
    pass_differentiate(g, &s);
    graph_verify(g, "differentiate");
    if (join) pass_join(g, &s);
    graph_verify(g, "join");
    rig_open(r, DEVICE_REF);
    rig_run(r);
}

static void test_slicings(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(slicings); i++) {
        const struct slicing *c = &slicings[i];
        struct rig a, b;
        build(&a, c, false);
        build(&b, c, true);
        const int pads = count_ops(&a.graph, OP_PAD);
        if (pads < 2) fail_msg("%s: %d PADs before", c->what, pads);
        if (count_ops(&b.graph, OP_CONCAT) != c->joined || count_ops(&b.graph, OP_PAD) != (c->joined ? 0 : pads))
            fail_msg("%s: %d CONCATs and %d PADs", c->what, count_ops(&b.graph, OP_CONCAT), count_ops(&b.graph, OP_PAD));
        double *x = rig_read(&a, rig_param(&a, "w")->grad), *y = rig_read(&b, rig_param(&b, "w")->grad);
        for (int k = 0; k < WIDE * DEEP; k++)
            if (x[k] != y[k]) fail_msg("%s: [%d] is %g, the sum gives %g", c->what, k, y[k], x[k]);
        mem_free(x);
        mem_free(y);
        rig_close(&a);
        rig_close(&b);
    }
}

int main(void)
{
    seed_begin();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_slicings)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

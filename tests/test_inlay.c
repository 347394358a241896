/*
 * test_inlay.c: the gradients of slices that attention reads are written directly into one tensor,
 * by every kernel with the bits of a CONCAT. The CONCAT remains where another node reads one of the
 * gradients, or where rows would start at unaligned offsets.
 */
#include "optest.h"

#include "passes/passes.h"

enum { BATCH = 2, SIDE = 4, HEADS = 2, WINDOW = 3 };

enum attention_kind { PLAIN, RELATIVE, WINDOWED, BIASED };

struct shape {
    const char *what;
    enum attention_kind kind;
    int64_t D;
    bool inlaid;
};

static const struct shape shapes[] = {
    {"plain", PLAIN, 8, true},       {"over a grid", RELATIVE, 8, true}, {"within windows", WINDOWED, 8, true},
    {"by a bias", BIASED, 12, true}, {"heads of three", PLAIN, 3, false},
};

static id table(struct graph *g, const char *name, int64_t rows, int64_t D)
{
    return graph_param(g, name, DT_F32, 2, (int64_t[]){rows, D}, (struct init){INIT_NORMAL, 0.5f, 0});
}

static id attend(struct graph *g, const struct shape *s, id q, id k, id v)
{
    if (s->kind == PLAIN) return op_attention(g, q, k, v, 0.5f, false);
    if (s->kind == BIASED) return op_attention_bias(g, q, k, v, table(g, "b", HEADS, SIDE * SIDE), SIDE, 0.5f);
    const int64_t size = s->kind == RELATIVE ? SIDE : WINDOW;
    id h = table(g, "h", 2 * size - 1, s->D), w = table(g, "w", 2 * size - 1, s->D);
    if (s->kind == RELATIVE) return op_attention_rel(g, q, k, v, h, w, SIDE, SIDE, 0.5f);
    return op_attention_window(g, q, k, v, h, w, 0, (struct window_options){SIDE, SIDE, WINDOW, 0.5f});
}

static void build(struct rig *r, const struct shape *s, enum device_kind device, bool inlay)
{
    struct graph *g = &r->graph;
    const int64_t T = SIDE * SIDE, C = HEADS * s->D, all[] = {BATCH, T, 3 * HEADS, s->D};
    memset(r, 0, sizeof *r);
    graph_init(g);
    g->at.program = PROGRAM_STEP;
    id x = graph_param(g, "x", DT_F32, 3, (int64_t[]){BATCH, T, C}, (struct init){INIT_NORMAL, 1, 0});
    id w = graph_param(g, "weight", DT_F32, 2, (int64_t[]){3 * C, C}, (struct init){INIT_NORMAL, 0.5f, 0});
    id qkv = op_reshape(g, op_linear(g, x, w, 0), 4, all), part[3];
    for (int i = 0; i < 3; i++) part[i] = op_slice(g, qkv, 2, i * HEADS, HEADS);
    id o = attend(g, s, part[0], part[1], part[2]);
    graph_output(g, "loss", op_sum(g, op_mul(g, o, o)));
    const struct settings settings = {.micro_batch = 1, .accumulation = 1, .precision = DT_F32, .head_chunks = 1};
    pass_differentiate(g, &settings);
    pass_join(g, &settings);
    if (inlay) pass_inlay(g, &settings);
    graph_verify(g, "inlay");
    rig_open(r, device);
    rig_run(r);
}

static void compare(struct rig *a, struct rig *b, const char *what, const char *name)
{
    double *x = rig_read(a, rig_param(a, name)->grad), *y = rig_read(b, rig_param(b, name)->grad);
    const int64_t n = tensor_elements(tensor_at(&a->graph, rig_param(a, name)->grad));
    for (int64_t k = 0; k < n; k++)
        if (x[k] != y[k]) fail_msg("%s: %s[%d] is %g, with a CONCAT %g", what, name, (int)k, y[k], x[k]);
    mem_free(x);
    mem_free(y);
}

static void test_shapes(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2 * COUNT(shapes); i++) {
        const struct shape *s = &shapes[i / 2];
        const enum device_kind device = i % 2 ? DEVICE_CPU : DEVICE_REF;
        struct rig a, b;
        build(&a, s, device, false);
        build(&b, s, device, true);
        if (count_ops(&a.graph, OP_CONCAT) != 1 || count_ops(&b.graph, OP_CONCAT) != !s->inlaid)
            fail_msg("%s: %d CONCATs, and %d after the pass", s->what, count_ops(&a.graph, OP_CONCAT), count_ops(&b.graph, OP_CONCAT));
        compare(&a, &b, s->what, "x");
        compare(&a, &b, s->what, "weight");
        rig_close(&a);
        rig_close(&b);
    }
}

int main(void)
{
    seed_begin();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shapes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

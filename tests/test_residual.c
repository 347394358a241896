/*
 * test_residual.c: the backward of a norm adds the gradient that bypasses the norm. In f32 the bits
 * are unchanged, whether results overwrite inputs or not. The separate sum remains where the other
 * gradient is not computed yet, or where another node reads the norm's own gradient.
 */
#include "optest.h"

#include "passes/passes.h"

enum { ROWS = 5, WIDE = 37 };

enum use { USE_PAST, USE_SCALE, USE_SQUARE, USE_NORM };

/* The uses of x in the order of the forward; the backward visits them in reverse. */
struct uses {
    const char *what;
    int n;
    enum use at[3];
    int joined; /* number of gradient sums of x that norms perform */
};

static const struct uses all[] = {
    {"a residual", 2, {USE_NORM, USE_PAST}, 1},
    {"onto a sum", 2, {USE_NORM, USE_SQUARE}, 1},
    {"two norms", 2, {USE_NORM, USE_NORM}, 1},
    {"two norms and a residual", 3, {USE_NORM, USE_NORM, USE_PAST}, 2},
    {"the norm comes first", 2, {USE_SCALE, USE_NORM}, 0},
    {"no sum", 1, {USE_NORM}, 0},
};

static id norm_of(struct graph *g, id x, id w, bool centred)
{
    return centred ? op_layernorm(g, x, w, graph_param(g, "b", DT_F32, 1, (int64_t[]){WIDE}, (struct init){INIT_NORMAL, 0}), 1e-3f)
                   : op_rmsnorm(g, x, w, 1e-3f);
}

/* The loss is the sum of squares of all results computed from x. */
static void build(struct rig *r, const struct uses *u, bool centred, bool join, enum device_kind device)
{
    struct graph *g = &r->graph;
    char name[] = "w0";
    memset(r, 0, sizeof *r);
    graph_init(g);
    g->at.program = PROGRAM_STEP;
    id x = op_scale(g, graph_param(g, "x", DT_F32, 2, (int64_t[]){ROWS, WIDE}, (struct init){INIT_NORMAL, 0}), 0.5), total = 0;
    for (int i = 0; i < u->n; i++) {
        id y = x;
        name[1] = (char)('0' + i);
        if (u->at[i] == USE_SCALE) y = op_scale(g, x, 3);
        if (u->at[i] == USE_SQUARE) y = op_mul(g, x, x);
        if (u->at[i] == USE_NORM)
            y = norm_of(g, x, graph_param(g, name, DT_F32, 1, (int64_t[]){WIDE}, (struct init){INIT_NORMAL, 0}), centred && !i);
        total = total ? op_add(g, total, y) : y;
    }
    id loss = op_sum(g, op_mul(g, total, total));
    graph_output(g, "loss", loss);
    const struct settings s = {.micro_batch = 1, .accumulation = 1, .precision = DT_F32, .head_chunks = 1};
    pass_differentiate(g, &s);
    graph_verify(g, "differentiate");
    const int before = count_ops(g, OP_ACCUMULATE);
    if (join) pass_residual(g, &s);
    graph_verify(g, "residual");
    if (join && before - count_ops(g, OP_ACCUMULATE) != u->joined)
        fail_msg("%s: of %d sums %d are joined, expected %d", u->what, before, before - count_ops(g, OP_ACCUMULATE), u->joined);
    if (join) pass_reuse(g, &s);
    graph_verify(g, "reuse");
    rig_open(r, device);
    rig_run(r);
}

static void test_uses(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(all); i++)
        for (int centred = 0; centred < 2; centred++) {
            struct rig a, b;
            build(&a, &all[i], centred, false, DEVICE_CPU);
            build(&b, &all[i], centred, true, DEVICE_CPU);
            rig_same_gradients(&a, &b, 0, all[i].what);
            rig_close(&a);
            rig_close(&b);
        }
}

int main(void)
{
    seed_begin();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_uses)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

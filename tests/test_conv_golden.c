/*
 * test_conv_golden.c: compares convolutions and their gradients with PyTorch's, from
 * tests/golden/conv.safetensors (written by tests/golden/make_conv.py, which has the same table of
 * cases). Each case runs through a graph, forward and backward, on the reference kernels and on the
 * CPU's, in f32, and in bf16 on the CPU.
 *
 * The file's values are exact results rounded once to f32, so the tolerance is that of one rounding
 * and of an f32 sum's error growth: c (eps / 2 + eps(f32) sqrt(length)).
 */
#include "optest.h"

#include "io/safetensors.h"

static struct st_file golden;

struct convolution {
    const char *name;
    int stride, pad, groups;
    bool bias, transposed;
};

static const struct convolution CASES[] = {
    {"pointwise", 1, 0, 1, true, false},   {"patch", 4, 0, 1, true, false},     {"patch_rest", 4, 0, 1, false, false},
    {"same3", 1, 1, 1, false, false},      {"down3", 2, 1, 1, true, false},     {"valid3", 2, 0, 1, true, false},
    {"oblong", 3, 2, 1, true, false},      {"sparse1", 2, 0, 1, false, false},  {"depthwise3", 1, 1, 7, true, false},
    {"depthwise3_down", 2, 1, 6, true, false}, {"depthwise5", 1, 2, 5, false, false},
    {"up2", 2, 0, 1, true, true},          {"up4", 2, 1, 1, true, true},        {"up3", 1, 1, 1, false, true},
    {"up3_gaps", 3, 0, 1, true, true},
};

/* --- the file ------------------------------------------------------------------------------ */

static const struct st_entry *entry_of(const struct convolution *n, const char *what)
{
    char name[64];
    snprintf(name, sizeof name, "%s.%s", n->name, what);
    const struct st_entry *e = st_find(&golden, name);
    if (!e || e->dtype != DT_F32) fail_msg("tests/golden/conv.safetensors has no f32 tensor %s", name);
    return e;
}

/* The caller frees. */
static float *values_of(const struct convolution *n, const char *what)
{
    const struct st_entry *e = entry_of(n, what);
    float *x = mem_alloc(e->bytes);
    struct error error = {0};
    must(st_read(&golden, e, 0, e->bytes, x, &error), &error);
    return x;
}

/* --- a case in a graph ----------------------------------------------------------------------- */

static id param_of(struct graph *g, const struct convolution *n, const char *what, enum dtype f)
{
    const struct st_entry *e = entry_of(n, what);
    return graph_param(g, what, f, e->rank, e->dims, (struct init){INIT_NORMAL, 1, 0});
}

/* loss = sum of y dy, so that y's gradient is dy. */
static void build(struct graph *g, const struct convolution *n, enum dtype f)
{
    graph_init(g);
    id x = param_of(g, n, "x", f), w = param_of(g, n, "w", f), b = n->bias ? param_of(g, n, "b", f) : 0;
    id y = n->transposed ? op_conv_transpose(g, x, w, b, n->stride, n->pad)
                         : op_conv(g, x, w, b, n->stride, n->pad, n->groups);
    const struct st_entry *e = entry_of(n, "dy");
    float *dy = values_of(n, "dy");
    void *data = mem_alloc((size_t)e->elements * dtype_size(f));
    dtype_convert(data, f, dy, DT_F32, e->elements);
    id loss = op_sum(g, op_mul(g, y, graph_const(g, "dy", f, e->rank, e->dims, data)));
    mem_free(dy);
    mem_free(data);
    graph_output(g, "y", y);
    graph_output(g, "loss", loss);
    graph_differentiate(g, PROGRAM_STEP, loss);
    graph_verify(g, "differentiate");
}

static void load(struct rig *r, const struct convolution *n, const char *what, enum dtype f)
{
    const struct param *p = rig_param(r, what);
    float *x = values_of(n, what);
    dtype_convert(tape_address(&r->tape, p->tensor), f, x, DT_F32, entry_of(n, what)->elements);
    mem_free(x);
}

static void compare(const struct rig *r, const struct convolution *n, const char *what, id tensor, enum dtype f)
{
    const struct st_entry *e = entry_of(n, what);
    const struct tensor *t = tensor_at(&r->graph, tensor);
    if (t->rank != e->rank || memcmp(t->dim, e->dims, (size_t)e->rank * sizeof *t->dim))
        fail_msg("%s: %s has another shape than PyTorch's", n->name, what);
    double *got = rig_read(r, tensor), size = 0,
           length = (double)entry_of(n, "w")->elements + (double)entry_of(n, "y")->elements;
    float *want = values_of(n, what);
    for (int64_t i = 0; i < e->elements; i++)
        if (fabsf(want[i]) > size) size = fabsf(want[i]);
    const double allowed = 4 * size * (dtype_table[f].epsilon / 2 + dtype_table[DT_F32].epsilon * sqrt(length));
    for (int64_t i = 0; i < e->elements; i++)
        if (!(fabs(got[i] - (double)want[i]) <= allowed))
            fail_msg("%s, %s: %s[%lld] is %.9g, PyTorch gives %.9g, allowed %.3g", n->name, dtype_name(f), what,
                     (long long)i, got[i], (double)want[i], allowed);
    mem_free(got);
    mem_free(want);
}

static void check(const struct convolution *n, enum dtype f, enum device_kind device)
{
    struct rig r;
    build(&r.graph, n, f);
    rig_open(&r, device);
    load(&r, n, "x", f);
    load(&r, n, "w", f);
    if (n->bias) load(&r, n, "b", f);
    rig_run(&r);
    compare(&r, n, "y", graph_find_output(&r.graph, PROGRAM_STEP, "y"), f);
    compare(&r, n, "dx", rig_param(&r, "x")->grad, f);
    compare(&r, n, "dw", rig_param(&r, "w")->grad, f);
    if (n->bias) compare(&r, n, "db", rig_param(&r, "b")->grad, f);
    rig_close(&r);
}

static void test_case(void **state)
{
    const struct convolution *n = *state;
    check(n, DT_F32, DEVICE_REF);
    check(n, DT_F32, DEVICE_CPU);
    check(n, DT_BF16, DEVICE_CPU);
}

/* Every case of the file is in the table: six tensors each, two more with a bias. */
static void test_all_cases(void **state)
{
    uint32_t tensors = 0;
    for (size_t i = 0; i < COUNT(CASES); i++) tensors += CASES[i].bias ? 8 : 6;
    assert_int_equal(tensors, golden.n_entries);
}

int main(void)
{
    struct CMUnitTest tests[COUNT(CASES) + 1];
    struct error e = {0};
    seed_begin();
    if (st_open("tests/golden/conv.safetensors", &golden, &e)) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    for (size_t i = 0; i < COUNT(CASES); i++)
        tests[i] = (struct CMUnitTest){CASES[i].name, test_case, NULL, NULL, (void *)&CASES[i]};
    tests[COUNT(CASES)] = (struct CMUnitTest)cmocka_unit_test(test_all_cases);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    st_close(&golden);
    return rc;
}

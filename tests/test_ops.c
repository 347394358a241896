/*
 * test_ops.c: every row of ops.def in a graph, forward and through its gradient.
 *
 * There is one case per row: a function that emits the op on parameters, and its shapes, small odd
 * ones and realistic ones (opcases.h). Each case gives these tests, each with its oracle:
 *
 *     forward      the CPU's f32 and bf16 outputs      the reference's in f64
 *     differences  the reference's f64 gradient        central differences, every element
 *     large        the reference's f64 gradient        the slope along a random direction
 *                  the CPU's f32 and bf16 gradients    the reference's f64 gradient
 *     bf16         the CPU's bf16 gradient, small      the reference's f64 gradient
 *     kernels      each fast kernel of the row, in     the reference on the same operands;
 *                  f32, bf16 and f16, on 1 to 3        itself on one thread, bit for bit
 *                  threads, in place where allowed
 *     stopped      a row without a gradient            autodiff passes nothing through it
 *
 * A test is listed only where it compares something, so the count is of real checks: a row without
 * a gradient has `stopped` in place of the three gradient tests, a view has no kernels, and a
 * backward row whose graphs are those of its forward row is checked there.
 *
 * For gradients an output is multiplied by constant weights and summed to a loss. The weights are
 * representable in bf16 and the loss' gradient is 1, so the gradient that reaches the op is exact
 * in every dtype. A row that only occurs in backwards is emitted directly in the forward test and
 * reached through its forward's vjp in the others; each test checks that its graph has the row.
 *
 *     test_ops [OP...]     all rows, or those that are named
 *
 * The table of cases is generated from ops.def: a row without a case does not compile, and a case
 * without a shape for timing fails.
 */
#include "opcases.h"
#include "guarded.h"

#include "passes/passes.h"

/* --- describing and opening ------------------------------------------------------------------ */

static const char *describe(const struct row *row, const int64_t *n, enum dtype f, char text[160])
{
    int at = snprintf(text, 160, "%s %s (", op_table[row->op].name, dtype_name(f));
    for (int i = 0; i < SIZES; i++)
        at += snprintf(text + at, 160 - (size_t)at, "%s%lld", i ? " " : "", (long long)n[i]);
    snprintf(text + at, 160 - (size_t)at, "), seed %llu", (unsigned long long)seed);
    return text;
}

/* Checks that the graph has the row, and that the CPU has a fast kernel for it unless the tensors
 * are unusual. */
static void check_present(const struct row *row, const struct rig *r, const char *what)
{
    bool present = false;
    for (uint32_t k = 0; k < r->graph.order[PROGRAM_STEP].nodes.n; k++) {
        id n = r->graph.order[PROGRAM_STEP].nodes.at[k];
        if (node_at(&r->graph, n)->op != row->op) continue;
        present = true;
        if (op_table[row->op].flags & OPF_VIEW || r->device.kind != DEVICE_CPU) continue;
        const char *kernel = r->plan.placement.binding[n].kernel->name;
        if (strncmp(kernel, "cpu_", 4)) fail_msg("%s: runs on %s", what, kernel);
    }
    if (!present) fail_msg("%s: the graph does not have the row", what);
}

static void open_scene(struct rig *r, struct scene *s, const struct row *row, const int64_t *n, enum device_kind kind)
{
    char text[160];
    r->graph = s->g;
    rig_open(r, kind);
    check_present(row, r, describe(row, n, s->f, text));
}

/* Calls `check` for each shape of one list. */
static void for_shapes(const struct row *row, const int64_t (*shapes)[SIZES], int count,
                       void (*check)(const struct row *, const int64_t *))
{
    for (int i = 0; i < count && shapes[i][0]; i++) check(row, shapes[i]);
}

static void for_small(const struct row *row, void (*check)(const struct row *, const int64_t *))
{
    for_shapes(row, row->c->small, SMALL, check);
}

static void for_large(const struct row *row, void (*check)(const struct row *, const int64_t *))
{
    for_shapes(row, row->c->large, LARGE, check);
}

/* --- forward --------------------------------------------------------------------------------- */

/* Rounding to the output's dtype, intermediate roundings to f, and the error growth of an f32
 * sum. */
static double tolerance(const struct scene *s, enum dtype out)
{
    const double c = 4, f32 = dtype_table[DT_F32].epsilon;
    return c *
           (dtype_table[out].epsilon / 2 + (s->roundings - 1) * dtype_table[s->f].epsilon / 2 + f32 * sqrt(s->length));
}

static void compare_outputs(const struct row *row, const int64_t *n, const struct scene *s, const struct rig *got,
                            const struct rig *want)
{
    char text[160];
    assert_true(got->graph.outputs.n > 0);
    for (uint32_t o = 0; o < got->graph.outputs.n; o++) {
        id x = got->graph.outputs.at[o].tensor;
        const struct tensor *t = tensor_at(&got->graph, x);
        double *a = rig_read(got, x), *b = rig_read(want, want->graph.outputs.at[o].tensor), size = s->unit;
        for (int64_t i = 0; i < tensor_elements(t); i++)
            if (isfinite(b[i])) size = fmax(size, fabs(b[i]));
        double allowed = dtype_is_float(t->dtype) ? tolerance(s, t->dtype) * size : 0;
        for (int64_t i = 0; i < tensor_elements(t); i++)
            if (a[i] != b[i] && !(fabs(a[i] - b[i]) <= allowed)) /* -inf is the log-sum-exp of no keys */
                fail_msg("%s: output %u[%lld] is %.9g, the reference gives %.9g, allowed %.3g",
                         describe(row, n, s->f, text), o, (long long)i, a[i], b[i], allowed);
        mem_free(a);
        mem_free(b);
    }
}

static void check_forward(const struct row *row, const int64_t *n)
{
    static const enum dtype TYPES[] = {DT_F32, DT_BF16};
    struct scene exact = scene_of(row, n, DT_F64, true);
    struct rig fast, reference;
    open_scene(&reference, &exact, row, n, DEVICE_REF);
    rig_run(&reference);
    for (size_t i = 0; i < COUNT(TYPES); i++) {
        struct scene s = scene_of(row, n, TYPES[i], true);
        open_scene(&fast, &s, row, n, DEVICE_CPU);
        rig_run(&fast);
        compare_outputs(row, n, &s, &fast, &reference);
        rig_close(&fast);
    }
    rig_close(&reference);
}

static void test_forward(void **state)
{
    const struct row *row = *state;
    for_small(row, check_forward);
    for_large(row, check_forward);
}

/* --- differences ----------------------------------------------------------------------------- */

static double loss_with(struct rig *r, double *x, double value)
{
    *x = value;
    rig_run(r);
    return rig_loss(r);
}

/* Central differences of every element. Their error is h^2 f'''/6 + eps |loss| / h: about 1e-10
 * here, so 1e-6 of the largest derivative is generous only to the third derivative. */
static void check_differences(const struct row *row, const int64_t *n)
{
    const double h = 1e-5;
    char text[160];
    struct scene s = scene_of(row, n, DT_F64, false);
    struct rig r;
    open_scene(&r, &s, row, n, DEVICE_REF);
    rig_run(&r);
    double *gradient[8], size = 1e-3;
    int64_t compared = 0;
    for (uint32_t i = 0; i < r.graph.params.n; i++) {
        const struct param *p = &r.graph.params.at[i];
        if (p->frozen) continue;
        if (!p->grad) fail_msg("%s: %s has no gradient", describe(row, n, DT_F64, text), name_of(&r, p->tensor));
        gradient[i] = rig_read(&r, p->grad);
        for (int64_t k = 0; k < tensor_elements(tensor_at(&r.graph, p->tensor)); k++)
            size = fmax(size, fabs(gradient[i][k]));
    }
    for (uint32_t i = 0; i < r.graph.params.n; i++) {
        const struct param *p = &r.graph.params.at[i];
        double *x = tape_address(&r.tape, p->tensor);
        for (int64_t k = 0; !p->frozen && k < tensor_elements(tensor_at(&r.graph, p->tensor)); k++, compared++) {
            double at = x[k], slope = (loss_with(&r, &x[k], at + h) - loss_with(&r, &x[k], at - h)) / (2 * h);
            x[k] = at;
            if (!(fabs(slope - gradient[i][k]) <= 1e-6 * size))
                fail_msg("%s: d loss / d %s[%lld] is %.12g, differences say %.12g", describe(row, n, DT_F64, text),
                         name_of(&r, p->tensor), (long long)k, gradient[i][k], slope);
        }
        if (!p->frozen) mem_free(gradient[i]);
    }
    if (!compared) fail_msg("%s: there is no parameter to compare", describe(row, n, DT_F64, text));
    rig_close(&r);
}

static void test_differences(void **state) { for_small(*state, check_differences); }

/* --- gradients against the reference --------------------------------------------------------- */

/* |got - want| over all elements, relative to |want|, or to the unit where |want| is small. */
static void compare_gradients(const struct row *row, const int64_t *n, const struct scene *s, const struct rig *got,
                              const struct rig *want)
{
    char text[160];
    int compared = 0;
    for (uint32_t i = 0; i < got->graph.params.n; i++) {
        const struct param *p = &got->graph.params.at[i], *q = &want->graph.params.at[i];
        if (p->frozen) continue;
        compared++;
        assert_true(p->grad && q->grad);
        int64_t count = tensor_elements(tensor_at(&got->graph, p->grad));
        double *a = rig_read(got, p->grad), *b = rig_read(want, q->grad), error = 0, size = 0;
        for (int64_t k = 0; k < count; k++) error += (a[k] - b[k]) * (a[k] - b[k]), size += b[k] * b[k];
        size = fmax(sqrt(size), s->unit * sqrt((double)count));
        if (!(sqrt(error) <= tolerance(s, s->f) * size))
            fail_msg("%s: gradient of %s is off by %.3g of its size, allowed %.3g", describe(row, n, s->f, text),
                     name_of(got, p->tensor), sqrt(error) / size, tolerance(s, s->f));
        mem_free(a);
        mem_free(b);
    }
    if (!compared) fail_msg("%s: there is no gradient to compare", describe(row, n, s->f, text));
}

static void check_fast(const struct row *row, const int64_t *n, enum dtype f, const struct rig *reference)
{
    struct scene s = scene_of(row, n, f, false);
    struct rig fast;
    pass_reuse(&s.g, NULL);
    graph_verify(&s.g, "reuse");
    open_scene(&fast, &s, row, n, DEVICE_CPU);
    rig_run(&fast);
    compare_gradients(row, n, &s, &fast, reference);
    rig_close(&fast);
}

/* Prints the graph that a row's gradients are checked on. */
static void print_scene(const struct row *row, const int64_t *n, struct text *out)
{
    struct scene s = scene_of(row, n, DT_F64, false);
    graph_print(&s.g, PROGRAM_STEP, out);
    graph_free(&s.g);
}

/* Whether NAME_BWD's row has the graph of NAME's row, at one of NAME's shapes: then it is checked
 * there. */
static bool is_twin(const struct row *row, const int64_t *n)
{
    const char *name = op_table[row->op].name;
    const size_t stem = strlen(name) - (strlen(name) > 4 ? 4 : 0);
    const struct row *other = NULL;
    struct text mine = {0}, its = {0};
    bool shared = false;
    for (size_t i = 1; i < COUNT(rows); i++)
        if (!strcmp(name + stem, "_BWD") && strlen(op_table[i].name) == stem && !strncmp(op_table[i].name, name, stem))
            other = &rows[i];
    for (int i = 0; other && i < LARGE; i++) shared |= !memcmp(other->c->large[i], n, sizeof other->c->large[i]);
    if (!shared || other->c->no_gradient) return false;
    print_scene(row, n, &mine);
    print_scene(other, n, &its);
    const bool same = mine.n == its.n && !memcmp(mine.at, its.at, mine.n);
    text_free(&mine);
    text_free(&its);
    return same;
}

static void check_large(const struct row *row, const int64_t *n)
{
    char text[160];
    if (is_twin(row, n)) return;
    struct scene exact = scene_of(row, n, DT_F64, false);
    struct rig r;
    open_scene(&r, &exact, row, n, DEVICE_REF);
    struct slope s = rig_slope(&r, "direction");
    if (!(fabs(s.difference - s.product) <= 1e-6 * (s.size + 1e-3)))
        fail_msg("%s: the slope is %.12g, the gradient gives %.12g", describe(row, n, DT_F64, text), s.difference,
                 s.product);
    rig_run(&r);
    check_fast(row, n, DT_F32, &r);
    check_fast(row, n, DT_BF16, &r);
    rig_close(&r);
}

static void test_large(void **state) { for_large(*state, check_large); }

static void check_bf16(const struct row *row, const int64_t *n)
{
    if (is_twin(row, n)) return;
    struct scene exact = scene_of(row, n, DT_F64, false);
    struct rig r;
    open_scene(&r, &exact, row, n, DEVICE_REF);
    rig_run(&r);
    check_fast(row, n, DT_BF16, &r);
    rig_close(&r);
}

static void test_bf16(void **state) { for_small(*state, check_bf16); }

/* --- rows without a gradient ----------------------------------------------------------------- */

/* The sum of a row's float results and of a separate parameter. Autodiff gives that parameter a
 * gradient, and none to those in front of the row. */
static void check_stopped(const struct row *row, const int64_t *n)
{
    char text[160];
    struct scene s = scene_of(row, n, DT_F64, true);
    const uint32_t outputs = s.g.outputs.n, before = s.g.params.n;
    id loss = op_sum(&s.g, param(&s, "beside", DIM(3)));
    int summed = 0;
    describe(row, n, DT_F64, text);
    if (op_table[row->op].vjp) fail_msg("%s: its case states no gradient, the row has one", text);
    for (uint32_t o = 0; o < outputs; o++) {
        id x = s.g.outputs.at[o].tensor;
        if (!dtype_is_float(tensor_at(&s.g, x)->dtype)) continue;
        loss = op_add(&s.g, loss, op_sum(&s.g, op_cast(&s.g, x, DT_F64)));
        summed++;
    }
    if (!summed) fail_msg("%s: no float result", text);
    graph_differentiate(&s.g, PROGRAM_STEP, loss);
    struct error e = {0};
    must(graph_error(&s.g, &e), &e);
    graph_verify(&s.g, "differentiate");
    for (uint32_t i = 0; i < before; i++)
        if (s.g.params.at[i].grad) fail_msg("%s: parameter %u has a gradient through the row", text, i);
    if (!s.g.params.at[before].grad) fail_msg("%s: the parameter beside the row has no gradient", text);
    graph_free(&s.g);
}

static void test_stopped(void **state)
{
    for_small(*state, check_stopped);
    for_large(*state, check_stopped);
}

/* --- kernels --------------------------------------------------------------------------------- */

/* The input that output o overwrites: always (MUST), or with `in_place` (MAY) if it fits and no
 * other output has it. */
static int alias_of(const struct launch *l, enum op op, int o, bool in_place, const bool *taken)
{
    const int code = op_table[op].alias[o];
    if (code > 0) return code <= l->nin && l->in[code - 1].data ? code - 1 : -1;
    for (int i = 0; i < l->nin && code && in_place; i++) {
        const struct operand *x = &l->in[i], *y = &l->out[o];
        bool fits = x->data && x->dtype == y->dtype && guarded_span(x) == guarded_span(y) &&
                    !memcmp(x->stride, y->stride, sizeof x->stride);
        if (fits && !taken[i] && (code == ALIAS_ANY || code == -i - 1)) return i;
    }
    return -1;
}

/* Runs k on guarded copies of a launch's operands; guarded_free_all frees `out`. */
static void run_guarded(const char *what, enum op op, const struct kernel *k, const struct launch *from, uint64_t work,
                        int threads, bool in_place, void *out[MAX_OUT])
{
    int alias[MAX_OUT] = {0};
    bool taken[MAX_IN] = {0};
    char text[240];
    for (int o = 0; o < from->nout; o++) {
        alias[o] = from->out[o].data ? alias_of(from, op, o, in_place, taken) : -1;
        if (alias[o] >= 0) taken[alias[o]] = true;
    }
    snprintf(text, sizeof text, "%s: %s", what, k->name);
    guarded_launch(text, k, from, work, threads, alias, NULL, out);
}

/* The bytes of two runs; the gaps between a strided output's elements count, too. */
static void check_same(const char *what, const struct kernel *k, const struct launch *l, void *const a[MAX_OUT],
                       void *const b[MAX_OUT], const char *how)
{
    for (int o = 0; o < l->nout; o++)
        if (a[o] && memcmp(a[o], b[o], guarded_span(&l->out[o])))
            fail_msg("%s: %s: output %d differs %s", what, k->name, o, how);
}

static void check_close(const char *what, const struct kernel *k, const struct launch *l, const struct scene *s,
                        void *const got[MAX_OUT], void *const want[MAX_OUT])
{
    for (int o = 0; o < l->nout; o++) {
        const struct operand *x = &l->out[o];
        double size = s->unit, allowed;
        int64_t n = x->data ? (int64_t)(guarded_span(x) / dtype_size(x->dtype)) : 0;
        for (int64_t i = 0; i < n && dtype_is_float(x->dtype); i++) {
            double value = fabs(dtype_load(want[o], x->dtype, i));
            if (value > size && isfinite(value)) size = value;
        }
        allowed = dtype_is_float(x->dtype) ? tolerance(s, x->dtype) * size : 0;
        for (int64_t i = 0; i < n; i++) {
            double a = dtype_load(got[o], x->dtype, i), b = dtype_load(want[o], x->dtype, i);
            if (!(fabs(a - b) <= allowed) && !(isnan(a) && isnan(b)) && a != b)
                fail_msg("%s: %s: output %d[%lld] is %.9g, the reference gives %.9g, allowed %.3g", what, k->name, o,
                         (long long)i, a, b, allowed);
        }
    }
}

static void check_kernel(const char *what, enum op op, const struct kernel *k, const struct launch *l, struct query *q,
                         const struct scene *s)
{
    void *first[MAX_OUT] = {0}, *other[MAX_OUT] = {0};
    const struct kernel *ref = ref_kernels[op];
    struct profile profile = *q->profile;
    q->profile = &profile;
    for (int round = 0; round < 6; round++) {
        const int threads = round % 3 + 1;
        profile.threads = threads;
        void **out = round ? other : first;
        run_guarded(what, op, k, l, k->workspace ? k->workspace(q) : 0, threads, round >= 3, out);
        if (!round) continue;
        check_same(what, k, l, first, other,
                   threads == 1 ? "in place"
                   : round < 3  ? "with more threads"
                                : "in place with more threads");
        guarded_free_all(other);
    }
    run_guarded(what, op, ref, l, ref->workspace ? ref->workspace(q) : 0, 1, false, other);
    check_close(what, k, l, s, first, other);
    guarded_free_all(first);
    guarded_free_all(other);
}

static void check_kernels(const struct row *row, const int64_t *n)
{
    static const enum dtype TYPES[] = {DT_F32, DT_BF16, DT_F16};
    for (size_t i = 0; i < COUNT(TYPES); i++) {
        struct scene s = scene_of(row, n, TYPES[i], true);
        struct rig r;
        char text[160];
        int taken = 0;
        open_scene(&r, &s, row, n, DEVICE_CPU);
        describe(row, n, s.f, text);
        for (uint32_t e = 0; e < r.tape.program[PROGRAM_STEP].n; e++) {
            const struct entry *x = &r.tape.program[PROGRAM_STEP].at[e];
            struct query q;
            query_fill(&q, &r.graph, node_at(&r.graph, x->node), &r.device.profile);
            for (const struct kernel *k = cpu_kernels[row->op]; node_at(&r.graph, x->node)->op == row->op && k->name;
                 k++)
                if (!k->match || k->match(&q)) check_kernel(text, row->op, k, &x->launch, &q, &s), taken++;
            x->kernel->run(&x->launch);
        }
        if (!taken) fail_msg("%s: no fast kernel takes it", text);
        rig_close(&r);
    }
}

static void test_kernels(void **state)
{
    for_small(*state, check_kernels);
    for_large(*state, check_kernels);
}

/* Each row has shapes for the tests, and a row with kernels has a shape for timing
 * (bench/bench_ops.c). */
static void test_sizes(void **state)
{
    for (size_t i = 1; i < COUNT(rows); i++) {
        if (!rows[i].c->small[0][0]) fail_msg("%s has no small shape", op_table[i].name);
        if (!(op_table[i].flags & OPF_VIEW) && !rows[i].c->bench[0]) fail_msg("%s has no bench size", op_table[i].name);
    }
}

/* --- the list -------------------------------------------------------------------------------- */

static bool has_gradient(const struct row *row) { return !row->c->no_gradient; }
static bool has_no_gradient(const struct row *row) { return row->c->no_gradient; }
static bool has_kernels(const struct row *row) { return !(op_table[row->op].flags & OPF_VIEW); }
static bool has_small(const struct row *row) { return row->c->small[0][0]; }

static bool has_large_of_its_own(const struct row *row)
{
    for (int i = 0; has_gradient(row) && i < LARGE && row->c->large[i][0]; i++)
        if (!is_twin(row, row->c->large[i])) return true;
    return false;
}

/* A kind of test, and the rows for which it compares something. */
static const struct test_kind {
    const char *name;
    CMUnitTestFunction run;
    bool (*applies)(const struct row *);
} kinds[] = {
    {"forward", test_forward, has_small},        {"differences", test_differences, has_gradient},
    {"large", test_large, has_large_of_its_own}, {"bf16", test_bf16, has_gradient},
    {"kernels", test_kernels, has_kernels},      {"stopped", test_stopped, has_no_gradient},
};

/* Whether the command line names the row; without names all rows are tested. */
static bool named(const char *name, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (!strcmp(name, argv[i])) return true;
    return argc < 2;
}

int main(int argc, char **argv)
{
    static struct CMUnitTest tests[COUNT(kinds) * OP_COUNT + 1];
    static char names[COUNT(tests)][64];
    size_t n = 0, stopped = 0;
    seed_begin();
    for (size_t i = 1; i < COUNT(rows); i++)
        for (size_t k = 0; k < COUNT(kinds); k++) {
            if (!named(op_table[i].name, argc, argv) || !kinds[k].applies(&rows[i])) continue;
            snprintf(names[n], sizeof names[n], "%s %s", kinds[k].name, op_table[i].name);
            tests[n] = (struct CMUnitTest){names[n], kinds[k].run, NULL, NULL, (void *)&rows[i]};
            stopped += kinds[k].run == test_stopped;
            n++;
        }
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_sizes);
    printf("%zu rows, %zu of them without a gradient\n", COUNT(rows) - 1, stopped);
    return _cmocka_run_group_tests("tests", tests, n, NULL, NULL);
}

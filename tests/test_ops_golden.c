/*
 * test_ops_golden.c: compares ops on maps with PyTorch's values in tests/golden/ops.safetensors
 * (tests/golden/make_ops.py documents the cases), on the reference and on the CPU kernels, forward
 * and through the gradient.
 *
 * The prefix of a case's name selects the op, so a case that the script adds is tested without a
 * change here. Expected values are f64 rounded to f32; the tolerance is that of an f32 sum over the
 * whole map, relative to the largest element.
 */
#include "optest.h"

#include "io/safetensors.h"

static struct st_file file;

/* --- the file ----------------------------------------------------------------------------- */

static const struct st_entry *entry_of(const char *name, const char *key)
{
    char full[128];
    snprintf(full, sizeof full, "%s.%s", name, key);
    return st_find(&file, full);
}

/* The bytes of a required tensor; the caller frees. */
static void *data_of(const char *name, const char *key)
{
    struct error e = {0};
    const struct st_entry *t = entry_of(name, key);
    if (!t) fail_msg("ops.safetensors has no %s.%s", name, key);
    void *data = mem_alloc(t->bytes);
    must(st_read(&file, t, 0, t->bytes, data, &e), &e, name);
    return data;
}

/* --- a case in a graph ------------------------------------------------------------------------ */

struct golden {
    struct rig r;
    const char *name;
    id y, mean, var; /* the result; running statistics after the step, or 0 */
};

/* A weight of the case, trained unless it is a running statistic. */
static id tensor_of(struct golden *c, const char *key, bool trained)
{
    const struct st_entry *t = entry_of(c->name, key);
    if (!t) fail_msg("ops.safetensors has no %s.%s", c->name, key);
    id x = graph_param(&c->r.graph, key, DT_F32, t->rank, t->dims, (struct init){0});
    graph_param_of(&c->r.graph, x)->frozen = !trained;
    return x;
}

static bool begins(const char *name, const char *with) { return !strncmp(name, with, strlen(with)); }

static void emit_norm(struct golden *c, const int32_t *attr)
{
    struct graph *g = &c->r.graph;
    float *number = data_of(c->name, "number");
    id x = tensor_of(c, "x", true), w = tensor_of(c, "w", true), b = tensor_of(c, "b", true);
    id mean = begins(c->name, "instance") ? 0 : tensor_of(c, "mean", false);
    id var = begins(c->name, "instance") ? 0 : tensor_of(c, "var", false);
    if (begins(c->name, "instance")) {
        c->y = op_instancenorm(g, x, w, b, number[0]);
    } else if (begins(c->name, "frozen")) {
        c->y = op_batchnorm_frozen(g, x, w, b, mean, var, number[0]);
    } else {
        c->y = op_batchnorm(g, x, w, b, attr[0], number[0], mean, var, number[1]);
        c->mean = mean; /* updated in place: the same bytes */
        c->var = var;
    }
    mem_free(number);
}

static void emit_case(struct golden *c)
{
    struct graph *g = &c->r.graph;
    int32_t *attr = data_of(c->name, "attr");
    if (begins(c->name, "resize") || begins(c->name, "linear")) {
        c->y = op_resize(g, tensor_of(c, "x", true), attr[0], attr[1], attr[2]);
    } else if (begins(c->name, "pool")) {
        const int64_t k[] = {attr[0], attr[1]}, stride[] = {attr[2], attr[3]}, pad[] = {attr[4], attr[5]};
        c->y = op_avgpool(g, tensor_of(c, "x", true), k, stride, pad, attr[6]);
    } else if (begins(c->name, "adaptive")) {
        c->y = op_avgpool_adaptive(g, tensor_of(c, "x", true), attr[0], attr[1]);
    } else {
        emit_norm(c, attr);
    }
    mem_free(attr);
}

/* loss = sum(y dy), differentiated; the parameters get the file's values. */
static void open_case(struct golden *c, enum device_kind kind)
{
    struct graph *g = &c->r.graph;
    graph_init(g);
    emit_case(c);
    graph_output(g, "y", c->y);
    void *dy = data_of(c->name, "dy");
    const struct st_entry *t = entry_of(c->name, "dy");
    id loss = op_sum(g, op_mul(g, c->y, graph_const(g, "dy", DT_F32, t->rank, t->dims, dy)));
    mem_free(dy);
    graph_output(g, "loss", loss);
    graph_differentiate(g, PROGRAM_STEP, loss);
    graph_verify(g, "differentiate");
    rig_open(&c->r, kind);
    for (uint32_t i = 0; i < g->params.n; i++) {
        id p = g->params.at[i].tensor;
        if (g->params.at[i].init.kind == INIT_DATA) continue;
        void *data = data_of(c->name, name_of(&c->r, p));
        memcpy(tape_address(&c->r.tape, p), data, tensor_bytes(tensor_at(g, p)));
        mem_free(data);
    }
}

/* --- comparing ------------------------------------------------------------------------------- */

static void compare(const struct golden *c, id tensor, const char *key)
{
    const struct st_entry *t = entry_of(c->name, key);
    void *stored = data_of(c->name, key);
    double *want = mem_alloc((size_t)t->elements * sizeof *want), *got = rig_read(&c->r, tensor), size = 0;
    dtype_convert(want, DT_F64, stored, t->dtype, t->elements);
    mem_free(stored);
    if (tensor_elements(tensor_at(&c->r.graph, tensor)) != t->elements)
        fail_msg("%s.%s: %lld elements, expected %lld", c->name, key,
                 (long long)tensor_elements(tensor_at(&c->r.graph, tensor)), (long long)t->elements);
    for (int64_t i = 0; i < t->elements; i++) size = fmax(size, fabs(want[i]));
    const double length = (double)entry_of(c->name, "x")->elements;
    const double allowed = 4 * dtype_table[DT_F32].epsilon * sqrt(length) * size;
    for (int64_t i = 0; i < t->elements; i++)
        if (!(fabs(got[i] - want[i]) <= allowed))
            fail_msg("%s.%s[%lld] is %.9g, PyTorch gives %.9g, allowed %.3g", c->name, key, (long long)i, got[i],
                     want[i], allowed);
    mem_free(want);
    mem_free(got);
}

static void check_case(const char *name, enum device_kind kind)
{
    struct golden c = {.name = name};
    open_case(&c, kind);
    rig_run(&c.r);
    compare(&c, c.y, "y");
    for (uint32_t i = 0; i < c.r.graph.params.n; i++) {
        const struct param *p = &c.r.graph.params.at[i];
        char key[32];
        if (p->frozen) continue;
        snprintf(key, sizeof key, "d%.20s", name_of(&c.r, p->tensor));
        compare(&c, p->grad, key);
    }
    if (c.mean) compare(&c, c.mean, "new_mean");
    if (c.var) compare(&c, c.var, "new_var");
    rig_close(&c.r);
}

/* Every case of the file with this prefix; at least one. */
static void check_cases(const char *with)
{
    int cases = 0;
    for (uint32_t i = 0; i < file.n_entries; i++) {
        const char *full = file.entries[i].name, *dot = strchr(full, '.');
        char name[64];
        if (!dot || strcmp(dot, ".attr") || !begins(full, with)) continue;
        snprintf(name, sizeof name, "%.*s", (int)(dot - full), full);
        check_case(name, DEVICE_REF);
        check_case(name, DEVICE_CPU);
        cases++;
    }
    assert_true(cases > 0);
}

static void test_cases(void **state) { check_cases(*state); }

int main(void)
{
    struct error e = {0};
    seed_begin();
    if (st_open("tests/golden/ops.safetensors", &file, &e)) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
#define CASES(name) {name, test_cases, NULL, NULL, name}
    const struct CMUnitTest tests[] = {CASES("resize"), CASES("linear"),   CASES("pool"),  CASES("adaptive"),
                                       CASES("batch"),  CASES("instance"), CASES("frozen")};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    st_close(&file);
    return failed;
}

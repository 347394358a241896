/*
 * test_ops_golden.c: compares ops on maps and the ops of segmentation with PyTorch's values, on the
 * reference and on the CPU kernels, forward and through the gradient.
 *
 *     tests/golden/ops.safetensors     make_ops.py documents the cases
 *     tests/golden/masks.safetensors   make_masks.py does
 *
 * The prefix of a case's name selects the op, so a case that a script adds is tested without a
 * change here. Expected values are f64 rounded to f32; the tolerance is that of an f32 sum over the
 * whole map or all parameters, relative to the largest element.
 */
#include "optest.h"

#include "io/safetensors.h"
#include "passes/passes.h"

static struct st_file file;
static bool masks; /* the file is masks.safetensors */

static const struct st_entry *find(const char *name, const char *key)
{
    char full[128];
    snprintf(full, sizeof full, "%s.%s", name, key);
    return st_find(&file, full);
}

static const struct st_entry *entry_of(const char *name, const char *key)
{
    const struct st_entry *t = find(name, key);
    if (!t) fail_msg("the golden file has no %s.%s", name, key);
    return t;
}

/* The bytes of a tensor; the caller frees. */
static void *data_of(const char *name, const char *key)
{
    struct error e = {0};
    const struct st_entry *t = entry_of(name, key);
    void *data = mem_alloc(t->bytes);
    must(st_read(&file, t, 0, t->bytes, data, &e), &e);
    return data;
}

/* --- a case in a graph ------------------------------------------------------------------------ */

struct golden {
    struct rig r;
    const char *name;
    id y, mean, var; /* the result; running statistics after the step, or 0 */
};

static id trained(struct golden *c, const char *key)
{
    const struct st_entry *t = entry_of(c->name, key);
    return graph_param(&c->r.graph, key, DT_F32, t->rank, t->dims, (struct init){0});
}

/* A running statistic. */
static id frozen(struct golden *c, const char *key)
{
    id x = trained(c, key);
    graph_param_of(&c->r.graph, x)->frozen = true;
    return x;
}

static id given(struct golden *c, const char *key)
{
    const struct st_entry *t = entry_of(c->name, key);
    void *data = data_of(c->name, key);
    id x = graph_const(&c->r.graph, key, t->dtype, t->rank, t->dims, data);
    mem_free(data);
    return x;
}

static bool begins(const char *name, const char *with) { return !strncmp(name, with, strlen(with)); }

static void emit_norm(struct golden *c, const int32_t *attr)
{
    struct graph *g = &c->r.graph;
    float *number = data_of(c->name, "number");
    id x = trained(c, "x"), w = trained(c, "w"), b = trained(c, "b");
    id mean = begins(c->name, "instance") ? 0 : frozen(c, "mean");
    id var = begins(c->name, "instance") ? 0 : frozen(c, "var");
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

static void emit_map(struct golden *c)
{
    struct graph *g = &c->r.graph;
    int32_t *attr = data_of(c->name, "attr");
    if (begins(c->name, "resize") || begins(c->name, "linear")) {
        c->y = op_resize(g, trained(c, "x"), attr[0], attr[1], attr[2]);
    } else if (begins(c->name, "pool")) {
        const int64_t k[] = {attr[0], attr[1]}, stride[] = {attr[2], attr[3]}, pad[] = {attr[4], attr[5]};
        c->y = op_avgpool(g, trained(c, "x"), k, stride, pad, attr[6]);
    } else if (begins(c->name, "adaptive")) {
        c->y = op_avgpool_adaptive(g, trained(c, "x"), attr[0], attr[1]);
    } else {
        emit_norm(c, attr);
    }
    mem_free(attr);
}

static void emit_mask(struct golden *c)
{
    struct graph *g = &c->r.graph;
    float *a = data_of(c->name, "attr");
    if (begins(c->name, "rel")) {
        id q = trained(c, "q"), k = trained(c, "k"), v = trained(c, "v");
        id h = trained(c, "table_h"), w = trained(c, "table_w");
        c->y = op_attention_rel(g, q, k, v, h, w, (int)a[0], (int)a[1], a[2]);
    } else if (begins(c->name, "bias")) {
        id q = trained(c, "q"), k = trained(c, "k"), v = trained(c, "v");
        c->y = op_attention_bias(g, q, k, v, trained(c, "table"), (int)a[0], a[1]);
    } else if (begins(c->name, "window")) {
        c->y = op_window(g, trained(c, "x"), (int)a[0]);
    } else if (begins(c->name, "fourier")) {
        id coords = given(c, "coords"), gauss = given(c, "gauss");
        c->y = op_fourier(g, coords, gauss);
    } else if (begins(c->name, "structure")) {
        id logits = trained(c, "logits"), bits = given(c, "bits"), valid = given(c, "valid");
        c->y = op_structure_loss(g, logits, bits, valid, (struct structure_loss_options){a[0], a[1], a[2], (int)a[3]},
                                 NULL)
                   .loss;
    } else {
        struct mask_loss_options o = {a[0], a[1], a[2], a[3], a[4], a[5], a[6] != 0};
        id logits = trained(c, "logits"), iou = trained(c, "iou"), bits = given(c, "bits"), valid = given(c, "valid");
        c->y = op_mask_loss(g, logits, iou, bits, valid, o, NULL).loss;
    }
    mem_free(a);
}

/* loss = sum(y dy), differentiated where a parameter is trained; parameters get the file's
 * values. */
static void open_case(struct golden *c, enum device_kind kind)
{
    struct graph *g = &c->r.graph;
    graph_init(g);
    if (masks) emit_mask(c);
    else emit_map(c);
    graph_output(g, "y", c->y);
    id loss = op_sum(g, op_mul(g, c->y, given(c, "dy")));
    graph_output(g, "loss", loss);
    if (!begins(c->name, "fourier")) graph_differentiate(g, PROGRAM_STEP, loss);
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
    double *want = mem_alloc((size_t)t->elements * sizeof *want), *got = rig_read(&c->r, tensor), size = 0, length = 0;
    dtype_convert(want, DT_F64, stored, t->dtype, t->elements);
    mem_free(stored);
    assert_int_equal(tensor_elements(tensor_at(&c->r.graph, tensor)), t->elements);
    for (int64_t i = 0; i < t->elements; i++) size = fmax(size, fabs(want[i]));
    const struct st_entry *x = find(c->name, "x");
    if (x) length = (double)x->elements;
    for (uint32_t i = 0; !x && i < c->r.graph.params.n; i++)
        length += (double)tensor_elements(tensor_at(&c->r.graph, c->r.graph.params.at[i].tensor));
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
        if (!p->grad != !find(name, key))
            fail_msg("%s.%s: a gradient is %s, PyTorch's is %s", name, key, p->grad ? "here" : "missing",
                     p->grad ? "missing" : "here");
        if (p->grad) compare(&c, p->grad, key);
    }
    if (c.mean) compare(&c, c.mean, "new_mean");
    if (c.var) compare(&c, c.var, "new_var");
    rig_close(&c.r);
}

/* Checks every case of a file whose name begins with one of the prefixes; each has one at least. */
static void check_cases(const char *path, const char *const *prefixes)
{
    struct error e = {0};
    must(st_open(path, &file, &e), &e);
    masks = strstr(path, "masks");
    for (; *prefixes; prefixes++) {
        int cases = 0;
        for (uint32_t i = 0; i < file.n_entries; i++) {
            const char *full = file.entries[i].name, *dot = strchr(full, '.');
            char name[64];
            if (!dot || strcmp(dot, ".attr") || !begins(full, *prefixes)) continue;
            snprintf(name, sizeof name, "%.*s", (int)(dot - full), full);
            check_case(name, DEVICE_REF);
            check_case(name, DEVICE_CPU);
            cases++;
        }
        if (!cases) fail_msg("%s has no case of %s", path, *prefixes);
    }
    st_close(&file);
}

TEST(test_maps)
{
    static const char *const prefixes[] = {"resize", "linear", "pool", "adaptive", "batch", "instance", "frozen", NULL};
    check_cases("tests/golden/ops.safetensors", prefixes);
}

TEST(test_masks)
{
    static const char *const prefixes[] = {"rel", "bias", "window", "fourier", "masks", "structure", NULL};
    check_cases("tests/golden/masks.safetensors", prefixes);
}

/* In bf16, coordinates and frequencies keep their precision, and the results are bf16. */
TEST(test_precision)
{
    struct graph g;
    struct error e = {0};
    graph_init(&g);
    id coords = graph_input(&g, "coords", DT_F32, DIM(2, 3, 2)),
       gauss = graph_param(&g, "gauss", DT_F32, DIM(2, 4), (struct init){0});
    id waves = op_fourier(&g, coords, gauss);
    graph_output(&g, "y", op_mul(&g, waves, graph_param(&g, "w", DT_F32, DIM(8), (struct init){0})));
    pass_precision(&g, &(struct settings){.precision = PRECISION_BF16});
    graph_verify(&g, "precision");
    must(graph_error(&g, &e), &e);
    const struct node *n = node_at(&g, tensor_at(&g, waves)->node);
    assert_int_equal(tensor_at(&g, n->in[0])->dtype, DT_F32);
    assert_int_equal(tensor_at(&g, n->in[1])->dtype, DT_F32);
    assert_int_equal(tensor_at(&g, n->out[0])->dtype, DT_BF16);
    graph_free(&g);
}

MAIN(NULL, NULL)

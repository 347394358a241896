/*
 * test_masks_golden.c: compares the segmentation ops with PyTorch's values in
 * tests/golden/masks.safetensors (tests/golden/make_masks.py documents the cases), on the reference
 * and on the CPU kernels, forward and through the gradient.
 *
 * The prefix of a case's name selects the op. Expected values are f64 rounded to f32; the tolerance
 * is that of an f32 sum over all inputs, relative to the largest element.
 */
#include "optest.h"

#include "io/safetensors.h"
#include "passes/passes.h"

static struct st_file file;

static const struct st_entry *entry_of(const char *name, const char *key)
{
    char full[128];
    snprintf(full, sizeof full, "%s.%s", name, key);
    const struct st_entry *t = st_find(&file, full);
    if (!t) fail_msg("masks.safetensors has no %s", full);
    return t;
}

/* The bytes of a tensor; the caller frees. */
static void *data_of(const char *name, const char *key)
{
    struct error e = {0};
    const struct st_entry *t = entry_of(name, key);
    void *data = mem_alloc(t->bytes);
    must(st_read(&file, t, 0, t->bytes, data, &e), &e, name);
    return data;
}

/* --- a case in a graph ------------------------------------------------------------------------ */

struct golden {
    struct rig r;
    const char *name;
    id y;
};

static id trained(struct golden *c, const char *key)
{
    const struct st_entry *t = entry_of(c->name, key);
    return graph_param(&c->r.graph, key, DT_F32, t->rank, t->dims, (struct init){0});
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

static void emit_case(struct golden *c)
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
    emit_case(c);
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
    for (uint32_t i = 0; i < c->r.graph.params.n; i++)
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
        char key[32], full[128];
        if (p->frozen) continue;
        snprintf(key, sizeof key, "d%.20s", name_of(&c.r, p->tensor));
        snprintf(full, sizeof full, "%s.%s", name, key);
        if (!p->grad != !st_find(&file, full))
            fail_msg("%s: a gradient is %s, PyTorch's is %s", full, p->grad ? "here" : "missing",
                     p->grad ? "missing" : "here");
        if (p->grad) compare(&c, p->grad, key);
    }
    rig_close(&c.r);
}

/* Every case of the file with this prefix; at least one. */
static void test_cases(void **state)
{
    int cases = 0;
    for (uint32_t i = 0; i < file.n_entries; i++) {
        const char *full = file.entries[i].name, *dot = strchr(full, '.');
        char name[64];
        if (!dot || strcmp(dot, ".attr") || !begins(full, *state)) continue;
        snprintf(name, sizeof name, "%.*s", (int)(dot - full), full);
        check_case(name, DEVICE_REF);
        check_case(name, DEVICE_CPU);
        cases++;
    }
    assert_true(cases > 0);
}

/* In bf16, coordinates and frequencies keep their precision, and the results are bf16. */
static void test_precision(void **state)
{
    (void)state;
    struct graph g;
    struct error e = {0};
    graph_init(&g);
    id coords = graph_input(&g, "coords", DT_F32, DIM(2, 3, 2)),
       gauss = graph_param(&g, "gauss", DT_F32, DIM(2, 4), (struct init){0});
    id waves = op_fourier(&g, coords, gauss);
    graph_output(&g, "y", op_mul(&g, waves, graph_param(&g, "w", DT_F32, DIM(8), (struct init){0})));
    pass_precision(&g, &(struct settings){.precision = DT_BF16});
    graph_verify(&g, "precision");
    must(graph_error(&g, &e), &e, "precision");
    const struct node *n = node_at(&g, tensor_at(&g, waves)->node);
    assert_int_equal(tensor_at(&g, n->in[0])->dtype, DT_F32);
    assert_int_equal(tensor_at(&g, n->in[1])->dtype, DT_F32);
    assert_int_equal(tensor_at(&g, n->out[0])->dtype, DT_BF16);
    graph_free(&g);
}

int main(void)
{
    struct error e = {0};
    seed_begin();
    if (st_open("tests/golden/masks.safetensors", &file, &e)) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
#define CASES(name) {name, test_cases, NULL, NULL, name}
    const struct CMUnitTest tests[] = {CASES("rel"),
                                       CASES("bias"),
                                       CASES("window"),
                                       CASES("fourier"),
                                       CASES("masks"),
                                       CASES("structure"),
                                       cmocka_unit_test(test_precision)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    st_close(&file);
    return failed;
}

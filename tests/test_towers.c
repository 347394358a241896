/*
 * test_towers.c: vision towers beyond the golden files: a step in micro-batches equals the whole
 * step, and tensors that no output depends on are kept, written and never updated.
 *
 * Run from the repository's root: the models are those of tests/golden.
 */
#include "model_run.h"

static const char *const f32[] = {"memory.precision=f32", NULL};

static void begin(struct config *c, const char *model, const char *const *sets)
{
    struct error e = {0};
    char path[160];
    snprintf(path, sizeof path, "model.path=%s", model);
    must(model_configure(c, path, f32, sets, &e), &e);
}

/* The loss, followed by the step's gradients in the order of the parameters. Pixels are the same
 * for every split. */
static float *gradients(const char *model, const char *const *sets, int64_t *count)
{
    struct config c;
    struct run r = {0};
    struct error e = {0};
    begin(&c, model, sets);
    must(run_plan(&r, &c, &(struct run_options){.train = true}, &e), &e);
    must(run_start(&r, NULL, true, &e), &e);
    put_input(&r, r.planned.model.ports[0].name, wave);
    floats all = model_gradients(&r, 1e-3f);
    run_close(&r);
    config_free(&c);
    *count = all.n;
    return all.at;
}

/* Sums in another order: eps times the root of the number of terms, with a margin for the depth of
 * the network. */
static void expect_near(const float *a, const float *b, int64_t n, const char *what)
{
    double off = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        off += pow((double)a[i] - (double)b[i], 2);
        size += pow((double)b[i], 2);
    }
    assert_true(size > 0);
    if (!(sqrt(off / size) < 20 * 1.2e-7)) fail_msg("%s: off by %.2g", what, sqrt(off / size));
}

TEST(test_micro_batches)
{
    static const char *const models[] = {"tests/golden/clip_vision", "tests/golden/siglip_vision"};
    static const char *const whole[] = {"memory.micro_batch=4", "memory.recompute=none", NULL};
    static const char *const split[][3] = {{"memory.micro_batch=1", "memory.recompute=none", NULL},
                                           {"memory.micro_batch=2", "memory.recompute=all", NULL},
                                           {"memory.micro_batch=4", "memory.recompute=all", NULL}};
    for (size_t m = 0; m < COUNT(models); m++) {
        int64_t n, k;
        float *want = gradients(models[m], whole, &n);
        for (size_t i = 0; i < COUNT(split); i++) {
            float *got = gradients(models[m], split[i], &k);
            assert_int_equal(n, k);
            expect_near(got, want, n, split[i][0]);
            mem_free(got);
        }
        mem_free(want);
    }
}

/* Read and written back, a folder's weights are the same bytes: with the unused norm and head, with
 * buffers and text tensors, in bf16. */
TEST(test_written_back)
{
    static const char *const models[] = {"tests/golden/clip_full", "tests/golden/siglip_vision",
                                         "tests/golden/siglip_odd", NULL};
    check_written_back(models, f32);
}

TEST(test_unreached)
{
    struct config c;
    struct run r = {0};
    struct error e = {0};
    int unreached = 0;
    static const char *const sets[] = {"memory.micro_batch=4", "memory.recompute=none", NULL};
    begin(&c, "tests/golden/siglip_vision", sets);
    must(run_plan(&r, &c, &(struct run_options){.train = true}, &e), &e);
    for (uint32_t i = 0; i < r.planned.graph.params.n; i++) {
        const char *name =
            graph_name(&r.planned.graph, tensor_at(&r.planned.graph, r.planned.graph.params.at[i].tensor)->name);
        bool head = !strncmp(name, "vision_model.head.", 18);
        assert_int_equal(head, !r.planned.graph.params.at[i].grad);
        unreached += head;
    }
    assert_int_equal(unreached, 11);
    run_close(&r);
    config_free(&c);
}

/* The presets have the published number of weights. */
TEST(test_presets)
{
    const struct {
        const char *name;
        int64_t weights;
    } known[] = {{"clip-vit-b-16", 85799424}, {"siglip-base-16-224", 92884224}};
    for (size_t i = 0; i < COUNT(known); i++) {
        struct model m;
        struct graph g;
        struct error e = {0};
        int64_t n = 0;
        must(model_preset(&m, known[i].name, &e), &e);
        graph_init(&g);
        m.family->build(&m, &g, &(struct batch){.B = 1});
        must(graph_error(&g, &e), &e);
        for (uint32_t k = 0; k < g.params.n; k++) n += tensor_elements(tensor_at(&g, g.params.at[k].tensor));
        assert_int_equal(n, known[i].weights);
        graph_free(&g);
        model_close(&m);
    }
}

MAIN(NULL, NULL)

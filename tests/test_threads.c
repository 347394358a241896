/*
 * test_threads.c: the number of threads changes no bit. A language model and a vision tower are
 * trained for a few steps on 1, 2 and 3 threads, in f32 and bf16, with and without recompute in the
 * backward: the weights must be bit-equal.
 *
 * The shapes make every kernel divide its work: row counts not divisible by the number of threads,
 * and more elements than one thread handles by itself.
 */
#include "optest.h"

#include "io/file.h"
#include "models/model.h"

enum { STEPS = 3, SAMPLES = 3 };

static const char tower_config[] =
    "{\"model_type\": \"clip_vision_model\", \"hidden_size\": 96, \"intermediate_size\": 384, \"num_hidden_layers\": 2,"
    " \"num_attention_heads\": 3, \"image_size\": 72, \"patch_size\": 8, \"num_channels\": 3}";

static void build(void *context, struct graph *g, int micro_batch)
{
    const struct model *m = context;
    m->family->build(m, g, &(struct batch){.B = micro_batch, .T = 65});
}

/* In bf16 the update starts from the master weights: they get the working copies' values. */
static void load_masters(struct rig *r)
{
    for (uint32_t i = 0; i < r->graph.params.n; i++) {
        const struct param *p = &r->graph.params.at[i];
        const struct tensor *w = tensor_at(&r->graph, p->tensor), *m = tensor_at(&r->graph, p->master);
        for (int64_t k = 0; p->master != p->tensor && k < tensor_elements(w); k++)
            dtype_store(tape_address(&r->tape, p->master), m->dtype, k,
                        dtype_load(tape_address(&r->tape, p->tensor), w->dtype, k));
    }
}

/* The weights after STEPS steps, concatenated; the caller frees. */
static double *train(struct model *m, const struct settings *s, int threads, uint64_t *count)
{
    struct rig r = {0};
    struct error e;
    VEC(double) all = {0};
    must(plan_compile(&r.graph, &(struct source){m, build}, s, &e), &e);
    rig_open_on(&r, DEVICE_CPU, threads);
    r.tape.poison = false;
    load_masters(&r);
    for (int step = 0; step < STEPS; step++) {
        must(r.device.ops->run(&r.device, &r.tape, PROGRAM_STEP, &e), &e);
        must(r.device.ops->run(&r.device, &r.tape, PROGRAM_UPDATE, &e), &e);
    }
    for (uint32_t i = 0; i < r.graph.params.n; i++) {
        if (!r.graph.params.at[i].grad) continue;
        id t = r.graph.params.at[i].master;
        double *x = rig_read(&r, t);
        for (int64_t k = 0; k < tensor_elements(tensor_at(&r.graph, t)); k++) vec_push(&all, x[k]);
        mem_free(x);
    }
    rig_close(&r);
    *count = all.n;
    return all.at;
}

static void check(struct model *m, const struct settings *s, const char *what)
{
    uint64_t n, k;
    double *want = train(m, s, 1, &n);
    assert_true(n > 10000);
    for (uint64_t i = 0; i < n; i++)
        if (!isfinite(want[i])) fail_msg("%s, seed %llu: a weight is %g", what, (unsigned long long)seed, want[i]);
    for (int threads = 2; threads <= 3; threads++) {
        double *got = train(m, s, threads, &k);
        assert_int_equal(n, k);
        for (uint64_t i = 0; i < n; i++)
            if (got[i] != want[i])
                fail_msg("%s, %s, recompute %s, seed %llu: weight %llu is %.9g on %d threads, %.9g on one", what,
                         policies[s->precision].word, recompute_text(&s->recompute, (char[SETTING_ROOM]){0}),
                         (unsigned long long)seed, (unsigned long long)i, got[i], threads, want[i]);
        mem_free(got);
    }
    mem_free(want);
}

static void check_all(struct model *m, const char *what)
{
    struct settings s = {.micro_batch = SAMPLES, .accumulation = 1, .head_chunks = 1, .train = true, .beta1 = 0.9,
                         .beta2 = 0.95, .eps = 1e-8};
    for (int i = 0; i < 4; i++) {
        s.precision = i & 1 ? PRECISION_BF16 : PRECISION_F32;
        s.recompute.kind = i & 2 ? RECOMPUTE_SELECTIVE : RECOMPUTE_NONE;
        check(m, &s, what);
    }
}

TEST(test_language)
{
    struct model m;
    struct error e;
    must(model_preset(&m, "llama-tiny", &e), &e);
    check_all(&m, "llama-tiny");
    model_close(&m);
}

TEST(test_tower)
{
    struct model m;
    struct error e;
    char folder[] = "/tmp/plimsoll-threads-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *f = fopen(path, "w");
    assert_true(f && fputs(tower_config, f) >= 0 && fclose(f) == 0);
    must(model_open(&m, folder, &e), &e);
    unlink(path);
    rmdir(folder);
    check_all(&m, "a tower");
    model_close(&m);
}

MAIN(NULL, NULL)

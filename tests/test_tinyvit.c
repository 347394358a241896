/*
 * test_tinyvit.c: TinySAM beyond the golden files: running statistics change as PyTorch's, the same
 * for any split, and are saved and resumed; weights from a folder keep theirs; a folder is written
 * back unchanged; names map in both directions; the preset has the published number of weights.
 *
 * Run from the repository's root: the models are those of tests/golden.
 */
#include "batch/batch_plan.h"
#include "io/safetensors.h"
#include "models/sam_names.h"
#include "folder/train_state.h"

#include "model_run.h"

#define GOLDEN "tests/golden/tinyvit_train"

static const char *const none[] = {NULL};

static int configure(struct config *c, const char *model, const char *const *sets, struct error *e)
{
    return model_configure(c, model, none, sets, e);
}

/* --- a run of one step after another ----------------------------------------------------- */

struct trial {
    struct config c;
    struct run r;
    struct train_state state;
};

static float coordinate(int64_t i) { return 0.5f + 0.45f * (float)sin(1.11 * (double)i); }
static float foreground(int64_t i) { return (void)i, (float)POINT_FOREGROUND; }
static float bits(int64_t i) { return (float)(i * 37 % 251); }
static float side(int64_t i) { return (void)i, 8; }

/* The images are the golden file's: statistics depend on nothing else. */
static void put_images(struct run *r)
{
    struct st_file f;
    struct error e = {0};
    must(st_open(GOLDEN "/batch.safetensors", &f, &e), &e);
    const struct st_entry *t = st_find(&f, "pixel_values");
    char *data = mem_alloc(t->bytes);
    must(st_read(&f, t, 0, t->bytes, data, &e), &e);
    must(run_write_input(r, "pixel_values", 0, data, t->bytes, &e), &e);
    mem_free(data);
    st_close(&f);
}

static void start(struct trial *t, const char *model, const char *const *sets)
{
    struct error e = {0};
    const struct contents asked = {.prompts = {.image = 32, .masks = 1, .points = 1, .targets = true}};
    *t = (struct trial){0};
    must(configure(&t->c, model, sets, &e), &e);
    must(run_plan(&t->r, &t->c,
                  &(struct run_options){.train = true, .describe = feed_describe, .holds = &asked},
                  &e),
         &e);
    must(run_start(&t->r, NULL, true, &e), &e);
    must(state_reset(&t->r.planned.graph, &t->r.device, &t->r.tape, run_staging(&t->r), PLAN_STAGING, &e), &e);
    put_images(&t->r);
    put_input(&t->r, "input_points", coordinate);
    put_input(&t->r, "input_labels", foreground);
    put_input(&t->r, "gt_masks", bits);
    put_input(&t->r, "gt_valid", side);
}

static void stop(struct trial *t)
{
    run_close(&t->r);
    config_free(&t->c);
}

static void step(struct trial *t)
{
    struct error e = {0};
    t->state.step = ++t->state.adam_t;
    const struct step_block b = {.learning_rate = 1e-3f,
                                 .inv_count = {0.25f},
                                 .loss_scale = 1,
                                 .step = (int32_t)t->state.step,
                                 .adam_t = (int32_t)t->state.adam_t};
    must(run_put_step(&t->r, &b, &e), &e);
    must(run_program(&t->r, PROGRAM_STEP, &e), &e);
    must(run_program(&t->r, PROGRAM_UPDATE, &e), &e);
}

/* Collects the statistics, the gradients or the master weights of all parameters. */
enum what { RUNNING, GRADIENTS, MASTERS };
static floats collect(const struct run *r, enum what what)
{
    floats all = {0};
    for (uint32_t i = 0; i < r->planned.graph.params.n; i++) {
        const struct param *p = &r->planned.graph.params.at[i];
        bool statistic = strstr(weight_name(&r->planned.graph, p), ".running_") != NULL;
        if (what == RUNNING && statistic) append(&all, r, p->tensor);
        if (what == GRADIENTS && p->grad) append(&all, r, p->grad);
        if (what == MASTERS && !weight_is_constant(&r->planned.graph, p)) append(&all, r, p->master);
    }
    return all;
}

static void same_bits(floats *a, floats *b)
{
    assert_true(a->n > 0);
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->at, b->at, a->n * sizeof *a->at);
    vec_free(a);
    vec_free(b);
}

static double distance(const float *a, const float *b, int64_t n)
{
    double off = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        off += pow((double)a[i] - (double)b[i], 2);
        size += pow((double)b[i], 2);
    }
    return sqrt(off / size);
}

/* --- statistics ------------------------------------------------------------------------------ */

/* One step with groups of two changes them as PyTorch does; in f32, and in bf16, which keeps them
 * in f32. */
TEST(test_running)
{
    static const char *const sets[][4] = {{"model.bn_group=2", "memory.precision=f32", NULL},
                                          {"model.bn_group=2", "memory.precision=bf16", NULL}};
    const double bound[] = {1e-5, 3.0 / 128};
    for (size_t k = 0; k < COUNT(sets); k++) {
        struct trial t;
        struct st_file f;
        struct error e = {0};
        int compared = 0;
        start(&t, "model.path=" GOLDEN, sets[k]);
        must(run_put_step(&t.r, &(struct step_block){.inv_count = {1}, .loss_scale = 1, .step = 1, .adam_t = 1}, &e),
             &e);
        must(run_program(&t.r, PROGRAM_STEP, &e), &e);
        must(st_open(GOLDEN "/running.safetensors", &f, &e), &e);
        for (uint32_t i = 0; i < t.r.planned.graph.params.n; i++) {
            const struct param *p = &t.r.planned.graph.params.at[i];
            const struct st_entry *x = st_find(&f, weight_name(&t.r.planned.graph, p));
            if (!x) continue;
            assert_true(p->frozen && p->running && tensor_at(&t.r.planned.graph, p->tensor)->dtype == DT_F32);
            float *want = mem_alloc(x->bytes);
            must(st_read(&f, x, 0, x->bytes, want, &e), &e);
            double off = distance((const float *)tape_address(&t.r.tape, p->tensor), want, x->elements);
            if (!(off < bound[k])) fail_msg("%s: off by %.2g", x->name, off);
            mem_free(want);
            compared++;
        }
        assert_int_equal(compared, f.n_entries);
        st_close(&f);
        stop(&t);
    }
}

/* Recomputed blocks change no bit of statistics and gradients; a split sums in another order, and
 * agrees within 1e-6. */
TEST(test_splits)
{
    static const char *const whole[] = {"model.bn_group=2", "memory.micro_batch=4", "memory.recompute=none",
                                        "memory.precision=f32", NULL};
    static const char *const others[][5] = {
        {"model.bn_group=2", "memory.micro_batch=4", "memory.recompute=all", "memory.precision=f32", NULL},
        {"model.bn_group=2", "memory.micro_batch=2", "memory.recompute=none", "memory.precision=f32", NULL},
        {"model.bn_group=2", "memory.micro_batch=2", "memory.recompute=all", "memory.precision=f32", NULL}};
    for (size_t i = 0; i < COUNT(others); i++) {
        struct trial a, b;
        start(&a, "model.path=" GOLDEN, whole);
        start(&b, "model.path=" GOLDEN, others[i]);
        step(&a), step(&b);
        floats x = collect(&a.r, RUNNING), y = collect(&b.r, RUNNING), g = collect(&a.r, GRADIENTS),
               h = collect(&b.r, GRADIENTS);
        if (i > 0) {
            assert_true(x.n == y.n && g.n == h.n);
            if (!(distance(y.at, x.at, x.n) < 1e-6)) fail_msg("statistics off by %.2g", distance(y.at, x.at, x.n));
            if (!(distance(h.at, g.at, g.n) < 1e-6)) fail_msg("gradients off by %.2g", distance(h.at, g.at, g.n));
            vec_free(&x), vec_free(&y), vec_free(&g), vec_free(&h);
        } else {
            same_bits(&x, &y);
            same_bits(&g, &h);
        }
        stop(&a), stop(&b);
    }
}

/* Without model.bn_group, weights from a folder keep their statistics; those of fresh weights
 * change. */
TEST(test_defaults)
{
    static const char *const sets[] = {"memory.precision=f32", NULL};
    static const char *const models[] = {"model.path=" GOLDEN, "model.preset=tinysam-tiny"};
    for (size_t i = 0; i < COUNT(models); i++) {
        struct trial t;
        start(&t, models[i], sets);
        floats before = collect(&t.r, RUNNING);
        step(&t);
        floats after = collect(&t.r, RUNNING);
        assert_int_equal(before.n, after.n);
        assert_int_equal(!memcmp(before.at, after.at, before.n * sizeof *before.at), i == 0);
        vec_free(&before);
        vec_free(&after);
        stop(&t);
    }
}

static void refuses(const char *const *sets, const char *expected)
{
    struct config c;
    struct run r = {0};
    struct error e = {0};
    must(configure(&c, "model.path=" GOLDEN, sets, &e), &e);
    assert_int_equal(run_plan(&r, &c, &(struct run_options){.train = true, .describe = feed_describe}, &e), PL_USAGE);
    if (!strstr(e.text, expected)) fail_msg("\"%s\" does not say \"%s\"", e.text, expected);
    run_close(&r);
    config_free(&c);
}

TEST(test_groups)
{
    refuses((const char *const[]){"model.bn_group=3", NULL},
            "train.effective_batch of 4 images is not divisible into groups of 3");
    refuses((const char *const[]){"model.bn_group=2", "memory.micro_batch=1", NULL}, "must be a multiple of 2");
    refuses((const char *const[]){"model.bn_group=1", "memory.micro_batch=3", NULL}, "divides train.effective_batch 4");
}

/* --- files ----------------------------------------------------------------------------------- */

static void save(struct trial *t, const char *dir)
{
    struct error e = {0};
    struct run *r = &t->r;
    must(weights_save(&r->weights, &r->planned.model, &r->planned.graph, &r->device, &r->tape, run_staging(r),
                      PLAN_STAGING, dir, &e),
         &e);
    must(state_save(dir, &t->state, &r->planned.graph, &r->device, &r->tape, run_staging(r), PLAN_STAGING, &e), &e);
}

/* A saved tensor as floats equals the tensor in the run. */
static void expect_saved(const char *dir, const struct run *r, int *statistics)
{
    char path[256];
    struct st_file f;
    struct error e = {0};
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    must(st_open(path, &f, &e), &e);
    for (uint32_t i = 0; i < r->planned.graph.params.n; i++) {
        const struct param *p = &r->planned.graph.params.at[i];
        if (weight_is_constant(&r->planned.graph, p)) continue;
        const struct st_entry *x = st_find(&f, weight_name(&r->planned.graph, p));
        if (!x) fail_msg("%s was not saved", weight_name(&r->planned.graph, p));
        char *data = mem_alloc(x->bytes);
        must(st_read(&f, x, 0, x->bytes, data, &e), &e);
        assert_int_equal(x->dtype, DT_F32);
        assert_memory_equal(data, tape_address(&r->tape, p->master), x->bytes);
        *statistics += p->running;
        mem_free(data);
    }
    st_close(&f);
}

/* Two steps, saved, and a third; a new run that starts from the save takes the same third step. */
static void resume_is_exact(const char *model, const char *const *sets)
{
    char dir[] = "/tmp/tinyvit.XXXXXX";
    struct trial a, b;
    struct error e = {0};
    int statistics = 0;
    assert_non_null(mkdtemp(dir));
    start(&a, model, sets);
    step(&a), step(&a);
    save(&a, dir);
    expect_saved(dir, &a.r, &statistics);
    assert_true(statistics > 20);
    start(&b, model, sets);
    must(state_load(dir, &b.state, &b.r.planned.graph, &b.r.device, &b.r.tape, run_staging(&b.r), PLAN_STAGING, &e),
         &e);
    floats x = collect(&a.r, MASTERS), y = collect(&b.r, MASTERS);
    same_bits(&x, &y);
    step(&a), step(&b);
    x = collect(&a.r, MASTERS), y = collect(&b.r, MASTERS);
    same_bits(&x, &y);
    stop(&a), stop(&b);
    drop_folder(dir);
}

TEST(test_resume)
{
    resume_is_exact("model.preset=tinysam-tiny", (const char *const[]){"memory.precision=f32", NULL});
    resume_is_exact("model.path=" GOLDEN, (const char *const[]){"memory.precision=f32", "model.bn_group=2", NULL});
}

/* Read and written back, a folder's weights are the same bytes: with unused heads and counters, in
 * f32 and in bf16. */
TEST(test_written_back)
{
    static const char *const models[] = {GOLDEN, "tests/golden/tinyvit_masks", "tests/golden/tinyvit_boxes", NULL};
    check_written_back(models, (const char *const[]){"memory.precision=f32", NULL});
}

/* --- names and counts ------------------------------------------------------------------------ */

TEST(test_names)
{
    static const char *const known[][2] = {
        {"vision_encoder.layers.11.layer_norm1.weight", "image_encoder.blocks.11.norm1.weight"},
        {"vision_encoder.layers.3.attn.rel_pos_h", "image_encoder.blocks.3.attn.rel_pos_h"},
        {"vision_encoder.neck.layer_norm2.bias", "image_encoder.neck.3.bias"},
        {"shared_image_embedding.positional_embedding", "prompt_encoder.pe_layer.positional_encoding_gaussian_matrix"},
        {"prompt_encoder.mask_embed.conv3.weight", "prompt_encoder.mask_downscaling.6.weight"},
        {"mask_decoder.transformer.layers.1.layer_norm4.weight", "mask_decoder.transformer.layers.1.norm4.weight"},
        {"mask_decoder.output_hypernetworks_mlps.3.layers.0.bias",
         "mask_decoder.output_hypernetworks_mlps.3.layers.1.bias"},
        {"mask_decoder.iou_prediction_head.proj_out.weight", "mask_decoder.iou_prediction_head.layers.2.weight"},
        {"mask_decoder.iou_token.weight", "mask_decoder.iou_token.weight"},
    };
    char out[256];
    for (size_t i = 0; i < COUNT(known); i++)
        assert_string_equal(sam_original_name(known[i][0], out, sizeof out), known[i][1]);
    struct model m;
    struct graph g;
    struct error e = {0};
    must(model_preset(&m, "sam-tiny", &e), &e);
    graph_init(&g);
    m.family->build(&m, &g, &(struct batch){.B = 1});
    for (uint32_t i = 0; i < g.params.n; i++) /* names are unique */
        for (uint32_t k = 0; k < i; k++) {
            char other[256];
            const char *a = sam_original_name(weight_name(&g, &g.params.at[i]), out, sizeof out);
            assert_string_not_equal(a, sam_original_name(weight_name(&g, &g.params.at[k]), other, sizeof other));
        }
    graph_free(&g);
    model_close(&m);
}

/* Weights as published; the published count does not include the statistics and the 256
 * frequencies. */
TEST(test_preset)
{
    struct model m;
    struct graph g;
    struct error e = {0};
    int64_t all = 0, encoder = 0;
    must(model_preset(&m, "tinysam", &e), &e);
    graph_init(&g);
    m.family->build(&m, &g, &(struct batch){.B = 1});
    must(graph_error(&g, &e), &e);
    for (uint32_t k = 0; k < g.params.n; k++) {
        const struct param *p = &g.params.at[k];
        int64_t n = tensor_elements(tensor_at(&g, p->tensor));
        if (p->frozen) continue;
        all += n;
        if (!strncmp(weight_name(&g, p), "image_encoder.", 14)) encoder += n;
    }
    assert_int_equal(encoder, 6065532);
    assert_int_equal(all, 10130092);
    graph_free(&g);
    model_close(&m);
}

/* Invalid values in a config.json. */
TEST(test_config)
{
    static const char *const bad[][2] = {
        {"\"embed_dims\": [64, 128, 160], \"depths\": [2, 2, 6, 2]", "depths has 4 numbers"},
        {"\"embed_dims\": [64], \"depths\": [1]", "embed_dims"},
        {"\"num_heads\": [2, 3, 5, 10]", "is not divisible by num_heads[1]"},
        {"\"image_size\": 1000", "is not divisible by 16"},
        {"\"mask_decoder_config\": {\"iou_head_depth\": 2}", "iou_head_depth"},
        {"\"prompt_encoder_config\": {\"hidden_size\": 128}", "must be the same"},
        {"\"window_sizes\": [7, 0, 14, 7]", "window_sizes[1]"},
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct model m;
        struct error e = {0};
        char text[256];
        snprintf(text, sizeof text, "{\"model_type\": \"tinysam\", %s}", bad[i][0]);
        assert_int_equal(model_text(&m, text, "test", &e), PL_USAGE);
        if (!strstr(e.text, bad[i][1])) fail_msg("%s: \"%s\" does not say \"%s\"", text, e.text, bad[i][1]);
    }
}

MAIN(NULL, NULL)

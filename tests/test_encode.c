/*
 * test_encode.c: a frozen vision tower runs in a loop over the images that a batch has
 * (passes/techniques/encode.c, engine/loop_trips.c).
 *
 *     samples   images in their room       micro-batch of 4, two at once
 *       0       0 1 2 .                    0 1 | 2 4 | 8 . | not run ...
 *       1       4 . . .
 *       2       8 . . .                    (index 8 is the first image of sample 2)
 *       3       . . . .
 *
 * Losses, gradients, weights after some updates and an evaluation have the bits of the step that
 * computes the tower inline, under the other techniques too; iterations without images are left
 * out; the arena is smaller by the tower's activations.
 *
 *     test_encode          on the CPU
 *     test_encode cuda     the bits on a GPU, where cuBLASLt has other algorithms for fewer rows: of a wide tower too
 */
#include "cuda/cuda.h"
#include "engine/run.h"
#include "graph/ops.h"
#include "io/file.h"
#include "models/images.h"

#include "harness.h"

enum { SAMPLES = 4, ROOM = 4, TOKENS = 48, STEPS = 3 };
/* By batch and sample: the images that it has, as bits. Features of an image need not all be
 * used. */
static const unsigned images_of[][SAMPLES] = {{7, 1, 1, 0}, {0, 2, 15, 8}, {15, 15, 15, 15}, {0, 0, 0, 0}};
enum { BATCHES = COUNT(images_of) };

#define FROZEN "model.freeze=[\"vision_tower.*\", \"multi_modal_projector.*\"]"
#define FROZEN_TOWER "model.freeze=[\"vision_tower.*\"]"
#define LORA "adapter.target_modules=.*language_model.*[qv]_proj"
#define LORA_TOWER "adapter.target_modules=.*[qv]_proj"

typedef VEC(float) floats;

/* --- a run ------------------------------------------------------------------------------------ */

struct task {
    const char *frozen;          /* a key with its value: what is not trained */
    int micro_batch;
    const char *more[2];         /* others; NULL: none */
    bool sparse_labels;
};

/* A model, the side of its images and the features of each; no config: llava-tiny. */
struct shape {
    const char *config;
    int side, features;
};
#define LLAVA(TOWER)                                                                                                   \
    "{\"model_type\": \"llava\", \"image_token_index\": 256, \"vision_feature_layer\": -2, \"vision_config\": "        \
    "{\"model_type\": "                                                                                                \
    "\"clip_vision_model\", " TOWER                                                                                    \
    "}, \"text_config\": {\"model_type\": \"llama\", \"vocab_size\": 264, \"hidden_size\": 64, "                       \
    "\"intermediate_size\": 128, \"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"num_key_value_heads\": 2}}"
static const struct shape tiny = {NULL, 64, 64};
/* One feature an image: the projector of few images has few rows. */
static const struct shape single = {LLAVA("\"hidden_size\": 96, \"intermediate_size\": 384, \"num_hidden_layers\": 2, "
                                          "\"num_attention_heads\": 2, \"image_size\": 32, \"patch_size\": 32"),
                                    32, 1};
/* The width of CLIP ViT-L/14: products of all images are large enough to be timed
 * (matmul_autotune.h). */
static const struct shape wide = {LLAVA("\"hidden_size\": 1024, \"intermediate_size\": 4096, \"num_hidden_layers\": 2, "
                                        "\"num_attention_heads\": 16, \"image_size\": 112, \"patch_size\": 14"),
                                  112, 64};

static const char *device = "cpu";
static const struct shape *shape = &tiny;
static int64_t room = ROOM;
/* Instead of the last images of its room a sample has frames, whose 64 features are pooled to
 * 16. */
static int64_t frames = 0;
enum { FRAME_TOKENS = 16 };

static int describe_images(const struct config *c, const struct model *m, const struct run_options *o,
                           struct bump *memory, struct run_batches *out, struct error *e)
{
    (void)c, (void)m, (void)o, (void)e;
    struct contents *own = bump_alloc(memory, sizeof *own);
    own->media = (struct media){.images = room - frames, .frames = frames, .tokens_per_frame = FRAME_TOKENS};
    out->holds = own;
    return PL_OK;
}

static int describe_few(const struct config *c, const struct model *m, const struct run_options *o, struct bump *memory,
                        struct run_batches *out, struct error *e)
{
    out->sparse_labels = true;
    return describe_images(c, m, o, memory, out, e);
}

static void plan_run(struct run *r, struct config *c, const struct task *t, const char *encode)
{
    char micro[64], at_once[64];
    snprintf(micro, sizeof micro, "memory.micro_batch=%d", t->micro_batch);
    snprintf(at_once, sizeof at_once, "memory.encode=%s", encode);
    char kind[64];
    snprintf(kind, sizeof kind, "device.kind=%s", device);
    const char *const sets[] = {shape->config ? NULL : "model.preset=llava-tiny",
                                kind,
                                "device.threads=2",
                                "memory.offload=none",
                                "memory.recompute=none",
                                "memory.precision=f32",
                                "memory.fused_step=off",
                                "memory.head_chunks=1",
                                "train.effective_batch=4",
                                "data.sequence=48",
                                t->frozen,
                                micro,
                                at_once,
                                t->more[0],
                                t->more[1],
                                strncmp(t->frozen, "adapter", 7) ? NULL : "adapter.init_lora_weights=false"};
    struct error e = {0};
    config_init(c);
    for (size_t i = 0; i < COUNT(sets); i++)
        if (sets[i]) must(config_set(c, sets[i], &e), &e);
    must(config_check(c, shape->config ? 0 : CONFIG_NEEDS_MODEL, &e), &e);
    must(run_plan(r, c,
                  &(struct run_options){.train = true, .describe = t->sparse_labels ? describe_few : describe_images,
                                        .config_json = shape->config},
                  &e),
         &e);
}

static void open_run(struct run *r, struct config *c, const struct task *t, const char *encode)
{
    struct error e = {0};
    plan_run(r, c, t, encode);
    must(run_start(r, NULL, true, &e), &e);
}

static void close_run(struct run *r, struct config *c)
{
    run_close(r);
    config_free(c);
}

/* A feature of image or frame i. */
static int32_t row_of(int i, int t)
{
    const int images = ROOM - (int)frames;
    return i < images ? i * shape->features + t % shape->features
                      : images * shape->features + (i - images) * FRAME_TOKENS + t % FRAME_TOKENS;
}

/* Features of a sample's images, from one image to the next. */
static void put_sample(struct run *r, int batch, int sample)
{
    const int values = ROOM * 3 * shape->side * shape->side;
    float *pixels = mem_alloc((size_t)values * sizeof *pixels);
    struct error e = {0};
    int32_t ids[TOKENS], labels[TOKENS], index[TOKENS];
    int present[ROOM], n = 0;
    for (int i = 0; i < ROOM; i++)
        if (images_of[batch][sample] >> i & 1) present[n++] = i;
    for (int t = 0; t < TOKENS; t++) {
        ids[t] = (sample * 17 + t * 5 + batch) % 256;
        labels[t] = t % 3 ? (sample * 31 + t * 7) % 256 : -100;
        index[t] = t >= 8 && t < TOKENS - 8 && n ? row_of(present[(t - 8) * n / (TOKENS - 16)], t) : -1;
    }
    for (int i = 0; i < values; i++) pixels[i] = (float)((i * 7 + sample * 13 + batch * 29) % 101) / 50 - 1;
    must(run_write_input(r, "input_ids", sample, ids, sizeof ids, &e), &e);
    must(run_write_input(r, "labels", sample, labels, sizeof labels, &e), &e);
    must(run_write_input(r, "image_index", sample, index, sizeof index, &e), &e);
    must(run_write_input(r, "pixel_values", sample, pixels, (size_t)values * sizeof *pixels, &e), &e);
    mem_free(pixels);
}

static void put_batch(struct run *r, int batch, int step)
{
    struct error e = {0};
    for (int sample = 0; sample < SAMPLES; sample++) put_sample(r, batch, sample);
    const struct step_block b = {.inv_count = {1.0f / 256},
                                 .loss_scale = 1,
                                 .learning_rate = 1e-2f,
                                 .step = step + 1,
                                 .adam_t = step + 1};
    must(run_put_step(r, &b, &e), &e);
}

static void add_tensor(struct run *r, floats *to, id t)
{
    struct error e = {0};
    if (!t) return;
    const struct tensor *x = tensor_at(&r->planned.graph, t);
    void *at = mem_alloc((size_t)tensor_elements(x) * dtype_size(x->dtype));
    must(run_read(r, t, at, &e), &e);
    for (int64_t k = 0; k < tensor_elements(x); k++) vec_push(to, (float)dtype_load(at, x->dtype, k));
    mem_free(at);
}

/* The loss of a step and its gradients, in the order of the parameters. */
static floats run_batch(struct run *r, int batch, int step)
{
    struct error e = {0};
    floats all = {0};
    put_batch(r, batch, step);
    must(run_program(r, PROGRAM_STEP, &e), &e);
    add_tensor(r, &all, graph_find_output(&r->planned.graph, PROGRAM_STEP, "loss"));
    for (uint32_t i = 0; i < r->planned.graph.params.n && !r->planned.plan.settings.fused_step; i++)
        add_tensor(r, &all, r->planned.graph.params.at[i].grad);
    return all;
}

/* Some updates: losses and gradients, then the weights, and the loss of an evaluation. */
static floats train(struct run *r)
{
    struct error e = {0};
    floats all = {0};
    for (int step = 0; step < STEPS; step++) {
        floats one = run_batch(r, step % BATCHES, step);
        for (uint32_t i = 0; i < one.n; i++) vec_push(&all, one.at[i]);
        vec_free(&one);
        must(run_program(r, PROGRAM_UPDATE, &e), &e);
    }
    for (uint32_t i = 0; i < r->planned.graph.params.n; i++)
        if (!r->planned.graph.params.at[i].frozen) add_tensor(r, &all, r->planned.graph.params.at[i].tensor);
    float loss = -1;
    put_batch(r, 1, STEPS);
    must(run_forward(r, graph_find_output(&r->planned.graph, PROGRAM_EVAL, "loss"), &loss, &e), &e);
    vec_push(&all, loss);
    return all;
}

/* --- the same bits ---------------------------------------------------------------------------- */

static void expect_same(const floats *got, const floats *want, const struct task *t, const char *encode)
{
    const char *more = t->more[0] ? t->more[0] : "no technique";
    if (got->n != want->n)
        fail_msg("%s, %s, encode %s: %u values, expected %u", t->frozen, more, encode, got->n, want->n);
    for (uint32_t i = 0; i < got->n; i++)
        if (got->at[i] != want->at[i])
            fail_msg("%s, %s, micro-batch %d, encode %s: value %u of %u is %.9g, expected %.9g", t->frozen, more,
                     t->micro_batch, encode, i, got->n, (double)got->at[i], (double)want->at[i]);
}

static uint32_t encoding_loops(const struct graph *g)
{
    uint32_t n = 0;
    for (id l = 1; l < g->loops.n; l++) n += !strcmp(graph_name(g, g->loops.at[l].name), "encode");
    return n;
}

/* All values of memory.encode as the first one. Dead bytes are NaN: memory that iterations which
 * are left out would have written is never read. */
static void check_values(const struct task *t, bool moves, const char *const *value, int values)
{
    floats want = {0};
    for (int i = 0; i < values; i++) {
        struct config c;
        struct run r = {0};
        open_run(&r, &c, t, value[i]);
        /* step and evaluation */
        assert_int_equal(encoding_loops(&r.planned.graph), strcmp(value[i], "inline") && moves ? 2 : 0);
        r.tape.poison = strcmp(device, "cuda") != 0; /* a diagnostic of the CPU device */
        floats got = train(&r);
        if (i) expect_same(&got, &want, t, value[i]);
        else want = got;
        if (i) vec_free(&got);
        close_run(&r, &c);
    }
    assert_true(want.at[0] > 0 && want.at[want.n - 1] > 0);
    vec_free(&want);
}

static void check_task(const struct task *t, bool moves, int values)
{
    check_values(t, moves, (const char *[]){"inline", "3", "all", "1"}, values);
}

static void test_micro_batches(void **state)
{
    static const int micro[] = {1, 3, SAMPLES};
    for (size_t i = 0; i < COUNT(micro); i++) check_task(&(struct task){LORA, micro[i], {NULL}, false}, true, 4);
}

/* A frozen tower moves with the projector or without; a trained one, and one with adapters,
 * stays. */
static void test_what_is_trained(void **state)
{
    check_task(&(struct task){FROZEN, 2, {NULL}, false}, true, 2);
    check_task(&(struct task){FROZEN_TOWER, 2, {NULL}, false}, true, 3);
    check_task(&(struct task){LORA_TOWER, 2, {NULL}, false}, false, 2);
    check_task(&(struct task){"train.weight_decay=0", 2, {NULL}, false}, false, 2);
}

static void test_techniques(void **state)
{
    static const struct task tasks[] = {
        {LORA, 2, {"memory.recompute=all", "memory.offload=weights"}, false},
        {LORA, 2, {"memory.recompute=all+halves+selective", "memory.quantize=nf4"}, false},
        {LORA, 2, {"memory.offload=optimizer+masters+weights+activations", "memory.precision=bf16"}, false},
        {LORA, 2, {"memory.precision=bf16-pure", "train.clip_norm=0.1"}, false},
        {LORA, 2, {"memory.head_chunks=3"}, true},
        {FROZEN_TOWER, 2, {"memory.recompute=all", "memory.quantize=nf4"}, false},
        {FROZEN, SAMPLES, {"memory.fused_step=on"}, false},
    };
    for (size_t i = 0; i < COUNT(tasks); i++) check_task(&tasks[i], true, 2);
}

/* A projector of one row, and of all: products of few rows have another kernel. */
static void test_few_rows(void **state)
{
    shape = &single;
    check_task(&(struct task){FROZEN, SAMPLES, {NULL}, false}, true, 4);
    check_task(&(struct task){LORA, 2, {"memory.precision=bf16"}, false}, true, 4);
    shape = &tiny;
}

static void test_wide(void **state)
{
    if (strcmp(device, "cuda")) return;
    shape = &wide;
    check_task(&(struct task){FROZEN, SAMPLES, {NULL}, false}, true, 4);
    check_task(&(struct task){LORA, SAMPLES, {"memory.precision=bf16"}, false}, true, 4);
    check_task(&(struct task){LORA, 2, {"memory.precision=bf16", "memory.quantize=nf4"}, false}, true, 4);
    check_task(&(struct task){FROZEN_TOWER, SAMPLES, {"memory.precision=f16", "device.deterministic=true"}, false},
               true, 4);
    /* The first run chooses the algorithms: here in an arena without room for the products of all
     * images. */
    check_values(&(struct task){FROZEN, SAMPLES, {"memory.precision=f16", "memory.recompute=all"}, false}, true,
                 (const char *[]){"1", "3", "inline"}, 3);
    shape = &tiny;
}

/* --- iterations that are run ------------------------------------------------------------------ */

struct launches {
    const struct graph *g;
    uint32_t writes;
};

static void count_writes(void *observer, const struct entry *e)
{
    struct launches *n = observer;
    n->writes += node_at(n->g, e->node)->op == OP_CACHE_WRITE;
}

static uint32_t expected_trips(int batch, int micro_batch, int at_once)
{
    uint32_t trips = 0;
    for (int first = 0; first < SAMPLES; first += micro_batch) {
        int n = 0;
        for (int sample = first; sample < first + micro_batch; sample++)
            n += __builtin_popcount(images_of[batch][sample]);
        trips += (uint32_t)((n + at_once - 1) / at_once);
    }
    return trips;
}

static void check_trips(void)
{
    for (int micro = 1; micro <= SAMPLES; micro += micro)
        for (int at_once = 1; at_once <= 3; at_once++) {
            struct config c;
            struct run r = {0};
            char encode[16];
            snprintf(encode, sizeof encode, "%d", at_once);
            open_run(&r, &c, &(struct task){LORA, micro, {NULL}, false}, encode);
            struct launches n = {.g = &r.planned.graph};
            r.tape.observe = count_writes;
            r.tape.observer = &n;
            for (int batch = 0; batch < BATCHES; batch++) {
                n.writes = 0;
                floats got = run_batch(&r, batch, 0);
                assert_int_equal(n.writes, expected_trips(batch, micro, at_once));
                vec_free(&got);
            }
            assert_int_equal(expected_trips(3, micro, at_once), 0);
            close_run(&r, &c);
        }
}

static void test_trips(void **state)
{
    check_trips();
}

/* Frames after the images, or by itself: the same, in the same number of iterations. */
static void test_frames(void **state)
{
    for (frames = 2; frames <= ROOM; frames += 2) {
        check_task(&(struct task){LORA, 1, {NULL}, false}, true, 4);
        check_task(&(struct task){LORA, SAMPLES, {"memory.precision=bf16"}, false}, true, 3);
        check_task(&(struct task){FROZEN_TOWER, 2, {"memory.recompute=all"}, false}, true, 3);
        check_task(&(struct task){LORA, 2, {"memory.head_chunks=3"}, true}, true, 2);
        check_trips();
    }
    frames = 0;
}

/* --- memory ----------------------------------------------------------------------------------- */

/* The most bytes of activations and workspace that are live in the step at a node of the tower. */
static uint64_t tower_bytes(const struct run *r)
{
    const struct graph *g = &r->planned.graph;
    const struct order *order = &g->order[PROGRAM_STEP];
    uint64_t most = 0;
    for (uint32_t k = 0; k < order->nodes.n; k++) {
        const struct node *n = node_at(g, order->nodes.at[k]);
        if (strncmp(graph_name(g, g->scopes.at[n->scope].name), "vision_tower", 12)) continue;
        uint64_t bytes = r->planned.plan.placement.binding[order->nodes.at[k]].work_bytes;
        for (id s = 1; s < g->storages.n; s++) {
            const struct life *l = &r->planned.plan.placement.life[PROGRAM_STEP][s];
            if (l->used && l->start <= k && k <= l->end && g->storages.at[s].kind == KIND_ACT)
                bytes += g->storages.at[s].bytes;
        }
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* The tower is the largest part of the step: the arena shrinks by what its activations do. */
static void test_memory(void **state)
{
    static const char *const values[] = {"inline", "32", "16"};
    const struct task t = {LORA, SAMPLES, {"memory.recompute=all"}, false};
    uint64_t arena = 0, tower = 0;
    room = 16;
    for (size_t i = 0; i < COUNT(values); i++) {
        struct config c;
        struct run r = {0};
        plan_run(&r, &c, &t, values[i]);
        const uint64_t a = plan_arena(&r.planned.plan), b = tower_bytes(&r);
        print_message("encode %-6s arena %llu, the tower %llu\n", values[i], (unsigned long long)a,
                      (unsigned long long)b);
        if (i) {
            const double less = (double)(arena - a), expected = (double)(tower - b);
            assert_true(a < arena && b < tower);
            if (!(less > 0.99 * expected && less < 1.01 * expected))
                fail_msg("encode %s: the arena is smaller by %.0f, the tower by %.0f", values[i], less, expected);
        }
        arena = a;
        tower = b;
        close_run(&r, &c);
    }
    room = ROOM;
}

/* No algorithms that another run has measured. */
static int make_data_folder(void **state)
{
    const int rc = make_folder(state);
    return rc ? rc : setenv("XDG_DATA_HOME", folder, 1);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest all[] = {cmocka_unit_test(test_micro_batches), cmocka_unit_test(test_what_is_trained),
                                     cmocka_unit_test(test_techniques),    cmocka_unit_test(test_few_rows),
                                     cmocka_unit_test(test_wide),          cmocka_unit_test(test_trips),
                                     cmocka_unit_test(test_frames),        cmocka_unit_test(test_memory)};
    const struct CMUnitTest gpu[] = {cmocka_unit_test(test_micro_batches), cmocka_unit_test(test_what_is_trained),
                                     cmocka_unit_test(test_techniques), cmocka_unit_test(test_wide)};
    if (argc == 1) return cmocka_run_group_tests(all, make_data_folder, remove_folder);
    device = argv[1];
    const bool here = strcmp(device, "cuda") || cuda_gpus();
    const int failed = here ? cmocka_run_group_tests(gpu, make_data_folder, remove_folder) : 0;
    printf("%d passed, %d failed, %d skipped\n", here ? (int)COUNT(gpu) - failed : 0, failed,
           here ? 0 : (int)COUNT(gpu));
    return failed != 0;
}

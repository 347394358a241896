/*
 * test_recompute.c: recomputation in the backward (gradient checkpointing). For a segmentation
 * model, one with batch normalisation in stages, and a language model, and for every value of
 * memory.recompute:
 *
 *     bits       losses and weights of three steps are unchanged, in loops with NaN in dead bytes
 *     bytes      the arena is smaller, by an amount that follows from the recomputed blocks
 *     seconds    the plan's time grows with every recomputed block
 *     blocks     the requested share of blocks is the one that runs
 *     modules    rules by name, the last one wins, a rule without a match is rejected
 *
 * Run from the repository's root.
 */
#include "batch/batch_plan.h"
#include "batch/feed.h"
#include "graph/lifetime.h"
#include "planning/parameter_groups.h"
#include "engine/run.h"

#include "harness.h"

enum { BATCH = 4, MASKS = 3, STEPS = 2 };

/* --- runs ---------------------------------------------------------------------------------- */

static const char *const preset_names[] = {"sam-tiny", "tinysam-tiny", "llama-tiny", "sam2-tiny"};
enum { SAM, TINYSAM, LLAMA };

/* Plans a model with this value of memory.recompute, and more settings; NULL ends them. */
static int plan_with(struct run *r, struct config *c, int model, const char *words, const char *const *sets,
                     struct error *e)
{
    static const char *const base[] = {"train.effective_batch=4", "memory.offload=none", "memory.head_chunks=1",
                                       "memory.micro_batch=4",    "device.threads=1",    "memory.precision=f32",
                                       "memory.fused_step=off"};
    char text[96];
    memset(r, 0, sizeof *r);
    config_init(c);
    snprintf(text, sizeof text, "model.preset=%s", preset_names[model]);
    int rc = config_set(c, text, e);
    for (size_t i = 0; i < COUNT(base) && !rc; i++) rc = config_set(c, base[i], e);
    if (!rc && model == LLAMA) rc = config_set(c, "data.sequence=48", e);
    snprintf(text, sizeof text, "memory.recompute=%s", words);
    if (!rc) rc = config_set(c, text, e);
    for (; sets && *sets && !rc; sets++) rc = config_set(c, *sets, e);
    if (!rc) rc = config_check(c, CONFIG_NEEDS_MODEL, e);
    struct run_options o = {.train = true};
    const struct contents prompts = {.prompts = {.masks = MASKS, .points = 2, .targets = true}};
    if (model != LLAMA) o.holds = &prompts;
    return rc ? rc : run_plan(r, c, &o, e);
}

static double value_of(const char *name, int64_t i)
{
    static const int areas[] = {17, 13, 20, 20, 0, 0, 5, 20};
    double wave = sin(0.37 * (double)i + 0.001 * (double)(i % 97));
    if (!strcmp(name, "input_ids") || !strcmp(name, "labels") || !strcmp(name, "gt_masks"))
        return (double)(i * 37 % 251);
    if (!strcmp(name, "input_labels")) return (double)(i % 2);
    if (!strcmp(name, "gt_valid")) return areas[i % (int64_t)COUNT(areas)];
    return !strcmp(name, "input_points") ? 0.5 + 0.45 * wave : wave;
}

static void put_batch(struct run *r)
{
    static const char *const names[] = {"pixel_values", "input_points", "input_labels", "gt_masks",
                                        "gt_valid",     "input_ids",    "labels"};
    struct error e = {0};
    for (size_t k = 0; k < COUNT(names); k++) {
        struct planned_input x;
        if (!planned_input(&r->planned, names[k], &x)) continue;
        uint64_t bytes = x.sample * BATCH;
        char *data = mem_alloc(bytes);
        for (uint64_t i = 0; i < bytes / dtype_size(x.dtype); i++)
            dtype_store(data, x.dtype, (int64_t)i, value_of(names[k], (int64_t)i));
        must(run_write_input(r, names[k], 0, data, bytes, &e), &e);
        mem_free(data);
    }
}

/* Losses of the steps, then every parameter, as bytes. */
struct result {
    VEC(char) bytes;
};

static void keep(struct result *x, struct run *r, id tensor)
{
    struct error e = {0};
    uint64_t n = tensor_bytes(tensor_at(&r->planned.graph, tensor));
    char *data = mem_alloc(n);
    must(run_read(r, tensor, data, &e), &e);
    for (uint64_t i = 0; i < n; i++) vec_push(&x->bytes, data[i]);
    mem_free(data);
}

static struct result train(int model, const char *words, const char *const *sets)
{
    struct config c;
    struct run r;
    struct error e = {0};
    struct result x = {0};
    must(plan_with(&r, &c, model, words, sets, &e), &e);
    must(run_start(&r, NULL, true, &e), &e);
    r.tape.poison = sets && strcmp(words, "none");
    for (int step = 1; step <= STEPS; step++) {
        put_batch(&r);
        struct step_block b = {.learning_rate = 1e-3f,
                               .inv_count = {0.125f},
                               .loss_scale = 1,
                               .step = step,
                               .adam_t = step,
                               .rng_step = (uint64_t)step - 1};
        must(run_put_step(&r, &b, &e), &e);
        must(run_program(&r, PROGRAM_STEP, &e), &e);
        keep(&x, &r, graph_find_output(&r.planned.graph, PROGRAM_STEP, "loss"));
        float loss;
        memcpy(&loss, x.bytes.at + x.bytes.n - sizeof loss, sizeof loss);
        if (!(isfinite(loss) && loss > 0))
            fail_msg("%s, %s: the loss of step %d is %g", preset_names[model], words, step, (double)loss);
        must(run_program(&r, PROGRAM_UPDATE, &e), &e);
    }
    for (uint32_t i = 0; i < r.planned.graph.params.n; i++) keep(&x, &r, r.planned.graph.params.at[i].master);
    run_close(&r);
    config_free(&c);
    return x;
}

static void check_same(int model, const char *words, const struct result *want, const char *const *sets)
{
    struct result got = train(model, words, sets);
    assert_int_equal(got.bytes.n, want->bytes.n);
    if (memcmp(got.bytes.at, want->bytes.at, want->bytes.n))
        fail_msg("%s, %s: not the bits of none", preset_names[model], words);
    vec_free(&got.bytes);
}

static const char *const variants[] = {"all",
                                       "selective",
                                       "every:2",
                                       "every:3",
                                       "ratio:0.5",
                                       "first:1",
                                       "segments:2",
                                       "segments:1",
                                       "all+halves",
                                       "all+selective",
                                       "every:2+selective",
                                       "first:1+halves+selective",
                                       "segments:2+selective"};

TEST(test_bits)
{
    for (int model = 0; model < (int)COUNT(preset_names); model++) {
        struct result want = train(model, "none", NULL);
        for (size_t i = 0; i < COUNT(variants); i++) check_same(model, variants[i], &want, NULL);
        vec_free(&want.bytes);
    }
}

/* With micro-batch loops, and in bf16: compared with no recompute in the same loops. */
TEST(test_bits_split)
{
    static const char *const split[] = {"memory.micro_batch=2", "memory.head_chunks=2", "memory.precision=bf16", NULL};
    static const char *const some[] = {"all", "every:2+selective", "segments:2", "all+halves+selective"};
    for (int model = 0; model < (int)COUNT(preset_names); model++) {
        struct result want = train(model, "none", split);
        for (size_t i = 0; i < COUNT(some); i++) check_same(model, some[i], &want, split);
        vec_free(&want.bytes);
    }
}

/* --- plans --------------------------------------------------------------------------------- */

struct memory_use {
    uint64_t arena;
    double seconds;
    uint64_t saved;     /* bytes that the forward keeps for the rest of the step */
    uint64_t transient; /* largest sum of recomputed activations that are alive at once */
    uint32_t blocks;    /* number of recomputed blocks */
    char names[512];    /* their names in the order of recomputation, separated by blanks */
};

/* Measures the kept activations of the forward, and the memory of recomputed ones. */
static void measure(const struct graph *g, struct memory_use *l)
{
    const struct order *order = &g->order[PROGRAM_STEP];
    struct life *life = mem_alloc(g->storages.n * sizeof *life);
    uint64_t *alive = mem_alloc((order->nodes.n + 1) * sizeof *alive);
    enum phase *phase = mem_alloc(g->storages.n * sizeof *phase); /* of the first writer */
    bool *written = mem_alloc(g->storages.n);
    uint32_t turn = 0; /* the last node of the forward */
    for (uint32_t k = 0; k < order->nodes.n; k++) {
        const struct node *n = node_at(g, order->nodes.at[k]);
        if (n->phase == PHASE_FORWARD) turn = k;
        for (int o = 0; o < n->nout; o++) {
            id s = tensor_at(g, n->out[o])->storage;
            if (!written[s]) phase[s] = n->phase;
            written[s] = true;
        }
    }
    graph_lifetimes(g, PROGRAM_STEP, life);
    for (id s = 1; s < g->storages.n; s++) {
        if (!life[s].used || !written[s] || g->storages.at[s].kind != KIND_ACT) continue;
        if (phase[s] == PHASE_FORWARD && life[s].end > turn) l->saved += g->storages.at[s].bytes;
        for (uint32_t k = life[s].start; k <= life[s].end && phase[s] == PHASE_RECOMPUTE; k++)
            alive[k] += g->storages.at[s].bytes;
    }
    for (uint32_t k = 0; k < order->nodes.n; k++)
        if (alive[k] > l->transient) l->transient = alive[k];
    mem_free(life);
    mem_free(alive);
    mem_free(phase);
    mem_free(written);
}

static void count_blocks(const struct graph *g, struct memory_use *l)
{
    bool *seen = mem_alloc(g->scopes.n);
    for (uint32_t k = 0; k < g->order[PROGRAM_STEP].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[PROGRAM_STEP].nodes.at[k]);
        id block = graph_block_of(g, n->scope);
        if (n->phase != PHASE_RECOMPUTE || !block || seen[block]) continue;
        seen[block] = true;
        l->blocks++;
        size_t at = strlen(l->names);
        snprintf(l->names + at, sizeof l->names - at, "%s%s", at ? " " : "", graph_name(g, g->scopes.at[block].name));
    }
    mem_free(seen);
}

static struct memory_use measure_plan(int model, const char *words, const char *const *sets)
{
    struct config c;
    struct run r;
    struct error e = {0};
    struct memory_use l = {0};
    must(plan_with(&r, &c, model, words, sets, &e), &e);
    l.arena = plan_arena(&r.planned.plan);
    l.seconds = r.planned.plan.seconds;
    measure(&r.planned.graph, &l);
    count_blocks(&r.planned.graph, &l);
    run_close(&r);
    config_free(&c);
    return l;
}

TEST(test_bytes)
{
    for (int model = 0; model < (int)COUNT(preset_names); model++) {
        struct memory_use none = measure_plan(model, "none", NULL), all = measure_plan(model, "all", NULL),
                          half = measure_plan(model, "every:2", NULL);
        for (size_t i = 0; i < COUNT(variants); i++) {
            struct memory_use l = measure_plan(model, variants[i], NULL);
            if (l.arena >= none.arena)
                fail_msg("%s, %s: %llu bytes, none has %llu", preset_names[model], variants[i],
                         (unsigned long long)l.arena, (unsigned long long)none.arena);
            if (l.saved >= none.saved) fail_msg("%s, %s: as much is kept as by none", preset_names[model], variants[i]);
            if (l.seconds <= none.seconds)
                fail_msg("%s, %s: %g s, none takes %g", preset_names[model], variants[i], l.seconds, none.seconds);
        }
        assert_true(none.arena > half.arena && half.arena > all.arena);
        assert_true(none.saved > half.saved && half.saved > all.saved);
        assert_true(none.seconds < half.seconds && half.seconds < all.seconds);
        assert_true(none.blocks == 0 && half.blocks > 0 && all.blocks > half.blocks);
        /* Block recompute and selective recompute together keep less than either by itself. */
        struct memory_use both = measure_plan(model, "every:2+selective", NULL),
                          cheap = measure_plan(model, "selective", NULL);
        assert_true(both.saved < half.saved && both.saved < cheap.saved);
        assert_true(both.arena < half.arena);
    }
}

/* A segment is recomputed as one unit: fewer boundaries, a larger recomputation. Submodules: the
 * other way round. */
TEST(test_segments)
{
    for (int model = 0; model < (int)COUNT(preset_names); model++) {
        struct memory_use all = measure_plan(model, "all", NULL), runs = measure_plan(model, "segments:1", NULL),
                          parts = measure_plan(model, "all+halves", NULL);
        /* The largest recomputation of tinysam-tiny is the only block of its stage and has
         * no submodules. */
        bool strict = model != TINYSAM;
        assert_true(runs.saved < all.saved &&
                    (strict ? runs.transient > all.transient : runs.transient == all.transient));
        assert_true(parts.saved > all.saved &&
                    (strict ? parts.transient < all.transient : parts.transient == all.transient));
        assert_int_equal(runs.blocks, all.blocks);
        assert_int_equal(parts.blocks, all.blocks);
    }
    /* Four layers in three segments: one, one, and the rest. With more segments than layers each
     * layer is one. */
    struct memory_use three = measure_plan(LLAMA, "segments:3", NULL), two = measure_plan(LLAMA, "segments:2", NULL),
                      many = measure_plan(LLAMA, "segments:9", NULL), all = measure_plan(LLAMA, "all", NULL);
    assert_true(all.saved > three.saved && three.saved > two.saved);
    assert_true(three.transient == two.transient && three.transient > all.transient);
    assert_true(many.saved == all.saved && many.arena == all.arena);
}

/* --- the requested blocks run ---------------------------------------------------------------- */

struct launched {
    const struct graph *g;
    uint32_t repeated;
    bool *block; /* by scope */
};

static void count_launch(void *observer, const struct entry *e)
{
    struct launched *x = observer;
    const struct node *n = node_at(x->g, e->node);
    if (n->phase != PHASE_RECOMPUTE) return;
    x->repeated++;
    x->block[graph_block_of(x->g, n->scope)] = true;
}

/* The number of blocks of which any node is launched a second time in a step. */
static uint32_t count_executed(int model, const char *words)
{
    struct config c;
    struct run r;
    struct error e = {0};
    must(plan_with(&r, &c, model, words, NULL, &e), &e);
    must(run_start(&r, NULL, true, &e), &e);
    put_batch(&r);
    must(run_put_step(&r, &(struct step_block){.inv_count = {0.125f}, .loss_scale = 1, .step = 1, .adam_t = 1}, &e),
         &e);
    struct launched x = {&r.planned.graph, 0, mem_alloc(r.planned.graph.scopes.n)};
    r.tape.observe = count_launch;
    r.tape.observer = &x;
    must(run_program(&r, PROGRAM_STEP, &e), &e);
    uint32_t blocks = 0;
    for (id s = 1; s < r.planned.graph.scopes.n; s++) blocks += x.block[s];
    mem_free(x.block);
    run_close(&r);
    config_free(&c);
    return blocks;
}

/* For four layers: the blocks, saving and time of each number. Two blocks save twice as much as
 * one, and cost twice as much; every:4 is a quarter of both. */
TEST(test_shares)
{
    static const struct {
        const char *words;
        uint32_t blocks;
        const char *names;
    } cases[] = {
        {"ratio:0", 0, ""},
        {"ratio:0.25", 1, "model.layers.0"},
        {"ratio:0.26", 2, "model.layers.1 model.layers.0"},
        {"ratio:0.5", 2, "model.layers.1 model.layers.0"},
        {"ratio:0.75", 3, "model.layers.2 model.layers.1 model.layers.0"},
        {"ratio:1", 4, "model.layers.3 model.layers.2 model.layers.1 model.layers.0"},
        {"first:0", 0, ""},
        {"first:3", 3, "model.layers.2 model.layers.1 model.layers.0"},
        {"first:9", 4, "model.layers.3 model.layers.2 model.layers.1 model.layers.0"},
        {"every:1", 4, "model.layers.3 model.layers.2 model.layers.1 model.layers.0"},
        {"every:2", 2, "model.layers.2 model.layers.0"},
        {"every:3", 2, "model.layers.3 model.layers.0"},
        {"every:4", 1, "model.layers.0"},
        {"segments:2", 4, "model.layers.2 model.layers.3 model.layers.0 model.layers.1"},
    };
    struct memory_use none = measure_plan(LLAMA, "none", NULL), one = measure_plan(LLAMA, "first:1", NULL);
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct memory_use l = measure_plan(LLAMA, cases[i].words, NULL);
        assert_int_equal(l.blocks, cases[i].blocks);
        assert_string_equal(l.names, cases[i].names);
        assert_int_equal(count_executed(LLAMA, cases[i].words), cases[i].blocks);
        if (strstr(cases[i].words, "segments")) continue;
        assert_int_equal(none.saved - l.saved, cases[i].blocks * (none.saved - one.saved));
        double cost = l.seconds - none.seconds, each = one.seconds - none.seconds;
        assert_true(fabs(cost - cases[i].blocks * each) <= 1e-9 * l.seconds);
    }
}

/* A chain is a sequence of equal blocks: stages, encoder and decoder are counted separately. */
TEST(test_chains)
{
    struct memory_use sam = measure_plan(SAM, "first:1", NULL), tiny = measure_plan(TINYSAM, "first:1", NULL);
    assert_string_equal(sam.names, "mask_decoder.transformer.layers.0 vision_encoder.layers.0");
    assert_non_null(strstr(tiny.names, "image_encoder.layers.0.blocks.0"));
    assert_non_null(strstr(tiny.names, "image_encoder.layers.1.blocks.0"));
    assert_null(strstr(tiny.names, "blocks.1"));
}

/* --- modules --------------------------------------------------------------------------------- */

static void expect_blocks(int model, const char *words, const char *modules, const char *names)
{
    struct memory_use l = measure_plan(model, words, (const char *const[]){modules, NULL});
    assert_string_equal(l.names, names);
}

TEST(test_modules)
{
    expect_blocks(LLAMA, "none", "memory.modules=[{match: model.layers.1, recompute: all}]", "model.layers.1");
    expect_blocks(LLAMA, "all", "memory.modules=[{match: model.layers.1, recompute: none}]",
                  "model.layers.3 model.layers.2 model.layers.0");
    expect_blocks(LLAMA, "none",
                  "memory.modules=[{match: 'model.layers.*', recompute: all}, {match: [model.layers.2, "
                  "model.layers.0], recompute: none}]",
                  "model.layers.3 model.layers.1");
    expect_blocks(LLAMA, "all",
                  "memory.modules=[{match: model, recompute: 'every:3'}, {match: model.layers.0, precision: f32}]",
                  "model.layers.3 model.layers.0");
    expect_blocks(SAM, "none",
                  "memory.modules=[{match: vision_encoder, recompute: 'first:1'}, {match: mask_decoder, recompute: "
                  "'segments:1'}]",
                  "mask_decoder.transformer.layers.0 mask_decoder.transformer.layers.1 vision_encoder.layers.0");
    /* One tower selectively, and nothing else. */
    struct memory_use part =
        measure_plan(SAM, "none",
                     (const char *const[]){"memory.modules=[{match: vision_encoder, recompute: selective}]", NULL});
    assert_non_null(strstr(part.names, "vision_encoder.layers.0"));
    assert_null(strstr(part.names, "mask_decoder"));
    static const char *const rules[] = {"memory.modules=[{match: vision_encoder, recompute: 'every:2+selective'}, "
                                        "{match: mask_decoder, recompute: all}]",
                                        NULL};
    struct result want = train(SAM, "none", NULL);
    check_same(SAM, "selective", &want, rules);
    vec_free(&want.bytes);
}

static void refused(int model, const char *words, const char *modules, const char *message)
{
    struct config c;
    struct run r;
    struct error e = {0};
    int rc = plan_with(&r, &c, model, words, (const char *const[]){modules, NULL}, &e);
    assert_int_equal(rc, PL_USAGE);
    if (!strstr(e.text, message)) fail_msg("%s does not say \"%s\"", e.text, message);
    run_close(&r);
    config_free(&c);
}

TEST(test_refused)
{
    refused(LLAMA, "none", "memory.modules=[{match: model.layer.1, recompute: all}]",
            "matches no module; the nearest is model.layers.1");
    refused(LLAMA, "none", "memory.modules=[{match: lm_head, recompute: all}]", "match names no block");
    refused(LLAMA, "none", "memory.modules=[{match: model, recomput: all}]",
            "memory.modules[0].recomput; did you mean recompute?");
    refused(LLAMA, "none", "memory.modules=[{match: model}]",
            "only match is given, expected recompute or precision too");
    refused(LLAMA, "none", "memory.modules=[{recompute: all}]",
            "match is not given, expected patterns of module names");
    refused(LLAMA, "none", "memory.modules=[{match: model, recompute: auto}]",
            "memory.modules[0].recompute: found the string \"auto\"");
    refused(LLAMA, "none", "memory.modules=[{match: model, precision: f64}]",
            "expected f32, bf16, f16, fp8 or fp8-all");
    static const char *const wrong[] = {"every:0",
                                        "every:",
                                        "every",
                                        "every:2x",
                                        "every:-1",
                                        "ratio:1.5",
                                        "ratio:nan",
                                        "ratio:-0.5",
                                        "segments:0",
                                        "none+halves",
                                        "selective+halves",
                                        "segments:2+halves",
                                        "all+halves+halves",
                                        "all+",
                                        "half",
                                        "first:99999999999999999999"};
    for (size_t i = 0; i < COUNT(wrong); i++)
        refused(LLAMA, wrong[i], NULL, "expected auto, none, all, selective, every:N");
}

TEST(test_words)
{
    static const char *const right[] = {"none",          "all",
                                        "selective",     "every:3",
                                        "ratio:0.25",    "segments:4",
                                        "first:0",       "all+halves",
                                        "all+selective", "every:2+halves+selective"};
    for (size_t i = 0; i < COUNT(right); i++) {
        struct recompute r;
        char words[SETTING_ROOM];
        assert_true(recompute_read(right[i], &r));
        assert_string_equal(recompute_text(&r, words), right[i]);
    }
    struct recompute r;
    char words[SETTING_ROOM];
    assert_true(recompute_read("all+selective+halves", &r));
    assert_string_equal(recompute_text(&r, words), "all+halves+selective");
}

MAIN(NULL, NULL)

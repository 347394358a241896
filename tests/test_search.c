/*
 * test_search.c: compares the planner's search with an exhaustive enumeration.
 *
 * On small models every choice is compiled and placed. Then:
 * - the figures predicted for a choice without compiling it are those of its compiled graph; those
 *   of a rough choice, or the seconds of a GPU with copies, are no larger;
 * - every subset of what can be offloaded is among them;
 * - for budgets between the smallest and the largest, the plan is the fastest that fits, of those
 *   that are not passed over because another has a smaller offload file (search.c);
 * - a larger budget is never slower;
 * - the smallest budget suffices, and one byte less does not.
 */
#include <omp.h>

#include "cost/links.h"
#include "graph/ops.h"
#include "models/images.h"
#include "models/masks.h"
#include "plan/plan.h"
#include "plan/survey.h"

#include "harness.h"

static const struct settings BASE = {.micro_batch = 4, .accumulation = 1, .precision = PRECISION_F32, .head_chunks = 1,
                                     .train = true, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};

/* --- models ------------------------------------------------------------------------------ */

struct subject {
    const char *name;
    struct model model;
    struct batch batch;
    uint64_t seed; /* of a random graph */
};

static void build_model(void *context, struct graph *g, int micro_batch)
{
    struct subject *x = context;
    struct batch b = x->batch;
    b.B = micro_batch;
    x->model.family->build(&x->model, g, &b);
}

static void build_frozen(void *context, struct graph *g, int micro_batch)
{
    build_model(context, g, micro_batch);
    for (uint32_t i = 0; i < g->params.n; i++)
        if (!strncmp(graph_name(g, tensor_at(g, g->params.at[i].tensor)->name), "vision_tower.", 13))
            g->params.at[i].frozen = true;
}

static uint32_t draw(uint64_t *state, uint32_t below)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % below;
}

/* Blocks of different width and depth on a residual stream, with other ops between them. */
static void build_random(void *context, struct graph *g, int micro_batch)
{
    struct subject *s = context;
    uint64_t state = s->seed;
    int64_t C = 16 * (1 + draw(&state, 4)), T = 8 * (1 + draw(&state, 8));
    uint32_t blocks = 2 + draw(&state, 5);
    id x = graph_input(g, "x", DT_F32, 3, (int64_t[]){micro_batch, T, C});
    struct init init = {INIT_NORMAL, 0.1f, 0};
    id stem = graph_param(g, "stem", DT_F32, 2, (int64_t[]){C, C}, init);
    x = op_linear(g, x, stem, 0);
    for (uint32_t i = 0; i < blocks; i++) {
        char name[32], weight[32];
        snprintf(name, sizeof name, "blocks.%u", i);
        id before = graph_scope_push(g, name, SCOPE_BLOCK), y = x;
        uint32_t layers = 1 + draw(&state, 3);
        int64_t inner = 16 * (1 + draw(&state, 8)), from = C;
        for (uint32_t k = 0; k <= layers; k++) {
            int64_t to = k == layers ? C : inner;
            snprintf(weight, sizeof weight, "blocks.%u.w%u", i, k);
            y = op_linear(g, y, graph_param(g, weight, DT_F32, 2, (int64_t[]){to, from}, init), 0);
            if (k < layers) y = op_act(g, y, draw(&state, ACT_EXP)); /* without EXP, which overflows in chains */
            from = to;
        }
        x = op_add(g, x, y);
        graph_scope_pop(g, before);
        if (draw(&state, 3) == 0) x = op_act(g, x, ACT_TANH);
    }
    graph_output(g, "loss", op_sum(g, x));
}

/* A block, then an LM head and a mask head, each with many rows. */
static void build_heads(void *context, struct graph *g, int micro_batch)
{
    (void)context;
    enum { T = 48, C = 16, V = 64 };
    const struct init init = {INIT_NORMAL, 0.1f, 0};
    id x = graph_input(g, "x", DT_F32, 3, (int64_t[]){micro_batch, T, C}), lm = 0, masks = 0;
    IN_SCOPE (g, "blocks.0", SCOPE_BLOCK)
        x = op_add(g, x,
                   op_act(g, op_linear(g, x, graph_param(g, "blocks.0.w", DT_F32, 2, (int64_t[]){C, C}, init), 0),
                          ACT_TANH));
    const id rows = op_reshape(g, x, 2, (int64_t[]){-1, C}),
             labels =
                 op_reshape(g, graph_input(g, "labels", DT_I32, 2, (int64_t[]){micro_batch, T}), 1, (int64_t[]){-1});
    IN_SCOPE (g, "lm_head", SCOPE_ROWS)
        lm = op_xent(g, op_linear(g, rows, graph_param(g, "lm_head", DT_F32, 2, (int64_t[]){V, C}, init), 0), labels,
                     NULL);
    IN_SCOPE(g, "mask_head", SCOPE_ROWS) {
        const id wide = op_linear(g, rows, graph_param(g, "mask_head", DT_F32, 2, (int64_t[]){2 * V, C}, init), 0);
        masks = op_sum(g, op_mul(g, wide, op_act(g, wide, ACT_TANH)));
    }
    graph_output(g, "loss", op_add(g, lm, masks));
}

/* --- the whole space ------------------------------------------------------------------------ */

static const struct freedom FREE = {.effective_batch = 4, .free[TECHNIQUE_micro_batch] = true,
                                    .free[TECHNIQUE_recompute] = true, .free[TECHNIQUE_offload] = true,
                                    .free[TECHNIQUE_head_chunks] = true};
/* All freedoms at once: master weights, formats of the optimizer state, the fused update. */
static const struct freedom ALL_FREE = {.effective_batch = 3, .free[TECHNIQUE_micro_batch] = true,
                                        .free[TECHNIQUE_recompute] = true, .free[TECHNIQUE_offload] = true,
                                        .free[TECHNIQUE_head_chunks] = true, .free[TECHNIQUE_fused_step] = true,
                                        .permitted[TECHNIQUE_optimizer] = 1 << STATE_BF16 | 1 << STATE_8BIT};

/* Also a technique that the search does not know: its ladder is a dimension only by the table. How
 * many images a frozen tower encodes at once. Only the chunks of two heads. What is divided among
 * 2 ranks, among 8 with two shares, and among 4 GPUs of two hosts. Also a fused step, on a GPU. And
 * parts of long rows, on a CPU without a choice of micro-batches, and on a GPU. */
enum freedoms {
    SOME_FREE,
    EVERY_FREE,
    LADDER_FREE,
    IMAGES_FREE,
    HEADS_FREE,
    RANKS_FREE,
    MANY_RANKS_FREE,
    LONG_FREE,
    GPU_RANKS_FREE,
    GPU_FREE,
    GPU_LONG_FREE
};

struct enumeration {
    struct plan_space space;
    struct source source;
    struct settings base;
    struct freedom f;
    struct profile profile;
    uint64_t *arena, *file; /* placed bytes of memory and of the offload file, by choice */
    double *seconds;
    bool *passed_over;
    uint64_t least, most;
};

/* A choice is passed over if another is at most 1 % slower, needs no more memory and has a smaller
 * file. */
static void pass_over(struct enumeration *w)
{
    for (uint32_t i = 0; i < w->space.choices.n && !w->base.device.separate_memory; i++)
        for (uint32_t k = 0; k < w->space.choices.n; k++)
            w->passed_over[i] |=
                w->seconds[k] <= w->seconds[i] * 1.01 && w->arena[k] <= w->arena[i] && w->file[k] < w->file[i];
}

/* Compiles and places every choice. Each graph is verified, one of VERIFIED after each pass. */
static void enumeration_open(struct enumeration *w, struct source source, enum freedoms freedoms)
{
    enum { VERIFIED = 8 };
    struct error e;
    w->source = source;
    w->base = BASE;
    const bool all = freedoms == EVERY_FREE || freedoms == LADDER_FREE;
    w->f = all ? ALL_FREE : FREE;
    const bool parts = freedoms == LONG_FREE || freedoms == GPU_LONG_FREE;
    if (all || freedoms == GPU_FREE || parts) w->base.precision = PRECISION_BF16;
    if (freedoms == GPU_FREE || parts) w->f.free[TECHNIQUE_fused_step] = true, w->f.effective_batch = 2;
    w->f.free[TECHNIQUE_token_chunks] = w->f.free[TECHNIQUE_attention_chunks] = parts;
    if (freedoms == LONG_FREE) w->f.effective_batch = 1;
    if (freedoms == IMAGES_FREE)
        w->f.free[TECHNIQUE_encode] = true, w->f.free[TECHNIQUE_offload] = w->f.free[TECHNIQUE_head_chunks] = false;
    if (freedoms == HEADS_FREE)
        w->f.free[TECHNIQUE_micro_batch] = w->f.free[TECHNIQUE_recompute] = w->f.free[TECHNIQUE_offload] = false;
    w->f.free[TECHNIQUE_gradients] = freedoms == LADDER_FREE;
    w->f.free[TECHNIQUE_mask_chunks] = true;
    profile_default(&w->profile, freedoms >= GPU_RANKS_FREE ? DEVICE_CUDA : DEVICE_CPU, 2);
    if (w->profile.kind == DEVICE_CUDA) w->profile.host_bandwidth = 60e9;
    w->base.device = device_traits(w->profile.kind);
    if (freedoms == RANKS_FREE || freedoms == MANY_RANKS_FREE) {
        w->f.free[TECHNIQUE_shard] = true;
        w->f.free[TECHNIQUE_head_chunks] = w->f.free[TECHNIQUE_mask_chunks] = false;
        w->base.ranks = freedoms == RANKS_FREE ? 2 : 8;
        w->base.shares = freedoms == RANKS_FREE ? 1 : 2;
        if (freedoms == RANKS_FREE) w->base.precision = PRECISION_BF16;
        if (links_set(&w->profile, "", freedoms == RANKS_FREE ? 0 : 4, &e)) fail_msg("%s", e.text);
    }
    if (freedoms == GPU_RANKS_FREE) {
        w->f.free[TECHNIQUE_shard] = w->f.free[TECHNIQUE_group] = true;
        w->f.free[TECHNIQUE_head_chunks] = w->f.free[TECHNIQUE_mask_chunks] = false;
        w->f.effective_batch = 2;
        w->base.precision = PRECISION_BF16;
        w->base.ranks = 4;
        w->base.per_host = 2;
        if (links_set(&w->profile, "", 2, &e)) fail_msg("%s", e.text);
    }
    if (plan_space_open(&w->space, &w->source, &w->base, &w->f, &w->profile, &e)) fail_msg("%s", e.text);
    uint32_t n = w->space.choices.n;
    w->arena = mem_alloc(n * sizeof *w->arena);
    w->file = mem_alloc(n * sizeof *w->file);
    w->passed_over = mem_alloc(n * sizeof *w->passed_over);
    w->seconds = mem_alloc(n * sizeof *w->seconds);
    w->least = UINT64_MAX;
    w->most = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct graph g;
        struct plan p = {0};
        const struct settings *s = &w->space.choices.at[i].settings;
        if (i % VERIFIED ? plan_draft(&g, &w->source, s, &e) : plan_compile(&g, &w->source, s, &e))
            fail_msg("%s", e.text);
        if (i % VERIFIED) graph_verify(&g, "the last");
        if (plan_place(&p, &g, &w->profile, &e)) fail_msg("%s", e.text);
        w->arena[i] = plan_arena(&p);
        w->file[i] = p.placement.arena[SPACE_HOST];
        w->seconds[i] = p.seconds;
        if (w->arena[i] < w->least) w->least = w->arena[i];
        if (w->arena[i] > w->most) w->most = w->arena[i];
        plan_free(&p);
        graph_free(&g);
    }
    pass_over(w);
}

static void enumeration_close(struct enumeration *w)
{
    plan_space_close(&w->space);
    mem_free(w->arena);
    mem_free(w->file);
    mem_free(w->passed_over);
    mem_free(w->seconds);
}

/* Every value of a free technique that the search does not know stands with the same other
 * choices. */
static void check_ladder(const struct enumeration *w)
{
    uint32_t n[2] = {0};
    for (uint32_t i = 0; i < w->space.choices.n; i++) n[w->space.choices.at[i].settings.gradients]++;
    assert_int_equal(n[1], w->f.free[TECHNIQUE_gradients] ? n[0] : 0);
    uint32_t one = 0, all = 0;
    for (uint32_t i = 0; i < w->space.choices.n; i++)
        one += w->space.choices.at[i].settings.encode == 1, all += w->space.choices.at[i].settings.encode == ENCODE_ALL;
    assert_int_equal(one, w->f.free[TECHNIQUE_encode] ? all : 0); /* every micro-batch has more than one image */
}

/* Where offload is free, every subset of what can be offloaded is a choice, also with a fused step
 * where that is free; and without one on a GPU the weights of several numbers of blocks. The update
 * is offloaded only with all that it changes, and only where the host's rate was measured. */
static void check_offloads(const struct enumeration *w)
{
    const bool masters = w->base.precision != PRECISION_F32;
    bool several = false;
    for (uint32_t i = 0; i < w->space.choices.n; i++) several |= w->space.choices.at[i].settings.offload_blocks;
    if (!w->f.free[TECHNIQUE_offload]) return;
    for (int fused = 0; fused <= w->f.free[TECHNIQUE_fused_step]; fused++)
        for (unsigned offload = 0; offload <= OFFLOAD_ALL; offload++) {
            uint32_t n = 0, part = 0;
            for (uint32_t i = 0; i < w->space.choices.n; i++) {
                const struct settings *s = &w->space.choices.at[i].settings;
                n += s->offload == offload && s->fused_step == fused;
                part += s->offload == offload && s->fused_step == fused && s->offload_blocks;
            }
            const unsigned updated = OFFLOAD_STATE | (masters ? OFFLOAD_MASTERS : 0);
            const bool update = w->profile.host_bandwidth > 0 && (offload & updated) == updated,
                       valid = (masters || !(offload & OFFLOAD_MASTERS)) && (update || !(offload & OFFLOAD_UPDATE));
            if (valid) assert_true(n > 0);
            else assert_int_equal(n, 0);
            const bool whole = fused || offload & OFFLOAD_ACTIVATIONS || !(offload & OFFLOAD_WEIGHTS);
            assert_int_equal(part > 0, n && several && !whole);
        }
}

/* Parts of long rows: two numbers of chunks, each with attention whole and in groups of heads. */
static void check_parts(const struct enumeration *w)
{
    uint32_t n[2][2] = {{0}}, other = 0;
    for (uint32_t i = 0; i < w->space.choices.n; i++) {
        const struct settings *s = &w->space.choices.at[i].settings;
        if (s->token_chunks > 1)
            n[s->token_chunks == 32][s->attention_chunks == 4] += s->token_chunks == 32 || s->token_chunks == 8;
        else other++;
    }
    const bool parts = w->f.free[TECHNIQUE_token_chunks];
    for (int i = 0; i < 4; i++) assert_int_equal(n[i / 2][i % 2] > 0, parts);
    assert_true(other);
}

/* The composed figures are those of the compiled graph: equal seconds up to rounding, no more where
 * they are rough or lanes wait for each other, and a lower bound that does not exceed the arena. */
static void check_predictions(const struct enumeration *w, const char *name)
{
    for (uint32_t i = 0; i < w->space.choices.n; i++) {
        const struct plan_choice *c = &w->space.choices.at[i];
        char again[SETTING_ROOM];
        const bool least = c->rough || w->base.device.copies_overlap;
        if (c->seconds / w->seconds[i] - 1 > 1e-9 || (!least && c->seconds / w->seconds[i] - 1 < -1e-9) ||
            c->bound[SPACE_DEVICE] > w->arena[i])
            fail_msg("%s, %d x %d, recompute %s, head in %d, offload %u, shard %d: predicted %.9g s and %llu bytes, it "
                     "takes %.9g s and %llu",
                     name, c->settings.micro_batch, c->settings.accumulation,
                     recompute_text(&c->settings.recompute, again), c->settings.head_chunks, c->settings.offload,
                     c->settings.shard, c->seconds, (unsigned long long)c->bound[SPACE_DEVICE], w->seconds[i],
                     (unsigned long long)w->arena[i]);
    }
}

/* Drafts that share stages of the pipeline equal the graphs that are compiled separately, in any
 * order. */
static void check_drafts(const struct enumeration *w, const char *name)
{
    struct plan_drafts drafts = {.source = &w->source};
    uint64_t state = 7;
    for (int i = 0; i < 60; i++) {
        const struct settings *s = &w->space.choices.at[draw(&state, w->space.choices.n)].settings;
        struct graph g;
        struct error e;
        struct text alone = {0}, shared = {0};
        if (plan_draft_next(&drafts, s, &e) || plan_draft(&g, &w->source, s, &e)) fail_msg("%s", e.text);
        for (int program = 0; program < PROGRAM_COUNT; program++) {
            graph_print(&g, program, &alone);
            graph_print(&drafts.graph, program, &shared);
        }
        if (strcmp(alone.at, shared.at)) fail_msg("%s, draft %d is not the graph that is compiled by itself", name, i);
        text_free(&alone);
        text_free(&shared);
        graph_free(&g);
    }
    plan_drafts_free(&drafts);
}

static bool same_figures(const struct survey *a, const struct survey *b)
{
    return !memcmp(a->persistent, b->persistent, sizeof a->persistent) &&
           !memcmp(a->weights, b->weights, sizeof a->weights) && a->step == b->step && a->update == b->update &&
           a->eval == b->eval && a->total_seconds == b->total_seconds && a->update_seconds == b->update_seconds &&
           a->moments == b->moments && a->shared == b->shared;
}

/* A survey whose programs update and evaluation are known from other settings has the figures of a
 * survey of its own. */
static void check_surveys(const struct enumeration *w, const char *name)
{
    struct plan_drafts drafts = {.source = &w->source};
    uint64_t state = 11;
    for (int i = 0; i < 60; i++) {
        const struct settings *s = &w->space.choices.at[draw(&state, w->space.choices.n)].settings;
        struct plan_drafts alone = {.source = &w->source};
        struct survey a, b;
        struct error e;
        if (survey_make(&a, &drafts, s, true, NULL, w->space.profile, &e) ||
            survey_make(&b, &alone, s, true, NULL, w->space.profile, &e))
            fail_msg("%s", e.text);
        if (!same_figures(&a, &b)) fail_msg("%s, survey %d of shared drafts differs from one of its own", name, i);
        survey_free(&a);
        survey_free(&b);
        plan_drafts_free(&alone);
    }
    assert_true(drafts.updates.n < 60 && drafts.evals.n < 60);
    plan_drafts_free(&drafts);
}

/* The fastest choice within a budget by enumeration; INFINITY: none fits. */
static double fastest_within(const struct enumeration *w, uint64_t budget)
{
    double best = INFINITY;
    for (uint32_t i = 0; i < w->space.choices.n; i++)
        if (w->arena[i] <= budget && !w->passed_over[i] && w->seconds[i] < best) best = w->seconds[i];
    return best;
}

/* Searches in the space of w. */
static int search(struct enumeration *w, uint64_t budget, struct plan *p)
{
    struct error e = {0};
    struct graph g;
    w->space.f.budget = budget;
    const int rc = plan_search_in(&w->space, p, &g, &e);
    if (rc && rc != PL_NOFIT) fail_msg("%s", e.text);
    graph_free(&g);
    plan_free(p);
    return rc;
}

/* A fresh space gives the answer of one that has been searched before. */
static void check_fresh(const struct enumeration *w, uint64_t budget, const struct plan *wanted, int wanted_rc)
{
    struct freedom f = w->f;
    struct plan p = {0};
    struct graph g;
    struct error e = {0};
    f.budget = budget;
    assert_int_equal(plan_search(&p, &g, &w->source, &w->base, &f, &w->profile, &e), wanted_rc);
    assert_int_equal(p.smallest, wanted->smallest);
    /* of several smallest plans, that of the fresh space may be another one */
    assert_true(wanted_rc || (p.seconds == wanted->seconds && !memcmp(&p.peak, &wanted->peak, sizeof p.peak)));
    plan_free(&p);
    graph_free(&g);
}

static void check_space(struct source source, const char *name, enum freedoms freedoms)
{
    enum { BUDGETS = 20 };
    struct enumeration w;
    struct plan p = {0};
    enumeration_open(&w, source, freedoms);
    check_ladder(&w);
    check_offloads(&w);
    check_parts(&w);
    check_predictions(&w, name);
    check_drafts(&w, name);
    check_surveys(&w, name);
    double before = INFINITY;
    for (int i = 0; i <= BUDGETS; i++) {
        uint64_t budget = w.least + (w.most - w.least) * (uint64_t)i / BUDGETS;
        double best = fastest_within(&w, budget);
        if (search(&w, budget, &p))
            fail_msg("%s: %llu bytes are enough, and are refused", name, (unsigned long long)budget);
        if (fabs(p.seconds / best - 1) > 1e-12)
            fail_msg("%s, %llu bytes: %.9g s, but %.9g s is the fastest", name, (unsigned long long)budget, p.seconds,
                     best);
        if (p.seconds > before)
            fail_msg("%s, %llu bytes: %.9g s, less memory took %.9g s", name, (unsigned long long)budget, p.seconds,
                     before);
        before = p.seconds;
        assert_int_equal(p.smallest, w.least);
        if (i % 5 == 0) check_fresh(&w, budget, &p, PL_OK);
    }
    assert_int_equal(search(&w, w.least - 1, &p), PL_NOFIT);
    check_fresh(&w, w.least - 1, &p, PL_NOFIT);
    check_predictions(&w, name); /* some are not rough any more */
    enumeration_close(&w);
}

static void check_model(const char *preset, struct batch batch, enum freedoms freedoms)
{
    struct subject s = {.batch = batch};
    struct error e;
    if (model_preset(&s.model, preset, &e)) fail_msg("%s", e.text);
    check_space((struct source){&s, freedoms == IMAGES_FREE ? build_frozen : build_model, false}, preset, freedoms);
    model_close(&s.model);
}

/* Sets one thread: two, which share no drafts, take a third more of the processors' time. */
static int one_thread(void **state)
{
    (void)state;
    omp_set_num_threads(1);
    return 0;
}

TEST(test_language)
{
    omp_set_num_threads(2);
    check_model("llama-tiny", (struct batch){.T = 48}, SOME_FREE);
    check_model("llama-tiny", (struct batch){.T = 48}, GPU_FREE);
    omp_set_num_threads(1);
}

/* Rows of 65,536 tokens, which are planned and not run. */
TEST(test_long_rows)
{
    check_model("llama-tiny", (struct batch){.T = 65536}, LONG_FREE);
    check_model("llama-tiny", (struct batch){.T = 65536}, GPU_LONG_FREE);
}

TEST(test_ranks)
{
    check_model("llama-tiny", (struct batch){.T = 16}, RANKS_FREE);
    check_model("llama-tiny", (struct batch){.T = 16}, MANY_RANKS_FREE);
    check_model("llama-tiny", (struct batch){.T = 48}, GPU_RANKS_FREE);
}

static const struct contents slot_prompts = {
    .prompts = {.masks = 4, .points = 2, .rounds = 1, .slots = true, .targets = true}};

TEST(test_sam)
{
    check_model("sam-tiny", (struct batch){.holds = &slot_prompts}, SOME_FREE);
}

TEST(test_images)
{
    check_model("llava-tiny", (struct batch){.T = 24, .holds = &(struct contents){.media = {.images = 3}}},
                IMAGES_FREE);
}

/* Each head has its own number of chunks. */
TEST(test_heads)
{
    struct subject s = {0};
    check_space((struct source){&s, build_heads, false}, "two heads", HEADS_FREE);
    check_space((struct source){&s, build_heads, false}, "two heads", EVERY_FREE);
    struct enumeration w;
    uint32_t apart = 0;
    enumeration_open(&w, (struct source){&s, build_heads, false}, HEADS_FREE);
    for (uint32_t i = 0; i < w.space.choices.n; i++)
        apart += w.space.choices.at[i].settings.mask_chunks == 8 && w.space.choices.at[i].settings.head_chunks == 2;
    assert_true(apart);
    enumeration_close(&w);
}

TEST(test_tinysam)
{
    check_model("tinysam-tiny", (struct batch){.holds = &slot_prompts}, SOME_FREE);
}

TEST(test_sam2)
{
    check_model("sam2-tiny", (struct batch){.holds = &slot_prompts}, SOME_FREE);
}

TEST(test_random)
{
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct subject s = {.seed = seed};
        char name[32];
        snprintf(name, sizeof name, "random graph %llu", (unsigned long long)seed);
        check_space((struct source){&s, build_random, false}, name,
                    seed > 5   ? LADDER_FREE
                    : seed > 4 ? EVERY_FREE
                    : seed > 3 ? GPU_FREE
                               : SOME_FREE);
    }
}

MAIN(one_thread, NULL)

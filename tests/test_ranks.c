/*
 * test_ranks.c: N ranks, as threads of this process, against one rank with N shares: weights,
 * optimizer state, loss and norm have the same bits after every step. No launcher is needed.
 */
#include "base/system.h"
#include "dist/agree.h"
#include "dist/dist.h"

#include "harness.h"
#include "rank_member.h"

enum { RANKS = 8, STEPS = 2 };

/* --- comparing -------------------------------------------------------------------------------- */

static id storage_named(const struct run *r, enum kind kind, const char *name)
{
    for (id s = 1; s < r->planned.graph.storages.n; s++)
        if (r->planned.graph.storages.at[s].kind == kind &&
            !strcmp(graph_name(&r->planned.graph, r->planned.graph.storages.at[s].name), name))
            return s;
    fail_msg("no storage %s", name);
    return 0;
}

static void compare(const struct run *a, const struct run *b, const char *what)
{
    static const enum kind kinds[] = {KIND_PARAM, KIND_MASTER, KIND_STATE};
    uint32_t n = 0;
    for (id s = 1; s < a->planned.graph.storages.n; s++)
        for (size_t k = 0; k < COUNT(kinds); k++) {
            if (a->planned.graph.storages.at[s].kind != kinds[k]) continue;
            const char *name = graph_name(&a->planned.graph, a->planned.graph.storages.at[s].name);
            const id t = storage_named(b, kinds[k], name);
            const struct storage *x = &a->planned.graph.storages.at[s], *y = &b->planned.graph.storages.at[t];
            const uint64_t first = y->shard ? (uint64_t)b->tape.shard * y->bytes : 0,
                           here = first < x->bytes ? min_u64(y->bytes, x->bytes - first) : 0;
            if (memcmp((const char *)bytes_of(a, s) + first, bytes_of(b, t), here))
                fail_msg("%s: %s differs", what, name);
            for (uint64_t i = here; i < y->bytes; i++)
                if (((const char *)bytes_of(b, t))[i]) fail_msg("%s: the padding of %s is not 0", what, name);
            if (!y->shard) assert_true(here == x->bytes);
            n++;
        }
    assert_true(n > 20);
    const id loss[2] = {graph_find_output(&a->planned.graph, PROGRAM_STEP, "loss"),
                        graph_find_output(&b->planned.graph, PROGRAM_STEP, "loss")};
    const float x = *(float *)tape_address(&a->tape, loss[0]), y = *(float *)tape_address(&b->tape, loss[1]);
    if (memcmp(&x, &y, 4) || !(x > 0)) fail_msg("%s: the loss is %.9g and %.9g", what, (double)x, (double)y);
    if (memcmp(tape_address(&a->tape, run_clip(a)), tape_address(&b->tape, run_clip(b)), 8))
        fail_msg("%s: the norm differs", what);
}

/* --- the tests -------------------------------------------------------------------------------- */

/* The largest distance of n numbers, relative to the largest of them. */
static double distance(const float *x, const float *y, uint64_t n)
{
    double most = 1e-3, off = 0;
    for (uint64_t i = 0; i < n; i++) {
        const double size = fabs((double)x[i]), gap = fabs((double)x[i] - (double)y[i]);
        if (size > most) most = size;
        if (gap > off) off = gap;
    }
    return off / most;
}

/* Weights in f32 are near each other, where the order of sums is another one. */
static void compare_near(const struct run *a, const struct run *b, const char *what)
{
    for (id s = 1; s < a->planned.graph.storages.n; s++) {
        if (a->planned.graph.storages.at[s].kind != KIND_PARAM) continue;
        const char *name = graph_name(&a->planned.graph, a->planned.graph.storages.at[s].name);
        const struct storage *x = &a->planned.graph.storages.at[s],
                             *y = &b->planned.graph.storages.at[storage_named(b, KIND_PARAM, name)];
        const uint64_t first = y->shard ? (uint64_t)b->tape.shard * y->bytes : 0,
                       here = first < x->bytes ? min_u64(y->bytes, x->bytes - first) : 0;
        const double off = distance((const float *)bytes_of(a, s) + first / 4,
                                    bytes_of(b, storage_named(b, KIND_PARAM, name)), here / 4);
        if (!(off < 5e-4)) fail_msg("%s: %s is off by %g", what, name, off);
    }
    if (!(fabsf(loss_of(a) / loss_of(b) - 1) < 1e-5f))
        fail_msg("%s: the loss is %g and %g", what, (double)loss_of(a), (double)loss_of(b));
}

static void check_within(const char *preset, int n, int shares, float clip_norm, bool exact, const char *const *sets)
{
    static struct member one, whole, member[RANKS];
    static struct ranks ranks[RANKS];
    pthread_t thread[RANKS];
    char what[100];
    start(&one, preset, sets, NULL, shares);
    one.clip_norm = clip_norm;
    start(&whole, preset, sets, NULL, 1); /* without shares: another order of the same sums */
    whole.clip_norm = clip_norm;
    rank_threads_open(ranks, n, 120);
    for (int i = 0; i < n; i++) {
        start(&member[i], preset, sets, &ranks[i], shares);
        member[i].clip_norm = clip_norm;
        assert_int_equal(plan_digest(&member[i].p.r.planned.plan, &member[i].p.r.planned.graph),
                         plan_digest(&member[0].p.r.planned.plan, &member[0].p.r.planned.graph));
    }
    for (int step = 0; step < STEPS; step++) {
        write_batch(&one.p.r, step);
        run_step(&one);
        must(one.rc, &one.e);
        write_batch(&whole.p.r, step);
        run_step(&whole);
        must(whole.rc, &whole.e);
        if (!(fabsf(loss_of(&one.p.r) / loss_of(&whole.p.r) - 1) < 2e-3f))
            fail_msg("%s, step %d: the loss of %d shares is %g, without them %g", preset, step, shares,
                     (double)loss_of(&one.p.r), (double)loss_of(&whole.p.r));
        for (int i = 0; i < n; i++) write_batch(&member[i].p.r, step);
        for (int i = 0; i < n; i++) assert_int_equal(pthread_create(&thread[i], NULL, run_step, &member[i]), 0);
        for (int i = 0; i < n; i++) pthread_join(thread[i], NULL);
        for (int i = 0; i < n; i++) {
            must(member[i].rc, &member[i].e);
            snprintf(what, sizeof what, "%s, step %d, rank %d of %d, %d shares", preset, step, i, n, shares);
            (exact ? compare : compare_near)(&one.p.r, &member[i].p.r, what);
        }
    }
    planned_preset_free(&one.p);
    planned_preset_free(&whole.p);
    for (int i = 0; i < n; i++) planned_preset_free(&member[i].p);
    rank_threads_close(ranks);
}

static void check(const char *preset, int n, int shares, float clip_norm, const char *const *sets)
{
    check_within(preset, n, shares, clip_norm, true, sets);
}

TEST(test_llama)
{
    check("llama-tiny", 2, 2, 0.5f, SETS("train.effective_batch=8", "memory.precision=f32"));
    check("llama-tiny", 4, 4, 0, SETS("train.effective_batch=8", "memory.precision=f32", "memory.micro_batch=1"));
    check("llama-tiny", 2, 8, 0.5f, SETS("train.effective_batch=16", "memory.precision=f32", "memory.micro_batch=1"));
    check("llama-tiny", 3, 3, 0.5f, SETS("train.effective_batch=8", "memory.precision=f32", "memory.micro_batch=2"));
    check("llama-tiny", 4, 4, 0.5f, SETS("train.effective_batch=7", "memory.precision=bf16", "memory.recompute=all"));
    check("llama-tiny", 8, 8, 0.5f, SETS("train.effective_batch=5", "memory.precision=bf16", "memory.head_chunks=4"));
    check("llama-tiny", 2, 4, 0.5f,
          SETS("train.effective_batch=8", "memory.precision=bf16-pure", "memory.optimizer=adamw-8bit"));
}

/* Nothing is divided: sums beside the backward with one micro-batch, else at the head of the
 * update. */
TEST(test_whole)
{
    check("llama-tiny", 2, 2, 0.5f, SETS("train.effective_batch=4", "memory.precision=f32", "parallel.shard=none"));
    check("llama-tiny", 3, 3, 0.5f,
          SETS("train.effective_batch=6", "memory.precision=bf16", "memory.recompute=all", "memory.head_chunks=2",
               "parallel.shard=none"));
    check("llama-tiny", 2, 2, 0.5f,
          SETS("train.effective_batch=8", "memory.precision=f32", "memory.micro_batch=2", "parallel.shard=none"));
    check("llama-tiny", 2, 2, 0.5f,
          SETS("train.effective_batch=2", "memory.precision=f16", "adapter.target_modules=all-linear",
               "memory.offload=optimizer+weights", "parallel.shard=none"));
    check("sam-tiny", 2, 2, 0.5f,
          SETS("train.effective_batch=2", "memory.precision=f32", "memory.optimizer=adafactor", "prompts.iterations=2",
               "parallel.shard=none"));
}

/* Optimizer state and master weights in shards: the same bits. */
TEST(test_shard_optimizer)
{
    check("llama-tiny", 2, 2, 0.5f,
          SETS("train.effective_batch=4", "memory.precision=f32", "parallel.shard=optimizer"));
    check("llama-tiny", 3, 3, 0.5f,
          SETS("train.effective_batch=8", "memory.precision=bf16", "memory.micro_batch=2", "parallel.shard=zero-1"));
    check("llama-tiny", 2, 4, 0.5f,
          SETS("train.effective_batch=8", "memory.precision=bf16-pure", "memory.optimizer=adamw-8bit",
               "parallel.shard=optimizer"));
    check("llama-tiny", 8, 8, 0.5f,
          SETS("train.effective_batch=8", "memory.precision=bf16", "memory.optimizer=adamw-8bit",
               "parallel.shard=optimizer"));
    check("llama-tiny", 4, 4, 0,
          SETS("train.effective_batch=4", "memory.precision=f16", "memory.optimizer=sgd", "parallel.shard=optimizer"));
    check("llama-tiny", 2, 2, 0.5f,
          SETS("train.effective_batch=4", "memory.precision=bf16", "memory.optimizer=adamw-bf16",
               "memory.offload=optimizer+masters+weights", "parallel.shard=optimizer"));
    check("llama-tiny", 2, 2, 0.5f,
          SETS("train.effective_batch=4", "memory.precision=f32", "memory.optimizer=adafactor",
               "parallel.shard=optimizer"));
    check("llama-tiny", 2, 2, 0.5f,
          SETS("train.effective_batch=4", "memory.precision=bf16", "adapter.target_modules=all-linear",
               "memory.quantize=nf4", "parallel.shard=optimizer"));
    check("sam-tiny", 3, 3, 0.5f,
          SETS("train.effective_batch=5", "memory.precision=bf16", "model.freeze=vision_encoder.*",
               "parallel.shard=optimizer"));
}

/* Gradients in shards too: the same bits with one micro-batch and one share on a rank, else another
 * order of the same sums. */
TEST(test_shard_gradients)
{
    check("llama-tiny", 2, 2, 0.5f,
          SETS("train.effective_batch=4", "memory.precision=f32", "parallel.shard=gradients"));
    check("llama-tiny", 3, 3, 0.5f,
          SETS("train.effective_batch=7", "memory.precision=bf16", "memory.recompute=all", "parallel.shard=zero-2"));
    check("llama-tiny", 4, 4, 0.5f,
          SETS("train.effective_batch=8", "memory.precision=bf16", "memory.head_chunks=4",
               "memory.optimizer=adamw-8bit", "parallel.shard=SHARD_GRAD_OP"));
    check("llama-tiny", 2, 2, 0.5f,
          SETS("train.effective_batch=4", "memory.precision=bf16-pure", "memory.offload=optimizer+weights",
               "parallel.shard=gradients"));
    check("llama-tiny", 2, 2, 0.5f,
          SETS("train.effective_batch=4", "memory.precision=bf16", "adapter.target_modules=all-linear",
               "memory.quantize=nf4", "parallel.shard=gradients"));
    check("sam-tiny", 3, 3, 0.5f,
          SETS("train.effective_batch=3", "memory.precision=bf16", "model.freeze=vision_encoder.*",
               "memory.head_chunks=2", "parallel.shard=gradients"));
    check_within("llama-tiny", 2, 2, 0.5f, false,
                 SETS("train.effective_batch=8", "memory.precision=f32", "memory.micro_batch=1", "memory.head_chunks=2",
                      "parallel.shard=gradients"));
    check_within("llama-tiny", 2, 8, 0.5f, false,
                 SETS("train.effective_batch=16", "memory.precision=f32", "memory.micro_batch=1",
                      "parallel.shard=gradients"));
    check_within("llama-tiny", 2, 6, 0.5f, false,
                 SETS("train.effective_batch=6", "memory.precision=f32", "memory.micro_batch=1",
                      "parallel.shard=gradients"));
    check_within("sam-tiny", 2, 2, 0.5f, false,
                 SETS("train.effective_batch=5", "memory.precision=f32", "memory.micro_batch=1", "memory.optimizer=sgd",
                      "prompts.iterations=3", "parallel.shard=gradients"));
}

/* Weights in shards: the bits of gradients in shards. */
TEST(test_shard_weights)
{
    check("llama-tiny", 2, 2, 0.5f, SETS("train.effective_batch=4", "memory.precision=f32", "parallel.shard=weights"));
    check("llama-tiny", 3, 3, 0.5f,
          SETS("train.effective_batch=7", "memory.precision=bf16", "memory.recompute=all", "parallel.shard=zero-3"));
    check("llama-tiny", 4, 4, 0.5f,
          SETS("train.effective_batch=8", "memory.precision=bf16", "memory.head_chunks=4",
               "memory.optimizer=adamw-8bit", "parallel.shard=FULL_SHARD"));
    check("llama-tiny", 2, 2, 0.5f,
          SETS("train.effective_batch=4", "memory.precision=bf16-pure", "memory.offload=optimizer+weights",
               "parallel.shard=weights"));
    check("llama-tiny", 2, 2, 0.5f,
          SETS("train.effective_batch=4", "memory.precision=bf16", "memory.recompute=all",
               "memory.offload=optimizer+masters+weights+activations", "parallel.shard=weights"));
    check("llama-tiny", 2, 2, 0.5f,
          SETS("train.effective_batch=4", "memory.precision=bf16", "adapter.target_modules=all-linear",
               "memory.quantize=nf4", "parallel.shard=weights"));
    check("llama-tiny", 8, 8, 0.5f,
          SETS("train.effective_batch=8", "memory.precision=bf16", "memory.optimizer=sgd",
               "model.freeze=[model.embed_tokens.*, model.layers.0.*]", "parallel.shard=weights"));
    check("sam-tiny", 3, 3, 0.5f,
          SETS("train.effective_batch=3", "memory.precision=bf16", "model.freeze=vision_encoder.*",
               "memory.head_chunks=2", "parallel.shard=weights"));
    check("sam-tiny", 2, 2, 0.5f,
          SETS("train.effective_batch=2", "memory.precision=f32", "prompts.iterations=3", "parallel.shard=weights"));
    check_within("llama-tiny", 2, 2, 0.5f, false,
                 SETS("train.effective_batch=8", "memory.precision=f32", "memory.micro_batch=1", "memory.head_chunks=2",
                      "parallel.shard=weights"));
    check_within("llama-tiny", 2, 8, 0.5f, false,
                 SETS("train.effective_batch=16", "memory.precision=f32", "memory.micro_batch=1",
                      "parallel.shard=weights"));
}

/* Hosts of 2 and 4 ranks, each with a copy of what is divided: sums inside a host, then across
 * hosts, have the same bits. */
TEST(test_groups)
{
    check("llama-tiny", 4, 4, 0.5f,
          SETS("train.effective_batch=8", "memory.precision=f32", "parallel.per_host=2", "parallel.group=host",
               "parallel.shard=optimizer"));
    check("llama-tiny", 4, 8, 0.5f,
          SETS("train.effective_batch=16", "memory.precision=bf16", "memory.micro_batch=1", "parallel.per_host=2",
               "parallel.group=host", "parallel.shard=optimizer", "memory.offload=optimizer+masters"));
    check("llama-tiny", 6, 6, 0.5f,
          SETS("train.effective_batch=7", "memory.precision=bf16", "memory.optimizer=adamw-8bit", "parallel.per_host=2",
               "parallel.group=host", "parallel.shard=gradients"));
    check("llama-tiny", 8, 8, 0.5f,
          SETS("train.effective_batch=8", "memory.precision=bf16", "memory.recompute=all", "parallel.per_host=4",
               "parallel.shard=HYBRID_SHARD"));
    check("llama-tiny", 4, 4, 0.5f,
          SETS("train.effective_batch=8", "memory.precision=bf16-pure", "memory.offload=optimizer+weights",
               "parallel.per_host=2", "parallel.shard=HYBRID_SHARD"));
    check("llama-tiny", 4, 4, 0.5f,
          SETS("train.effective_batch=4", "memory.precision=bf16", "adapter.target_modules=all-linear",
               "memory.quantize=nf4", "parallel.per_host=2", "parallel.shard=HYBRID_SHARD"));
    check("sam-tiny", 4, 4, 0.5f,
          SETS("train.effective_batch=4", "memory.precision=f32", "prompts.iterations=2", "parallel.per_host=2",
               "parallel.shard=_HYBRID_SHARD_ZERO2"));
    check_within("llama-tiny", 4, 4, 0.5f, false,
                 SETS("train.effective_batch=16", "memory.precision=f32", "memory.micro_batch=1", "parallel.per_host=2",
                      "parallel.shard=HYBRID_SHARD"));
    check_within("llama-tiny", 4, 8, 0.5f, false,
                 SETS("train.effective_batch=16", "memory.precision=f32", "memory.micro_batch=1", "parallel.per_host=2",
                      "parallel.shard=_HYBRID_SHARD_ZERO2"));
}

/* Hosts of 2 and 4 ranks, all of which hold one copy between them: collectives inside hosts and
 * across them. Three hosts, and shares. A host of 3 is no subtree, and exchanges at once. */
TEST(test_hosts)
{
    check("llama-tiny", 4, 4, 0.5f,
          SETS("train.effective_batch=4", "memory.precision=f32", "parallel.per_host=2", "parallel.shard=none"));
    check("llama-tiny", 4, 8, 0.5f,
          SETS("train.effective_batch=16", "memory.precision=f32", "memory.micro_batch=1", "parallel.per_host=2",
               "parallel.shard=none"));
    check("llama-tiny", 8, 8, 0.5f,
          SETS("train.effective_batch=8", "memory.precision=bf16", "memory.optimizer=adamw-8bit", "parallel.per_host=4",
               "parallel.group=all", "parallel.shard=optimizer"));
    check("llama-tiny", 6, 6, 0.5f,
          SETS("train.effective_batch=7", "memory.precision=bf16-pure", "memory.offload=optimizer+masters+weights",
               "parallel.per_host=2", "parallel.group=all", "parallel.shard=optimizer"));
    check("llama-tiny", 6, 6, 0.5f,
          SETS("train.effective_batch=6", "memory.precision=f32", "parallel.per_host=3", "parallel.group=all",
               "parallel.shard=optimizer"));
    check("llama-tiny", 4, 4, 0.5f,
          SETS("train.effective_batch=8", "memory.precision=bf16", "memory.head_chunks=4",
               "memory.optimizer=adamw-8bit", "parallel.per_host=2", "parallel.group=all", "parallel.shard=gradients"));
    check("llama-tiny", 8, 8, 0.5f,
          SETS("train.effective_batch=8", "memory.precision=bf16", "memory.recompute=all", "parallel.per_host=4",
               "parallel.group=all", "parallel.shard=weights"));
    check("llama-tiny", 4, 4, 0.5f,
          SETS("train.effective_batch=4", "memory.precision=bf16", "adapter.target_modules=all-linear",
               "memory.quantize=nf4", "parallel.per_host=2", "parallel.group=all", "parallel.shard=weights"));
    check("sam-tiny", 4, 4, 0.5f,
          SETS("train.effective_batch=4", "memory.precision=f32", "prompts.iterations=2", "parallel.per_host=2",
               "parallel.group=all", "parallel.shard=weights"));
    check_within("llama-tiny", 4, 8, 0.5f, false,
                 SETS("train.effective_batch=16", "memory.precision=f32", "memory.micro_batch=1", "parallel.per_host=2",
                      "parallel.group=all", "parallel.shard=gradients"));
}

/* Techniques that know nothing of ranks. */
TEST(test_techniques)
{
    check("llama-tiny", 2, 4, 0.5f,
          SETS("train.effective_batch=7", "memory.precision=f32", "adapter.target_modules=all-linear",
               "adapter.lora_dropout=0.2"));
    check("llama-tiny", 2, 2, 0.5f,
          SETS("train.effective_batch=4", "memory.precision=bf16", "memory.offload=optimizer+masters"));
    check("llama-tiny", 2, 2, 0.5f,
          SETS("train.effective_batch=4", "memory.precision=f16", "memory.optimizer=adafactor"));
    check("llama-tiny", 2, 2, 0.5f,
          SETS("train.effective_batch=4", "memory.precision=bf16", "memory.gradients=bf16",
               "model.freeze=model.embed_tokens.*", "memory.micro_batch=1"));
}

TEST(test_sam)
{
    check("sam-tiny", 2, 2, 0.5f, SETS("train.effective_batch=4", "memory.precision=f32", "memory.micro_batch=1"));
    check("sam-tiny", 3, 3, 0, SETS("train.effective_batch=5", "memory.precision=bf16"));
    check("sam-tiny", 2, 2, 0.5f, SETS("train.effective_batch=5", "memory.precision=f32", "prompts.iterations=3"));
}

/* The ranks of a host have room where all of them have it, by what was free before the first took
 * any. */
TEST(test_room)
{
    struct error e = {0};
    struct system_memory now;
    system_memory(&now);
    const uint64_t arena[SPACE_COUNT] = {[SPACE_DEVICE] = (now.available + now.swap) / 10 * 7};
    const struct ranks two = {.n = 2, .local = 2, .share = {now.available / 2, now.total / 2, 0}},
                       apart = {.n = 2, .local = 1, .share = {now.available, now.total, 0}};
    assert_int_equal(machine_room(DEVICE_CPU, arena, false, NULL, &e), PL_OK);
    assert_int_equal(machine_room(DEVICE_CPU, arena, false, &apart, &e), PL_OK);
    assert_int_equal(machine_room(DEVICE_CPU, arena, false, &two, &e), PL_FAIL);
    assert_non_null(strstr(e.text, "of memory on each of 2 ranks; this machine has"));
}

/* Where a rank does not find its free disk space, all refuse `memory.host_budget: auto`. */
TEST(test_disk)
{
    static struct ranks ranks[1];
    static char nowhere[2 * 4096];
    struct config c;
    struct error e = {0};
    uint64_t bytes;
    const char *rule;
    config_init(&c);
    rank_threads_open(ranks, 1, 1);
    agree_open(&ranks[0]);
    assert_int_equal(agree_free(&ranks[0], "/tmp", &e), PL_OK);
    assert_int_equal(offload_budget(&c, DEVICE_CPU, false, &ranks[0], 1, &bytes, &rule, &e), PL_OK);
    assert_true(bytes > 0);
    memset(nowhere, 'x', sizeof nowhere - 1);
    assert_int_equal(agree_free(&ranks[0], nowhere, &e), PL_OK);
    assert_int_equal(offload_budget(&c, DEVICE_CPU, false, &ranks[0], 1, &bytes, &rule, &e), PL_FAIL);
    assert_non_null(strstr(e.text, "memory.host_budget auto: cannot find the free disk space"));
    mem_free(ranks[0].room);
    rank_threads_close(ranks);
    config_free(&c);
}

/* Threads of a rank: of the processors that it may use, its part of the host's. Several ranks may
 * be bound to one socket. */
TEST(test_thread_share)
{
    static const int cases[][4] = {{64, 64, 8, 8}, {32, 64, 8, 8}, {1, 64, 2, 1}, {4, 64, 8, 4},
                                   {2, 2, 4, 1},   {6, 6, 4, 1},   {8, 8, 1, 8}};
    for (size_t i = 0; i < COUNT(cases); i++)
        assert_int_equal(dist_share_threads(cases[i][0], cases[i][1], cases[i][2]), cases[i][3]);
}

/* --- failures --------------------------------------------------------------------------------- */

static char said[256];
static void note_abort(struct ranks *r, int code, const char *why)
{
    (void)r;
    snprintf(said, sizeof said, "%d: %s", code, why);
}

static int no_gather(struct ranks *r, const void *mine, void *all, size_t each, struct error *e)
{
    (void)r, (void)mine, (void)all, (void)each;
    return error_set(e, PL_FAIL, "waited");
}

static int no_exchange(struct ranks *r, const struct move *moves, int n, struct error *e)
{
    (void)r, (void)moves, (void)n;
    return error_set(e, PL_FAIL, "the network is down");
}

static int no_run(struct device *d, struct tape *t, enum program p, struct error *e)
{
    (void)d, (void)t, (void)p;
    return error_set(e, PL_FAIL, "the GPU is gone");
}

/* A rank that others cannot hear, or that fails inside a program where they wait for it, ends all
 * of them with its own cause. */
TEST(test_alone)
{
    static struct member m;
    static struct ranks ranks[2];
    struct error e = {.code = PL_USAGE, .text = "the disk is full"};
    rank_threads_open(ranks, 2, 1);
    start(&m, "llama-tiny", SETS("train.effective_batch=2", "memory.precision=f32", "parallel.shard=optimizer"),
          &ranks[0], 2);
    struct device_ops ops = *m.p.r.device.ops;
    const struct device_ops *own = m.p.r.device.ops;
    ranks[0].abort = note_abort;
    ops.run = no_run;
    m.p.r.device.ops = &ops;
    said[0] = '\0';
    assert_int_equal(run_program(&m.p.r, PROGRAM_EVAL, &m.e), PL_FAIL);
    assert_string_equal(said, ""); /* no collective is in it: the next agreement tells the others */
    assert_int_equal(run_program(&m.p.r, PROGRAM_STEP, &m.e), PL_FAIL);
    assert_string_equal(said, "1: the GPU is gone");
    m.p.r.device.ops = own;
    ranks[0].gather = no_gather;
    agree_open(&ranks[0]);
    agree_on(&ranks[0], PL_USAGE, &e);
    assert_string_equal(said, "2: the disk is full");
    agree_on(&ranks[0], PL_OK, &e);
    assert_string_equal(said, "1: waited");
    ranks[0].exchange = no_exchange;
    agree_broadcast(&ranks[0], &e, sizeof e);
    assert_string_equal(said, "1: the network is down");
    mem_free(ranks[0].room);
    planned_preset_free(&m.p);
    rank_threads_close(ranks);
}

struct leaving {
    struct ranks *ranks;
    struct error e;
    int rc;
};
static void *leave(void *of)
{
    struct leaving *x = of;
    agree_open(x->ranks);
    x->rc = agree_to_end(x->ranks, x->rc, &x->e);
    mem_free(x->ranks->room);
    return NULL;
}

/* A rank that fails after the last agreement tells the others; what all ranks found names none of
 * them. */
TEST(test_leaving)
{
    for (int lost = 0; lost <= 2; lost++) {
        struct leaving x[2] = {0};
        struct ranks ranks[2];
        pthread_t thread[2];
        rank_threads_open(ranks, 2, 1);
        for (int i = 0; i < 2; i++) {
            x[i] = (struct leaving){.ranks = &ranks[i], .rc = i < lost ? PL_USAGE : PL_OK};
            if (x[i].rc) error_set(&x[i].e, PL_USAGE, "the disk is full");
            ranks[i].rank = i;
            assert_int_equal(pthread_create(&thread[i], NULL, leave, &x[i]), 0);
        }
        for (int i = 0; i < 2; i++) assert_int_equal(pthread_join(thread[i], NULL), 0);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(x[i].rc, lost ? PL_USAGE : PL_OK);
            assert_int_equal(ranks[i].ended, lost > 0);
            assert_true(!lost || strstr(x[i].e.text, "the disk is full"));
            assert_int_equal(strncmp(x[i].e.text, "rank 0 on ", 10) == 0, lost == 1);
        }
        rank_threads_close(ranks);
    }
}

/* Running statistics of batch normalisation move by the groups of all ranks, in the order of
 * samples. */
TEST(test_statistics)
{
    check("tinysam-tiny", 2, 2, 0.5f, SETS("train.effective_batch=4", "memory.precision=f32", "model.bn_group=2"));
    check("tinysam-tiny", 2, 4, 0,
          SETS("train.effective_batch=8", "memory.precision=f32", "memory.micro_batch=1", "parallel.shard=optimizer"));
    check("tinysam-tiny", 4, 4, 0.5f,
          SETS("train.effective_batch=4", "memory.precision=bf16", "parallel.per_host=2", "parallel.group=all",
               "parallel.shard=weights"));
    check("tinysam-tiny", 2, 2, 0.5f,
          SETS("train.effective_batch=4", "memory.precision=f32", "memory.offload=optimizer+weights",
               "memory.recompute=all", "model.bn_group=2"));
}

MAIN(NULL, NULL)

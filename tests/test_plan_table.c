/*
 * test_plan_table.c: no plan is slower than its stored row, or as fast in more memory.
 *
 *     build/tests/test_plan_table            compares with tests/golden/plan_table.txt
 *     PLAN_TABLE=all build/tests/test_plan_table      compares all subjects, also those that are `slow`
 *     PLAN_TABLE=write build/tests/test_plan_table    accepts the current plans of all subjects
 *     PLAN_TABLE=llama build/tests/test_plan_table    compares the subjects whose names begin so
 *
 * A subject is a run: a model, a batch and a device with its host memory. Its rows are the plan
 * without a budget, the smallest plan, and the plans within some budgets. A row may change only for
 * the better: fewer seconds, or as many and less host memory, or as much host memory and a smaller
 * arena. The smallest plan has no more bytes. Rows that became better are counted; storing them
 * keeps them. The subjects that are not slow take about 20 seconds of one core, all of them a
 * minute.
 */
#include "batch/feed.h"
#include "config/config.h"
#include "planning/planned.h"

#include "harness.h"

#define TABLE "tests/golden/plan_table.txt"
/* The table has nine digits of seconds. */
#define SAME 1e-8
enum { SETS = 16, BUDGETS = 16 };

struct subject {
    const char *name, *model, *device;
    const char *sets[SETS];
    double budget[BUDGETS]; /* GiB */
    bool slow;
};

#define CPU(profile) "device.profile=tests/golden/profiles/" profile ".json"
#define GPU(profile) "device.profile=" profile
#define LORA "adapter.r=16", "adapter.target_modules=all-linear"
#define TOKENS(sequence, batch) "data.sequence=" #sequence, "train.effective_batch=" #batch
#define IMAGES(masks, batch) \
    "data.format=sa1b", "data.threads=4", "data.max_masks=" #masks, "train.effective_batch=" #batch

static const struct subject subjects[] = {
    {"llama-1b-4090", "llama-1b", GPU("rtx-4090"), {TOKENS(512, 8), "memory.host_budget=64GiB"},
     {5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 20, 22}, true},
    {"llama-1b-4090-clip", "llama-1b", GPU("rtx-4090"),
     {TOKENS(512, 8), "memory.host_budget=64GiB", "train.clip_norm=1"},
     {5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 20, 22}, true},
    {"llama-1b-4090-host-16", "llama-1b", GPU("rtx-4090"),
     {TOKENS(512, 8), "memory.host_budget=16GiB", "train.clip_norm=1"},
     {6, 8, 10, 12, 16}, true},
    {"llama-1b-h200", "llama-1b", GPU("h200"), {TOKENS(2048, 8), "memory.host_budget=64GiB"},
     {3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 32, 48, 64}},
    {"llama-1b-h200-64", "llama-1b", GPU("h200"), {TOKENS(2048, 64), "memory.host_budget=64GiB", "train.clip_norm=1"},
     {4, 6, 8, 12, 16, 24, 32, 64, 128}},
    {"llama-124m-3060", "llama-124m", GPU("rtx-3060"),
     {TOKENS(1024, 16), "memory.host_budget=32GiB", "train.clip_norm=1"},
     {1, 1.5, 2, 3, 4, 6, 8, 10}},
    {"llama-124m-t4-8bit", "llama-124m", GPU("t4"),
     {TOKENS(1024, 16), "memory.host_budget=32GiB", "memory.allow=[adamw-8bit]"}, {1, 1.5, 2, 3, 4, 6, 8, 12}},
    {"mistral-7b-qlora-4090", "mistralai/Mistral-7B-v0.3", GPU("rtx-4090"),
     {TOKENS(2048, 8), LORA, "memory.quantize=nf4", "memory.host_budget=64GiB", "train.clip_norm=1"},
     {3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 20, 22}, true},
    {"mistral-7b-qlora-4060", "mistralai/Mistral-7B-v0.3", GPU("rtx-4060"),
     {TOKENS(512, 4), LORA, "memory.quantize=nf4", "memory.host_budget=32GiB"}, {2, 3, 4, 5, 6, 7}, true},
    {"mistral-7b-lora-3090", "mistralai/Mistral-7B-v0.3", GPU("rtx-3090"),
     {TOKENS(1024, 8), LORA, "memory.host_budget=64GiB"}, {4, 6, 8, 10, 12, 16, 20, 23}},
    {"mistral-7b-full-h200", "mistralai/Mistral-7B-v0.3", GPU("h200"),
     {TOKENS(2048, 8), "memory.host_budget=128GiB"}, {10, 15, 20, 30, 40, 50, 75, 100, 130}},
    {"qwen3-8b-full-h200", "Qwen/Qwen3-8B", GPU("h200"),
     {TOKENS(2048, 16), "memory.host_budget=128GiB"}, {16, 24, 48, 100, 130}, true},
    {"qwen3-8b-host-update-4090", "Qwen/Qwen3-8B", GPU("rtx-4090"),
     {TOKENS(1024, 8), "memory.host_budget=128GiB", "memory.offload=[optimizer, masters, weights, update]",
      "memory.fused_step=on"}, {12, 16, 22}},
    {"qwen3-8b-qlora-h200", "Qwen/Qwen3-8B", GPU("h200"),
     {TOKENS(4096, 16), LORA, "memory.quantize=nf4", "memory.host_budget=128GiB", "train.clip_norm=1"},
     {6, 8, 12, 16, 24, 40, 80, 120}, true},
    {"llama-8b-long-h200", "meta-llama/Llama-3.1-8B", GPU("h200"),
     {TOKENS(32768, 1), LORA, "memory.quantize=nf4", "memory.host_budget=128GiB"}, {8, 10, 12, 16, 24, 40, 80}},
    {"qwen3-4b-full-a100", "Qwen/Qwen3-4B", GPU("a100-40"),
     {TOKENS(1024, 8), "memory.host_budget=128GiB", "train.clip_norm=1"}, {8, 12, 16, 24, 32, 36}, true},
    {"sam-vit-h-h200", "sam-vit-h", GPU("h200"), {IMAGES(32, 16), "memory.host_budget=64GiB"},
     {6, 8, 12, 16, 20, 24, 32, 48, 64, 96}, true},
    {"sam-vit-b-4090", "sam-vit-b", GPU("rtx-4090"), {IMAGES(32, 16), "memory.host_budget=32GiB"},
     {2, 3, 4, 5, 6, 8, 12, 16, 22}},
    {"sam-vit-l-3090", "sam-vit-l", GPU("rtx-3090"), {IMAGES(16, 8), "memory.host_budget=32GiB", "train.clip_norm=1"},
     {5, 6, 8, 10, 12, 16, 22}},
    {"tinysam-3060", "tinysam", GPU("rtx-3060"),
     {IMAGES(16, 16), "memory.host_budget=16GiB"}, {1, 1.5, 2, 3, 4, 6, 8, 10}},
    {"llava-7b-qlora-4090", "llava-hf/llava-1.5-7b-hf", GPU("rtx-4090"),
     {TOKENS(2048, 8), "data.max_images=2", LORA, "memory.quantize=nf4", "memory.host_budget=64GiB",
      "train.clip_norm=1"},
     {5, 6, 8, 10, 12, 16, 20}, true},
    {"qwen2.5-vl-7b-qlora-4090", "Qwen/Qwen2.5-VL-7B-Instruct", GPU("rtx-4090"),
     {TOKENS(2048, 8), "data.max_patches=4096", LORA, "memory.quantize=nf4", "memory.host_budget=64GiB"},
     {6, 8, 10, 12, 16, 20}},
    {"llama-1b-8-ranks", "llama-1b", GPU("h100"),
     {TOKENS(2048, 64), "memory.host_budget=64GiB", "parallel.ranks=8", "parallel.per_host=8"}, {4, 6, 8, 12, 24, 48}},
    {"mistral-7b-16-ranks", "mistralai/Mistral-7B-v0.3", GPU("h100"),
     {TOKENS(2048, 32), "memory.host_budget=128GiB", "parallel.ranks=16", "parallel.per_host=8"}, {10, 16, 24, 40, 70}},
    {"175b-512-ranks", NULL, GPU("a100-80"),
     {TOKENS(2048, 1536), "memory.host_budget=128GiB", "parallel.ranks=512", "parallel.per_host=8", "train.clip_norm=1",
      "parallel.links=nvlink3,ib-ndr"},
     {40, 60, 75}, true},
    {"llama-tiny-arm64", "llama-tiny", CPU("arm64-2"), {TOKENS(128, 8), "memory.host_budget=64GiB"},
     {0.008, 0.01, 0.012, 0.014, 0.016, 0.02, 0.03}},
    {"llama-tiny-x86-64", "llama-tiny", CPU("x86-64-16"), {TOKENS(128, 8), "memory.host_budget=64GiB"},
     {0.008, 0.01, 0.012, 0.014, 0.016, 0.02, 0.03}},
    {"llama-124m-x86-64", "llama-124m", CPU("x86-64-16"),
     {TOKENS(256, 8), "memory.host_budget=16GiB"}, {0.5, 1, 1.5, 2, 3, 4}},
    {"sam-tiny-x86-64", "sam-tiny", CPU("x86-64-16"), {IMAGES(8, 8), "memory.host_budget=64GiB"},
     {0.035, 0.04, 0.045, 0.05, 0.06, 0.08, 0.1, 0.2}},
    {"sam-vit-b-arm64", "sam-vit-b", CPU("arm64-2"),
     {IMAGES(4, 8), "memory.host_budget=64GiB"}, {1, 1.5, 2, 3, 4, 6, 8, 12}},
    {"tinysam-x86-64", "tinysam", CPU("x86-64-16"),
     {IMAGES(4, 8), "memory.host_budget=64GiB"}, {0.5, 0.75, 1, 1.5, 2, 3, 4, 6}},
};

/* A model of 175 billion parameters, where a subject names none. */
static const char MODEL_175B[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 51200, \"hidden_size\": 12288, \"intermediate_size\": 32768, "
    "\"num_hidden_layers\": 96, \"num_attention_heads\": 96, \"num_key_value_heads\": 96, "
    "\"max_position_embeddings\": 2048, \"rms_norm_eps\": 1e-5, \"tie_word_embeddings\": false}";

static bool starts_with(const char *text, const char *with) { return !strncmp(text, with, strlen(with)); }

/* Reports whether a subject is compared when PLAN_TABLE is `what`; NULL: it is not set. */
static bool is_compared(const struct subject *x, const char *what)
{
    if (!what) return !x->slow;
    return !strcmp(what, "all") || !strcmp(what, "write") || starts_with(x->name, what);
}

/* Reports the same for the subject of a stored row; true: it has none, and the row is left over. */
static bool is_row_compared(const char *name, const char *what)
{
    for (size_t i = 0; i < COUNT(subjects); i++)
        if (starts_with(name, subjects[i].name) && name[strlen(subjects[i].name)] == '/')
            return is_compared(&subjects[i], what);
    return true;
}

/* --- rows ---------------------------------------------------------------------------------- */

struct row {
    char name[64];
    unsigned long long arena, host;
    double seconds;
    char how[160]; /* the techniques that save memory: for the reader */
};

VEC(struct row) now, stored;

static void print_row(const struct row *r, FILE *to)
{
    fprintf(to, "%s arena %llu host %llu seconds %.9g %s\n", r->name, r->arena, r->host, r->seconds, r->how);
}

static void add_row(const struct subject *x, const char *budget, const struct planned *p)
{
    struct row r = {.arena = plan_arena(&p->plan), .host = p->plan.placement.arena[SPACE_HOST],
                    .seconds = p->plan.seconds};
    const struct settings *s = &p->plan.settings;
    struct text how = {0};
    snprintf(r.name, sizeof r.name, "%s/%s", x->name, budget);
    text_printf(&how, "micro_batch %d", s->micro_batch);
    for (enum technique_id id = 0; id < TECHNIQUES; id++) {
        char value[SETTING_ROOM];
        if (!techniques[id].off || techniques[id].changes_results || technique_is_off(id, s)) continue;
        text_printf(&how, " %s %s", techniques[id].name, technique_print(id, s, value));
    }
    snprintf(r.how, sizeof r.how, "%s", how.at);
    text_free(&how);
    vec_push(&now, r);
}

static void plan_subject(const struct subject *x)
{
    struct config c;
    struct error e = {0};
    struct planned p;
    char model[96], budget[32];
    snprintf(model, sizeof model, "model.preset=%s", x->model ? x->model : "");
    config_init(&c);
    must(config_set(&c, strstr(x->device, ".json") ? "device.kind=cpu" : "device.kind=cuda", &e), &e);
    must(config_set(&c, x->device, &e), &e);
    if (x->model) must(config_set(&c, model, &e), &e);
    for (int i = 0; i < SETS && x->sets[i]; i++) must(config_set(&c, x->sets[i], &e), &e);
    must(config_check(&c, x->model ? CONFIG_NEEDS_MODEL : 0, &e), &e);
    must(planned_open(&p, &c,
                      &(struct run_options){.train = true, .describe = feed_describe, .probe = true, .several = true,
                                            .config_json = x->model ? NULL : MODEL_175B},
                      &e),
         &e);
    add_row(x, "none", &p);
    /* what fits without offload offloads nothing where that is as fast */
    if (!c.parallel_ranks && strstr(x->device, "json") == NULL && p.space.f.free[TECHNIQUE_offload])
        assert_int_equal(p.plan.settings.offload, 0);
    assert_int_equal(planned_within(&p, 1, &e), PL_NOFIT);
    add_row(x, "smallest", &p);
    for (int i = 0; i < BUDGETS && x->budget[i] > 0; i++) {
        const int rc = planned_within(&p, (uint64_t)(x->budget[i] * (1 << 30)), &e);
        if (rc == PL_NOFIT) continue;
        must(rc, &e);
        snprintf(budget, sizeof budget, "%gGiB", x->budget[i]);
        add_row(x, budget, &p);
    }
    planned_close(&p);
    config_free(&c);
}

static void read_table(void)
{
    FILE *f = fopen(TABLE, "r");
    char line[320];
    if (!f) fail_msg("%s cannot be read", TABLE);
    while (fgets(line, sizeof line, f)) {
        struct row r = {0};
        if (*line == '#') continue;
        if (sscanf(line, "%63s arena %llu host %llu seconds %lf %159[^\n]", r.name, &r.arena, &r.host, &r.seconds,
                   r.how) < 4)
            fail_msg("%s: %s", TABLE, line);
        vec_push(&stored, r);
    }
    fclose(f);
}

/* --- the comparison ------------------------------------------------------------------------ */

static const struct row *find_row(const char *name)
{
    for (uint32_t i = 0; i < stored.n; i++)
        if (!strcmp(stored.at[i].name, name)) return &stored.at[i];
    return NULL;
}

/* Reports whether `a` takes the place of `b` on a CPU, with a smaller offload file (search.c). */
static bool passes_over(const struct row *a, const struct row *b)
{
    const bool cpu = strstr(a->name, "-arm64/") || strstr(a->name, "-x86-64/");
    return cpu && a->seconds <= b->seconds * 1.01 && a->arena <= b->arena && a->host < b->host;
}

/* Returns more than 0 if `a` is worse than `b`, less than 0 if it is better. */
static int compare(const struct row *a, const struct row *b)
{
    if (strstr(a->name, "/smallest")) return a->arena > b->arena ? 1 : a->arena < b->arena ? -1 : 0;
    if (a->seconds > b->seconds * (1 + SAME)) return !passes_over(a, b);
    if (a->seconds < b->seconds * (1 - SAME)) return -1;
    if (a->host != b->host) return a->host > b->host ? 1 : -1;
    return a->arena > b->arena ? 1 : a->arena < b->arena ? -1 : 0;
}

static void write_table(void)
{
    FILE *f = fopen(TABLE, "w");
    assert_non_null(f);
    fprintf(f, "# Plans of test_plan_table.c: subject/budget, bytes of both arenas, predicted seconds of a step.\n");
    for (uint32_t i = 0; i < now.n; i++) print_row(&now.at[i], f);
    assert_int_equal(fclose(f), 0);
}

TEST(test_no_plan_is_worse)
{
    const char *what = getenv("PLAN_TABLE");
    uint32_t worse = 0, better = 0;
    for (size_t i = 0; i < COUNT(subjects); i++) {
        if (!is_compared(&subjects[i], what)) continue;
        const uint32_t from = now.n;
        const double start = clock_seconds();
        plan_subject(&subjects[i]);
        if (what) printf("%s: %u plans in %.2f s\n", subjects[i].name, now.n - from, clock_seconds() - start);
    }
    if (what && !strcmp(what, "write")) {
        write_table();
        return;
    }
    read_table();
    for (uint32_t i = 0; i < now.n; i++) {
        const struct row *was = find_row(now.at[i].name);
        const int order = was ? compare(&now.at[i], was) : -1; /* what did not fit before is better */
        if (!order) continue;
        if (order > 0) worse++;
        else better++;
        if (order < 0 && !what) continue;
        printf("%s:\n", order > 0 ? "WORSE" : "better");
        if (was) print_row(was, stdout);
        print_row(&now.at[i], stdout);
    }
    for (uint32_t i = 0; i < stored.n; i++) {
        bool found = false;
        for (uint32_t k = 0; k < now.n; k++) found |= !strcmp(stored.at[i].name, now.at[k].name);
        if (found || !is_row_compared(stored.at[i].name, what)) continue;
        printf("WORSE: %s does not fit any more\n", stored.at[i].name);
        worse++;
    }
    printf("%u plans, %u better than stored\n", now.n, better);
    vec_free(&now);
    vec_free(&stored);
    if (worse) fail_msg("%u plans are worse than stored; if that is intended: PLAN_TABLE=write", worse);
}

/* --- by hand ------------------------------------------------------------------------------- */

/* Returns the seconds of the plan of the second subject within 9 GiB, with one more setting;
 * INFINITY: nothing fits. */
static double seconds_with(const char *set, struct settings *settings)
{
    struct config c;
    struct error e = {0};
    struct planned p;
    const char *sets[] = {"device.kind=cuda", GPU("rtx-4090"), "model.preset=llama-1b", TOKENS(512, 8),
                          "memory.host_budget=64GiB", "train.clip_norm=1", "memory.budget=9GiB", set};
    config_init(&c);
    for (size_t i = 0; i < COUNT(sets); i++)
        if (sets[i]) must(config_set(&c, sets[i], &e), &e);
    must(config_check(&c, CONFIG_NEEDS_MODEL, &e), &e);
    const int rc =
        planned_open(&p, &c, &(struct run_options){.train = true, .describe = feed_describe, .probe = true}, &e);
    if (rc && rc != PL_NOFIT) must(rc, &e);
    const double seconds = rc ? INFINITY : p.plan.seconds;
    *settings = p.plan.settings;
    planned_close(&p);
    config_free(&c);
    return seconds;
}

/* No set of offloads that is asked for is faster than the one that the search finds. */
TEST(test_not_beaten_by_hand)
{
    static const char *const by_hand[] = {"memory.offload=[optimizer, weights]", "memory.offload=[optimizer, masters]",
                                          "memory.offload=[masters, weights]",
                                          "memory.offload=[optimizer, 'weights:8']",
                                          "memory.offload=[optimizer, activations]"};
    struct settings s;
    if (getenv("PLAN_TABLE")) return;
    const double found = seconds_with(NULL, &s);
    for (size_t i = 0; i < COUNT(by_hand); i++) {
        const double other = seconds_with(by_hand[i], &s);
        if (found > other * (1 + SAME)) fail_msg("%s: %.9g s, the plan takes %.9g", by_hand[i], other, found);
    }
}

MAIN(NULL, NULL)

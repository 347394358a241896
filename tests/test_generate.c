/*
 * test_generate.c: a text in pieces has the logits of the text at once, a new text those of a new
 * model, a token allocates nothing, what does not fit is refused and loses nothing; several texts
 * at once, and how many are planned.
 */
#include "infer/generate.h"

#include "harness.h"

enum { CACHE = 40, LENGTH = 33 };

static struct config config;
static int32_t ids[CACHE + 1];

static void start_texts(struct generator *a, int64_t chunk, int64_t texts)
{
    struct error e;
    must(generator_plan(
             a, &config,
             &(struct run_generation){.cache = CACHE, .prompt = LENGTH, .answer = 4, .chunk = chunk, .batch = texts},
             NULL, NULL, &e),
         &e);
    must(generator_start(a, &e), &e);
    assert_int_equal(a->texts, texts ? texts : 1);
}
static void start(struct generator *a, int64_t chunk) { start_texts(a, chunk, 0); }

/* Appends to text 0. */
static int put(struct generator *a, const int32_t *list, int64_t n, struct error *e)
{
    return generator_put(a, &(struct text_tokens){0, list, n}, 1, e);
}

static void assert_near(const float *x, const float *y, int64_t n, const char *what)
{
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) difference += pow((double)x[i] - (double)y[i], 2), norm += pow((double)y[i], 2);
    if (!(sqrt(difference) <= 1e-5 * sqrt(norm)))
        fail_msg("%s: logits differ by %g of their norm", what, sqrt(difference / norm));
}

static int set_up(void **state)
{
    struct error e;
    config_init(&config);
    must(config_set(&config, "model.preset=llama-tiny", &e), &e);
    must(config_set(&config, "memory.precision=f32", &e), &e);
    must(config_set(&config, "device.kind=cpu", &e), &e);
    for (int i = 0; i <= CACHE; i++) ids[i] = (i * 37 + 11) % 256;
    return 0;
}

static int tear_down(void **state)
{
    config_free(&config);
    return 0;
}

TEST(test_pieces)
{
    static const int64_t pieces[][4] = {{1, 1, 31}, {5, 16, 12}, {32, 1}, {7, 7, 7, 12}};
    struct generator whole, a;
    struct error e;
    start(&whole, 64);
    start(&a, 8);
    const int64_t V = whole.run->planned.model.vocabulary;
    must(put(&whole, ids, LENGTH, &e), &e);
    /* each after the text before it: what that left in the cache is not seen */
    for (size_t i = 0; i < COUNT(pieces); i++) {
        generator_begin(&a, 0);
        int64_t at = 0;
        for (int k = 0; k < 4 && pieces[i][k]; at += pieces[i][k++]) must(put(&a, ids + at, pieces[i][k], &e), &e);
        assert_int_equal(at, LENGTH);
        assert_int_equal(a.length[0], LENGTH);
        assert_near(generator_logits(&a, 0), generator_logits(&whole, 0), V, "pieces");
    }
    const uint64_t before = mem_allocations();
    for (int k = LENGTH; k < CACHE; k++) must(put(&a, ids + k, 1, &e), &e);
    assert_int_equal(mem_allocations(), before);
    must(put(&whole, ids + LENGTH, CACHE - LENGTH, &e), &e);
    assert_near(generator_logits(&a, 0), generator_logits(&whole, 0), V, "tokens one by one");
    assert_int_equal(generator_cache_bytes(&a), generator_cache_bytes(&whole));
    generator_close(&a);
    generator_close(&whole);
}

TEST(test_refused)
{
    struct generator a;
    struct error e;
    start(&a, 0);
    assert_int_equal(put(&a, ids, CACHE + 1, &e), PL_USAGE);
    assert_non_null(strstr(e.text, "does not fit into the KV cache"));
    must(put(&a, ids, 10, &e), &e);
    float *logits = mem_copy(generator_logits(&a, 0), (size_t)a.run->planned.model.vocabulary * sizeof *logits);
    assert_int_equal(put(&a, (int32_t[]){3, 256}, 2, &e), PL_USAGE);
    assert_non_null(strstr(e.text, "token 11 has the id 256"));
    assert_int_equal(a.length[0], 10);
    generator_begin(&a, 0);
    must(put(&a, ids, 10, &e), &e);
    assert_memory_equal(logits, generator_logits(&a, 0), (size_t)a.run->planned.model.vocabulary * sizeof *logits);
    mem_free(logits);
    generator_close(&a);
}

/* --- several texts at once -------------------------------------------------------------------- */

enum { TEXTS = 7, VOCABULARY = 256 };

/* Text i: tokens from 3 i on, of another length than the others. */
static int64_t length_of(int i) { return 1 + i * 11 % 17; }
static struct text_tokens text_of(int i, int64_t place)
{
    return (struct text_tokens){place, ids + 3 * i, length_of(i)};
}

/* A text's logits are those of the only text; and at the same number of texts at once they have
 * the same bits, whatever the others are, where the text is, and when it begins. */
TEST(test_texts)
{
    static float alone[TEXTS][VOCABULARY], together[TEXTS][VOCABULARY];
    struct generator one, a;
    struct text_tokens x[TEXTS];
    struct error e;
    start(&one, 16);
    start_texts(&a, 16, TEXTS);
    assert_int_equal(generator_cache_bytes(&a), TEXTS * generator_cache_bytes(&one));
    assert_int_equal(a.run->planned.plan.placement.arena[SPACE_DEVICE], a.run->device.bytes[SPACE_DEVICE]);
    for (int i = 0; i < TEXTS; i++) {
        generator_begin(&one, 0);
        must(generator_put(&one, &(struct text_tokens){0, ids + 3 * i, length_of(i)}, 1, &e), &e);
        must(put(&one, ids + i, 1, &e), &e);
        memcpy(alone[i], generator_logits(&one, 0), sizeof alone[i]);
    }
    for (int i = 0; i < TEXTS; i++) x[i] = text_of(i, i);
    must(generator_put(&a, x, TEXTS, &e), &e);
    for (int i = 0; i < TEXTS; i++) x[i] = (struct text_tokens){i, ids + i, 1};
    must(generator_put(&a, x, TEXTS, &e), &e);
    for (int i = 0; i < TEXTS; i++) {
        memcpy(together[i], generator_logits(&a, i), sizeof together[i]);
        assert_near(together[i], alone[i], VOCABULARY, "texts at once");
    }
    for (int i = 0; i < TEXTS; i++) { /* text i at another place, beside one other that begins later */
        const int64_t place = (i + 3) % TEXTS, other = (place + 1 + i % 5) % TEXTS;
        generator_begin(&a, place);
        x[0] = text_of(i, place);
        must(generator_put(&a, x, 1, &e), &e);
        generator_begin(&a, other);
        x[0] = text_of((i + 1) % TEXTS, other);
        must(generator_put(&a, x, 1, &e), &e);
        x[0] = (struct text_tokens){place, ids + i, 1};
        x[1] = (struct text_tokens){other, ids, 1};
        must(generator_put(&a, x, 2, &e), &e);
        assert_memory_equal(together[i], generator_logits(&a, place), sizeof together[i]);
    }
    generator_close(&a);
    generator_close(&one);
}

/* --- queues ----------------------------------------------------------------------------------- */

enum { PROMPTS = 23 };

/* Prompts of different lengths; number `bad` has an id beyond the vocabulary. Answers come in
 * order. */
struct asked {
    uint64_t given, taken;
    int64_t bad;
    int refused;
    struct answers {
        VEC(int32_t) ids;
        char *text;
    } answer[PROMPTS];
};

static int next_prompt(void *to, struct prompt *out, bool *more, struct error *e)
{
    static const int32_t wrong[] = {3, VOCABULARY};
    struct asked *q = to;
    (void)e;
    if (!(*more = q->given < PROMPTS)) return PL_OK;
    const int i = (int)q->given++;
    *out =
        i == q->bad ? (struct prompt){.ids = wrong, .n = 2} : (struct prompt){.ids = ids + i % 19, .n = 1 + i * 5 % 20};
    return PL_OK;
}

static int take_answer(void *to, uint64_t i, const struct answer *a, struct error *e)
{
    struct asked *q = to;
    if (!a) {
        assert_true(e->code == PL_USAGE && (int64_t)i == q->bad && strstr(e->text, "token 1 has the id 256"));
        q->refused++;
        return PL_OK;
    }
    assert_true(i >= q->taken);
    q->taken = i + 1;
    for (uint32_t k = 0; k < a->ids.n; k++) vec_push(&q->answer[i].ids, a->ids.at[k]);
    if (a->text.at) q->answer[i].text = mem_string(a->text.at);
    return PL_OK;
}

static void asked_free(struct asked *q)
{
    for (int i = 0; i < PROMPTS; i++) vec_free(&q->answer[i].ids), mem_free(q->answer[i].text);
}

static void assert_same(const struct asked *x, const struct asked *y)
{
    for (int i = 0; i < PROMPTS; i++) {
        assert_int_equal(x->answer[i].ids.n, y->answer[i].ids.n);
        if (x->answer[i].ids.n)
            assert_memory_equal(x->answer[i].ids.at, y->answer[i].ids.at, x->answer[i].ids.n * sizeof(int32_t));
        if (x->answer[i].text || y->answer[i].text) assert_string_equal(x->answer[i].text, y->answer[i].text);
    }
}

/* Answers of several prompts at once are those of one prompt at a time, greedy or drawn, and come
 * in order; tokens that end an answer make them of different lengths. A prompt that cannot be used
 * is left out. */
TEST(test_queue)
{
    static const int64_t batches[] = {1, 2, 5, 16};
    static char *stops[] = {"a"};
    static const int32_t ends[] = {7, 40, 77, 100, 130, 200, 201, 202, 250};
    struct tokenizer *t;
    struct error e;
    must(tokenizer_open(&t, "tests/golden/tokenizers/gpt2", &e), &e);
    const struct generate_options options[] = {
        {.sampling = {.top_p = 1, .repetition_penalty = 1.3},
         .most = 12,
         .ends = ends,
         .n_ends = COUNT(ends),
         .tokenizer = t},
        {.sampling = {.temperature = 1, .top_p = 0.9, .repetition_penalty = 1, .seed = 4},
         .most = 15,
         .ends = ends,
         .n_ends = COUNT(ends),
         .tokenizer = t,
         .stops = stops,
         .n_stops = 1},
    };
    for (size_t o = 0; o < COUNT(options); o++) {
        struct asked one = {.bad = 6};
        for (size_t k = 0; k < COUNT(batches); k++) {
            struct generator a;
            struct generate g;
            struct asked q = {.bad = 6};
            start_texts(&a, 16, batches[k]);
            generate_open(&g, &a, &options[o]);
            must(generate_all(&g, &(struct generate_queue){&q, next_prompt, take_answer}, &e), &e);
            assert_true(q.refused == 1 && q.taken == PROMPTS && q.given == PROMPTS && q.answer[6].ids.n == 0);
            generate_close(&g);
            generator_close(&a);
            if (!k) {
                one = q;
                continue;
            }
            assert_same(&one, &q);
            asked_free(&q);
        }
        uint32_t shortest = UINT32_MAX, longest = 0;
        for (int i = 0; i < PROMPTS; i++)
            if (i != 6)
                shortest = (uint32_t)min_i64(shortest, one.answer[i].ids.n),
                longest = (uint32_t)max_i64(longest, one.answer[i].ids.n);
        assert_true(shortest < longest);
        asked_free(&one);
    }
    tokenizer_close(t);
}

/* --- answers of transformers ------------------------------------------------------------------ */

struct golden {
    int n, given;
    struct {
        int32_t prompt[64], want[64];
        int tokens, answer;
    } at[8];
};

static int read_ids(const char *from, int32_t *to)
{
    int n = 0;
    for (char *end; *from && n < 64; from = *end ? end + 1 : end) to[n++] = (int32_t)strtol(from, &end, 10);
    return n;
}

static int next_golden(void *to, struct prompt *out, bool *more, struct error *e)
{
    struct golden *q = to;
    (void)e;
    if (!(*more = q->given < q->n)) return PL_OK;
    *out = (struct prompt){.ids = q->at[q->given].prompt, .n = q->at[q->given].tokens};
    q->given++;
    return PL_OK;
}

static int check_golden(void *to, uint64_t i, const struct answer *a, struct error *e)
{
    const struct golden *q = to;
    if (!a) fail_msg("%s", e->text);
    assert_int_equal(a->ids.n, q->at[i].answer);
    assert_memory_equal(a->ids.at, q->at[i].want, a->ids.n * sizeof(int32_t));
    return PL_OK;
}

/* Prompts of tests/golden/generate.txt for one model, all at once. */
TEST(test_golden)
{
    struct golden q = {0};
    struct config c;
    struct generator a;
    struct generate g;
    struct error e;
    char folder[64], adapter[64], options[64], prompt[512], want[1024];
    FILE *f = fopen("tests/golden/generate.txt", "r");
    assert_non_null(f);
    while (fscanf(f, "%63s %63s %63s %511s %1023s", folder, adapter, options, prompt, want) == 5)
        if (!strcmp(folder, "basic") && *adapter == '-' && *options == '-') {
            q.at[q.n].tokens = read_ids(prompt, q.at[q.n].prompt);
            q.at[q.n].answer = read_ids(want, q.at[q.n].want);
            q.n++;
        }
    fclose(f);
    assert_true(q.n >= 3);
    config_init(&c);
    must(config_set(&c, "model.path=tests/golden/basic", &e), &e);
    must(config_set(&c, "memory.precision=f32", &e), &e);
    must(config_set(&c, "device.kind=cpu", &e), &e);
    const struct run_generation o = {.cache = 128, .prompt = 64, .answer = 64, .batch = 8};
    must(generator_plan(&a, &c, &o, NULL, NULL, &e), &e);
    must(generator_start(&a, &e), &e);
    generate_open(&g, &a,
                  &(struct generate_options){.sampling = {.top_p = 1, .repetition_penalty = 1},
                                             .most = 64,
                                             .ends = (int32_t[]){2},
                                             .n_ends = 1});
    must(generate_all(&g, &(struct generate_queue){&q, next_golden, check_golden}, &e), &e);
    generate_close(&g);
    generator_close(&a);
    config_free(&c);
}

/* With `pooled` a queue takes nothing from the heap. */
static int count_answer(void *to, uint64_t i, const struct answer *a, struct error *e)
{
    (void)e;
    *(uint64_t *)to += a && a->ids.n == 6 && i < PROMPTS;
    return PL_OK;
}
static int next_of_count(void *to, struct prompt *out, bool *more, struct error *e)
{
    static int given;
    (void)to, (void)e;
    if ((*more = given++ < PROMPTS)) *out = (struct prompt){.ids = ids, .n = 1 + given % 9};
    return PL_OK;
}

TEST(test_pool)
{
    struct tokenizer *t;
    struct generator a;
    struct generate g;
    struct error e;
    uint64_t answers = 0;
    must(tokenizer_open(&t, "tests/golden/tokenizers/gpt2", &e), &e);
    start_texts(&a, 16, 4);
    generate_open(&g, &a,
                  &(struct generate_options){.sampling = {.top_p = 1, .repetition_penalty = 1},
                                             .most = 6,
                                             .tokenizer = t,
                                             .pooled = true});
    mem_pool_create(1 << 20);
    const uint64_t before = mem_allocations();
    must(generate_all(&g, &(struct generate_queue){&answers, next_of_count, count_answer}, &e), &e);
    assert_int_equal(mem_allocations(), before);
    assert_int_equal(answers, PROMPTS);
    mem_pool_destroy();
    generate_close(&g);
    generator_close(&a);
    tokenizer_close(t);
}

/* Without a number of prompts at once, the planner takes as many as the budget holds; the smallest
 * budget is that of one. */
TEST(test_plan)
{
    struct generator a;
    struct error e;
    char key[64];
    struct run_generation o = {.cache = CACHE, .prompt = LENGTH, .answer = 4, .prompts = 100, .tokens = 100 * LENGTH};
    must(generator_plan(&a, &config, &o, NULL, NULL, &e), &e);
    assert_int_equal(a.texts, PROMPTS_MOST);
    const uint64_t cache = generator_cache_bytes(&a) / PROMPTS_MOST, all = plan_arena(&a.run->planned.plan),
                   smallest = a.run->planned.plan.smallest;
    generator_close(&a);
    double seconds = 0;
    for (uint64_t budget = all; budget >= smallest; budget -= 18 * cache) {
        snprintf(key, sizeof key, "memory.budget=%llu", (unsigned long long)budget);
        must(config_set(&config, key, &e), &e);
        must(generator_plan(&a, &config, &o, NULL, NULL, &e), &e);
        assert_true(plan_arena(&a.run->planned.plan) <= budget && a.run->planned.plan.smallest == smallest &&
                    a.run->planned.plan.seconds >= seconds);
        seconds = a.run->planned.plan.seconds;
        generator_close(&a);
    }
    snprintf(key, sizeof key, "memory.budget=%llu", (unsigned long long)smallest);
    must(config_set(&config, key, &e), &e);
    must(generator_plan(&a, &config, &o, NULL, NULL, &e), &e);
    assert_true(a.texts == 1 && plan_arena(&a.run->planned.plan) == smallest);
    generator_close(&a);
    snprintf(key, sizeof key, "memory.budget=%llu", (unsigned long long)smallest - 1);
    must(config_set(&config, key, &e), &e);
    assert_int_equal(generator_plan(&a, &config, &o, NULL, NULL, &e), PL_NOFIT);
    generator_close(&a);
    must(config_set(&config, "memory.budget=none", &e), &e);
    o.prompts = 3;
    must(generator_plan(&a, &config, &o, NULL, NULL, &e), &e);
    assert_int_equal(a.texts, 3);
    generator_close(&a);
}

MAIN(set_up, tear_down)

/*
 * test_generate.c: a text in pieces has the logits of the text at once, a new text those of a new model, a token
 * allocates nothing, what does not fit is refused and loses nothing; answers with scores.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "infer/generate.h"

enum { CACHE = 40, LENGTH = 33 };

static struct config config;
static int32_t ids[CACHE + 1];

static void must(int rc, const struct error *e)
{
    if (rc) fail_msg("%s", e->text);
}

static void start(struct generator *a, int64_t chunk)
{
    struct error e;
    must(generator_plan(a, &config, &(struct run_generation){.cache = CACHE, .prompt = LENGTH, .answer = 4, .chunk = chunk}, &e), &e);
    must(generator_start(a, &e), &e);
}

static void assert_near(const float *x, const float *y, int64_t n, const char *what)
{
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) difference += pow((double)x[i] - (double)y[i], 2), norm += pow((double)y[i], 2);
    if (!(sqrt(difference) <= 1e-5 * sqrt(norm))) fail_msg("%s: logits differ by %g of their norm", what, sqrt(difference / norm));
}

static int set_up(void **state)
{
    (void)state;
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
    (void)state;
    config_free(&config);
    return 0;
}

static void test_pieces(void **state)
{
    (void)state;
    static const int64_t pieces[][4] = {{1, 1, 31}, {5, 16, 12}, {32, 1}, {7, 7, 7, 12}};
    struct generator whole, a;
    struct error e;
    start(&whole, 64);
    start(&a, 8);
    const int64_t V = whole.run->model.vocabulary;
    must(generator_put(&whole, ids, LENGTH, &e), &e);
    for (size_t i = 0; i < COUNT(pieces); i++) { /* each after the text before it: what that left in the cache is not seen */
        generator_begin(&a);
        int64_t at = 0;
        for (int k = 0; k < 4 && pieces[i][k]; at += pieces[i][k++]) must(generator_put(&a, ids + at, pieces[i][k], &e), &e);
        assert_int_equal(at, LENGTH);
        assert_int_equal(a.length, LENGTH);
        assert_near(a.logits, whole.logits, V, "pieces");
    }
    const uint64_t before = mem_allocations();
    for (int k = LENGTH; k < CACHE; k++) must(generator_put(&a, ids + k, 1, &e), &e);
    assert_int_equal(mem_allocations(), before);
    must(generator_put(&whole, ids + LENGTH, CACHE - LENGTH, &e), &e);
    assert_near(a.logits, whole.logits, V, "tokens one by one");
    assert_int_equal(generator_cache_bytes(&a), generator_cache_bytes(&whole));
    generator_close(&a);
    generator_close(&whole);
}

static void test_refused(void **state)
{
    (void)state;
    struct generator a;
    struct error e;
    start(&a, 0);
    assert_int_equal(generator_put(&a, ids, CACHE + 1, &e), PL_USAGE);
    assert_non_null(strstr(e.text, "does not fit into the KV cache"));
    must(generator_put(&a, ids, 10, &e), &e);
    float *logits = mem_copy(a.logits, (size_t)a.run->model.vocabulary * sizeof *logits);
    assert_int_equal(generator_put(&a, (int32_t[]){3, 256}, 2, &e), PL_USAGE);
    assert_non_null(strstr(e.text, "token 11 has the id 256"));
    assert_int_equal(a.length, 10);
    generator_begin(&a);
    must(generator_put(&a, ids, 10, &e), &e);
    assert_memory_equal(logits, a.logits, (size_t)a.run->model.vocabulary * sizeof *logits);
    mem_free(logits);
    generator_close(&a);
}

static void keep(void *to, uint32_t i, const struct answer *a)
{
    struct text *texts = to;
    text_printf(&texts[i], "%s", a->text.at);
}

/* The model's own answers are the references of the second round. */
static void test_scores(void **state)
{
    (void)state;
    struct generator a;
    struct generate g;
    struct tokenizer *t;
    struct error e;
    struct text texts[2] = {{0}}, ignored[2] = {{0}};
    struct question questions[] = {{{.ids = ids, .n = 5}, "no such answer"}, {{.ids = ids + 5, .n = 7}, "nor this"}};
    struct text_scores first = {0}, second = {0};
    must(tokenizer_open(&t, "tests/golden/tokenizers/gpt2", &e), &e);
    start(&a, 0);
    generate_open(&g, &a, &(struct generate_options){.sampling = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 4}, .most = 20, .tokenizer = t});
    must(generate_score(&g, questions, 2, keep, texts, &first, &e), &e);
    assert_true(first.answers == 2 && text_scores_result(&first).exact == 0);
    for (int i = 0; i < 2; i++) questions[i].reference = texts[i].at;
    must(generate_score(&g, questions, 2, keep, ignored, &second, &e), &e);
    assert_true(second.answers == 2 && text_scores_result(&second).exact == 100);
    assert_true(texts[0].n > 0 && strcmp(texts[0].at, texts[1].at));
    for (int i = 0; i < 2; i++) text_free(&texts[i]), text_free(&ignored[i]);
    text_scores_free(&first);
    text_scores_free(&second);
    generate_close(&g);
    generator_close(&a);
    tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pieces), cmocka_unit_test(test_refused), cmocka_unit_test(test_scores)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

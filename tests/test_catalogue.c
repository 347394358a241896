/*
 * test_catalogue.c: the weights of each published model are as many as its publisher says; names
 * are found in any case, and a mistyped one finds the nearest.
 */
#include "harness.h"
#include "models/catalogue.h"
#include "models/model.h"

/* Counts the weights that a family builds for a config.json. */
static uint64_t count_weights(const struct published *p)
{
    struct model m;
    struct error e = {0};
    uint64_t n = 0;
    must(model_preset(&m, p->name, &e), &e);
    must(model_count(&m, &n, &e), &e);
    model_close(&m);
    return n;
}

TEST(test_counts)
{
    int wrong = 0;
    for (const struct published *p = catalogue; p->name; p++) {
        const uint64_t n = count_weights(p);
        if (catalogue_agrees(p, n)) continue;
        print_error("%s: %" PRIu64 " weights, published: %s\n", p->name, n, p->parameters);
        wrong++;
    }
    assert_int_equal(wrong, 0);
}

/* A rounded number agrees to its digits, and another does not. */
TEST(test_digits)
{
    const struct published rounded = {.parameters = "641M"}, more = {.parameters = "8.1B", .stored = 5},
                           exact = {.parameters = "100", .stored = 2};
    assert_true(catalogue_agrees(&rounded, 641090864) && !catalogue_agrees(&rounded, 640400000));
    assert_true(catalogue_agrees(&more, 8099999999) && !catalogue_agrees(&more, 8160000000));
    assert_true(catalogue_agrees(&exact, 98) && !catalogue_agrees(&exact, 100));
}

TEST(test_names)
{
    struct text hub = {0};
    const struct published *p = catalogue_find("qwen/qwen2.5-3b-instruct", &hub);
    assert_non_null(p);
    assert_string_equal(p->name, "Qwen/Qwen2.5-3B");
    assert_string_equal(hub.at, "Qwen/Qwen2.5-3B-Instruct");
    text_free(&hub);
    assert_null(catalogue_find("Qwen/Qwen2.5-3B-Chat", NULL));
    assert_null(catalogue_find("Qwen/Qwen2.5", NULL));
    assert_string_equal(catalogue_nearest("Qwen/Qwen2.5-3"), "Qwen/Qwen2.5-3B");
    assert_string_equal(catalogue_nearest("llama-3.2-1b"), "meta-llama/Llama-3.2-1B");
    assert_null(catalogue_nearest("something else"));
}

/* Each name is there once, with an owner; each row states its source. */
TEST(test_rows)
{
    for (const struct published *p = catalogue; p->name; p++) {
        assert_ptr_equal(catalogue_find(p->name, NULL), p);
        assert_non_null(strchr(p->name, '/'));
        assert_true(*p->source && *p->parameters);
    }
}

MAIN(NULL, NULL)

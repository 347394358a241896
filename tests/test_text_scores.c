/*
 * test_text_scores.c: scores of texts against sacrebleu, rouge-score and SQuAD's evaluation
 * (tests/golden/text_scores.json, made by make_text_scores.py): of each pair by itself, and of all.
 */
#include "infer/text_scores.h"
#include "io/json.h"

#include "harness.h"

static void compare(const struct text_scores *s, const struct value *want, const char *what)
{
    const struct text_score found = text_scores_result(s);
    const struct {
        const char *name;
        double value;
    } rows[] = {{"exact", found.exact}, {"f1", found.f1}, {"bleu", found.bleu}, {"rouge_l", found.rouge_l}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        const double x = value_get(want, rows[i].name)->number;
        if (fabs(rows[i].value - x) > 1e-6)
            fail_msg("%s of \"%s\" is %.9g, expected %.9g", rows[i].name, what, rows[i].value, x);
    }
}

TEST(test_reference)
{
    struct bump b = {0};
    struct value *v;
    struct error e;
    struct text_scores all = {0}, merged = {0};
    if (json_read_file("tests/golden/text_scores.json", 1 << 20, &b, &v, &e)) fail_msg("%s", e.text);
    const struct value *pairs = value_get(v, "pairs");
    assert_true(pairs->count > 20);
    for (uint32_t i = 0; i < pairs->count; i++) {
        const struct value *pair = value_at(pairs, i);
        const char *answer = value_get(pair, "answer")->text, *reference = value_get(pair, "reference")->text;
        struct text_scores one = {0};
        text_scores_add(&one, answer, reference);
        text_scores_add(&all, answer, reference);
        text_scores_merge(&merged, &one);
        compare(&one, pair, answer);
        text_scores_free(&one);
    }
    compare(&all, value_get(v, "all"), "all pairs");
    compare(&merged, value_get(v, "all"), "all pairs, merged");
    text_scores_free(&all);
    text_scores_free(&merged);
    bump_free(&b);
}

/* Bytes that are not UTF-8 are words too, and no answers have the score 0. */
TEST(test_edges)
{
    struct text_scores s = {0};
    struct text_score none = text_scores_result(&s);
    assert_true(none.exact == 0 && none.f1 == 0 && none.bleu == 0 && none.rouge_l == 0);
    text_scores_add(&s, "\xff\xfe a b c d", "\xff\xfe a b c d");
    struct text_score same = text_scores_result(&s);
    assert_true(same.exact == 100 && same.f1 == 100 && fabs(same.bleu - 100) < 1e-9 && same.rouge_l == 100);
    text_scores_free(&s);
}

MAIN(NULL, NULL)

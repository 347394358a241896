/*
 * test_sample.c: the processing of logits against transformers' processors
 * (tests/golden/sampling.txt, made by make_generate.py), draws against their probabilities, and
 * greedy choices.
 */
#include "infer/sample.h"

#include "harness.h"

enum { V = 12, DRAWS = 20000 };

static int read_numbers(char *line, double *out, int room)
{
    int n = 0;
    for (char *word = strtok(line, " \n"); word && n < room; word = strtok(NULL, " \n")) out[n++] = strtod(word, NULL);
    return n;
}

/* One case: candidates have the probabilities of the reference, and draws follow them. */
static void check_case(const struct sampling *options, const double *logits, const double *seen, int n_seen,
                       const double *want)
{
    struct sampler s;
    struct sampled_text t;
    struct error e;
    float row[V];
    double found[V] = {0}, drawn[V] = {0};
    for (int i = 0; i < V; i++) row[i] = (float)logits[i];
    assert_int_equal(sampling_check(options, &e), PL_OK);
    sampler_open(&s, V, options);
    sampled_text_open(&t, &s);
    sampled_text_begin(&t, 0);
    for (int i = 0; i < n_seen; i++) sampled_text_see(&t, (int32_t)seen[i]);
    const int64_t n = sampler_candidates(&s, &t, row);
    for (int64_t i = 0; i < n; i++) found[s.kept[i].id] = s.kept[i].weight;
    for (int i = 0; i < V; i++)
        if (fabs(found[i] - want[i]) > 1e-6)
            fail_msg("token %d has the probability %.9g, expected %.9g", i, found[i], want[i]);
    for (int k = 0; k < DRAWS && options->repetition_penalty == 1; k++) {
        int32_t id;
        assert_int_equal(sampler_next(&s, &t, row, &id, &e), PL_OK);
        drawn[id] += 1.0 / DRAWS;
    }
    for (int i = 0; i < V && options->repetition_penalty == 1; i++) /* five deviations of a share */
        if (fabs(drawn[i] - want[i]) > 5 * sqrt(want[i] * (1 - want[i]) / DRAWS) + 1e-12)
            fail_msg("token %d was drawn in a share of %g, expected %g", i, drawn[i], want[i]);
    sampled_text_close(&t);
    sampler_close(&s);
}

TEST(test_reference)
{
    FILE *f = fopen("tests/golden/sampling.txt", "r");
    char line[4][1024];
    int cases = 0;
    assert_non_null(f);
    while (fgets(line[0], sizeof line[0], f) && fgets(line[1], sizeof line[1], f) &&
           fgets(line[2], sizeof line[2], f) && fgets(line[3], sizeof line[3], f)) {
        double o[4], logits[V], seen[V], want[V];
        assert_int_equal(read_numbers(line[0], o, 4), 4);
        assert_int_equal(read_numbers(line[1], logits, V), V);
        const int n = read_numbers(line[2], seen, V);
        assert_int_equal(read_numbers(line[3], want, V), V);
        check_case(&(struct sampling){.temperature = o[0], .top_k = (int64_t)o[1], .top_p = o[2],
                                      .repetition_penalty = o[3], .seed = 3},
                   logits, seen, n, want);
        cases++;
    }
    fclose(f);
    assert_int_equal(cases, 9);
}

TEST(test_greedy)
{
    const struct sampling greedy = {.top_p = 1, .repetition_penalty = 1},
                          penalized = {.top_p = 1, .repetition_penalty = 2};
    struct sampler s;
    struct sampled_text t;
    struct error e;
    int32_t id;
    sampler_open(&s, 4, &greedy);
    sampled_text_open(&t, &s);
    sampled_text_begin(&t, 0);
    assert_int_equal(sampler_next(&s, &t, (float[]){1, 3, 3, -2}, &id, &e), PL_OK);
    assert_int_equal(id, 1); /* the first of the largest */
    assert_int_equal(sampler_next(&s, &t, (float[]){NAN, -5, -INFINITY, -7}, &id, &e), PL_OK);
    assert_int_equal(id, 1);
    assert_int_equal(sampler_next(&s, &t, (float[]){NAN, NAN, NAN, -INFINITY}, &id, &e), PL_FAIL);
    assert_int_equal(sampler_next(&s, &t, (float[]){0, INFINITY, 0, 0}, &id, &e), PL_FAIL);
    sampled_text_close(&t);
    sampler_close(&s);

    sampler_open(&s, 4, &penalized);
    sampled_text_open(&t, &s);
    sampled_text_begin(&t, 0);
    const float row[] = {3, 5, 4, -1}, negative[] = {-1, -1.5f, -1.75f, -9};
    assert_int_equal(sampler_next(&s, &t, row, &id, &e), PL_OK);
    assert_int_equal(id, 1);
    assert_int_equal(sampler_next(&s, &t, row, &id, &e), PL_OK); /* 5 / 2 is below 4 */
    assert_int_equal(id, 2);
    sampled_text_begin(&t, 0); /* a new text: nothing was seen */
    sampled_text_see(&t, 0);
    assert_int_equal(sampler_next(&s, &t, negative, &id, &e), PL_OK); /* -1 * 2 is below -1.5 */
    assert_int_equal(id, 1);
    sampled_text_close(&t);
    sampler_close(&s);
}

/* A text's draws are keyed by its number: those of text 0 are as before, others differ. */
TEST(test_texts)
{
    enum { TEXTS = 3, TOKENS = 40 };
    const struct sampling options = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 7};
    const float row[V] = {0};
    int32_t drawn[TEXTS][TOKENS], again;
    struct sampler s;
    struct sampled_text t[TEXTS];
    struct error e;
    sampler_open(&s, V, &options);
    for (uint32_t i = 0; i < TEXTS; i++) {
        sampled_text_open(&t[i], &s);
        sampled_text_begin(&t[i], i);
        for (int k = 0; k < TOKENS; k++) assert_int_equal(sampler_next(&s, &t[i], row, &drawn[i][k], &e), PL_OK);
        if (i) assert_memory_not_equal(drawn[i], drawn[i - 1], sizeof drawn[i]);
        sampled_text_begin(&t[i], i);
    }
    for (int k = 0; k < TOKENS; k++)
        for (uint32_t i = TEXTS; i-- > 0;) { /* in another order */
            assert_int_equal(sampler_next(&s, &t[i], row, &again, &e), PL_OK);
            assert_int_equal(again, drawn[i][k]);
        }
    for (uint32_t i = 0; i < TEXTS; i++) sampled_text_close(&t[i]);
    sampler_close(&s);
}

TEST(test_refused)
{
    const struct sampling good = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};
    struct error e;
    struct sampling bad[] = {good, good, good, good, good, good};
    bad[0].temperature = -0.5, bad[1].temperature = NAN, bad[2].top_k = -1, bad[3].top_p = 0, bad[4].top_p = 1.01,
    bad[5].repetition_penalty = 0;
    assert_int_equal(sampling_check(&good, &e), PL_OK);
    for (size_t i = 0; i < COUNT(bad); i++) assert_int_equal(sampling_check(&bad[i], &e), PL_USAGE);
}

MAIN(NULL, NULL)

/*
 * test_predictor.c: compares predicted masks with transformers' processors, models and
 * post-processing: SAM's (tests/golden/predict, written by tests/golden/make_predict.py) and SAM
 * 2's (predict_sam2, make_predict_sam2.py).
 *
 * The masks are thresholded logits: pixels whose logit is within rounding of 0 may differ, so they
 * are compared by IoU. Images resized by another library differ by at most 1 of 255.
 */
#include "io/file.h"
#include "io/png.h"
#include "infer/predictor.h"

#include "harness.h"

/* The folder of the cases that are being compared. */
static const char *reference = "tests/golden/predict";
enum { POINTS = 8 };

static char *in_folder(const char *name, char out[256])
{
    snprintf(out, 256, "%s/%s", reference, name);
    return out;
}

/* One line of cases.txt. */
struct prompt_case {
    char name[64], image[256];
    float points[POINTS][2];
    int labels[POINTS];
    struct predictor_prompt prompt;
    struct predictor_shape shape;
};

static void parse_case(char *line, struct prompt_case *c)
{
    char *save, *word = strtok_r(line, " \n", &save);
    memset(c, 0, sizeof *c);
    c->shape.prompts = 1;
    snprintf(c->name, sizeof c->name, "%s", word);
    in_folder(strtok_r(NULL, " \n", &save), c->image);
    while ((word = strtok_r(NULL, " \n", &save))) {
        if (!strcmp(word, "--single")) {
            c->shape.single = true;
        } else if (!strcmp(word, "--box")) {
            float *b = c->prompt.box;
            c->shape.box = sscanf(strtok_r(NULL, " \n", &save), "%f,%f,%f,%f", b, b + 1, b + 2, b + 3) == 4;
        } else {
            int64_t k = c->shape.points++;
            c->labels[k] = 1;
            assert_true(k < POINTS && sscanf(strtok_r(NULL, " \n", &save), "%f,%f,%d", &c->points[k][0],
                                             &c->points[k][1], &c->labels[k]) >= 2);
        }
    }
    c->prompt.points = (const float(*)[2])c->points;
    c->prompt.labels = c->labels;
}

static double expected_score(const char *name)
{
    char *text, word[80], path[256];
    size_t n;
    struct error e;
    if (file_read(in_folder("scores.txt", path), 1 << 16, &text, &n, &e)) fail_msg("%s", e.text);
    snprintf(word, sizeof word, "%s ", name);
    char *at = text;
    while (at && strncmp(at, word, strlen(word))) at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL;
    double score = at ? atof(at + strlen(word)) : NAN;
    mem_free(text);
    return score;
}

static double iou(const uint8_t *a, const uint8_t *b, size_t n)
{
    size_t meet = 0, join = 0;
    for (size_t i = 0; i < n; i++) meet += a[i] && b[i], join += a[i] || b[i];
    return join ? (double)meet / (double)join : 1;
}

static struct config config(void)
{
    static char path[256];
    struct config c;
    config_init(&c);
    c.model_path = in_folder("model", path);
    c.memory_precision = (struct config_setting){true, "f32"};
    return c;
}

static void open_image(struct image *p, const char *path)
{
    struct error e;
    if (image_read(p, path, &(struct pixel_range){0}, &e)) fail_msg("%s", e.text);
}

static void check_case(const struct prompt_case *c)
{
    struct config settings = config();
    struct image p;
    struct png_pixels expect;
    struct predictor a;
    struct error e;
    char path[256], name[80];
    snprintf(name, sizeof name, "%s.png", c->name);
    in_folder(name, path);
    open_image(&p, c->image);
    if (png_read(path, PNG_AS_LABELS, 0, NULL, 0, &expect, &e)) fail_msg("%s", e.text);
    if (predictor_open(&a, &settings, &p, &c->shape, &e) || predictor_run(&a, &c->prompt, 1, &e))
        fail_msg("%s: %s", c->name, e.text);
    assert_true(expect.width == p.width && expect.height == p.height);
    int64_t best = predictor_best(&a, 0);
    uint8_t *mask = mem_alloc((size_t)p.width * p.height);
    double stability = predictor_mask(&a, 0, best, 0.02f, mask),
           same = iou(mask, expect.at, (size_t)p.width * p.height), score = expected_score(c->name);
    print_message("%-8s IoU with the reference %.5f, score %.5f against %.5f, stability %.3f\n", c->name, same,
                  (double)a.scores[best], score, stability);
    assert_true(same > 0.999);
    assert_true(fabs(a.scores[best] - score) < 1e-3);
    assert_true(stability > 0 && stability < 1 && predictor_mask(&a, 0, best, 0, mask) == 1);
    mem_free(mask);
    mem_free(expect.at);
    predictor_close(&a);
    image_free(&p);
    config_free(&settings);
}

static void check_cases(void)
{
    char *text, *save, path[256];
    size_t n;
    struct error e;
    struct prompt_case c;
    int cases = 0;
    if (file_read(in_folder("cases.txt", path), 1 << 16, &text, &n, &e)) fail_msg("%s", e.text);
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save), cases++) {
        parse_case(line, &c);
        check_case(&c);
    }
    assert_true(cases >= 5);
    mem_free(text);
}

TEST(test_reference) { check_cases(); }

TEST(test_reference_of_sam2)
{
    reference = "tests/golden/predict_sam2";
    check_cases();
    reference = "tests/golden/predict";
}

/* Prompts in one batch give the same results as each by itself; after a shorter batch no data of an
 * earlier one remains. */
TEST(test_batches)
{
    static const float points[3][1][2] = {{{150, 60}}, {{40, 30}}, {{10, 110}}};
    static const int on[1] = {1};
    struct config settings = config();
    struct image p;
    struct predictor one, many;
    struct error e;
    struct predictor_prompt q[3];
    for (int i = 0; i < 3; i++) q[i] = (struct predictor_prompt){.points = points[i], .labels = on};
    open_image(&p, "tests/golden/predict/wide.png");
    if (predictor_open(&one, &settings, &p, &(struct predictor_shape){.prompts = 1, .points = 1}, &e))
        fail_msg("%s", e.text);
    if (predictor_open(&many, &settings, &p, &(struct predictor_shape){.prompts = 2, .points = 1}, &e))
        fail_msg("%s", e.text);
    for (int i = 0; i < 3; i++) {
        if (i != 1 && predictor_run(&many, q + i, i ? 1 : 2, &e)) fail_msg("%s", e.text);
        if (predictor_run(&one, q + i, 1, &e)) fail_msg("%s", e.text);
        for (int64_t k = 0; k < one.candidates; k++)
            assert_true(fabsf(one.scores[k] - many.scores[(i == 1) * many.candidates + k]) < 1e-5f);
    }
    predictor_close(&one);
    predictor_close(&many);
    image_free(&p);
    config_free(&settings);
}

/* Forward only: the encoder's plan holds its weights and little else, nothing twice. */
TEST(test_memory)
{
    struct config settings;
    struct image p = {.width = 64, .height = 48, .rgb = mem_alloc(64 * 48 * 3)};
    struct predictor a;
    struct error e;
    config_init(&settings);
    settings.model_preset = (char *)"sam-tiny";
    settings.memory_precision = (struct config_setting){true, "f32"};
    if (predictor_open(&a, &settings, &p, &(struct predictor_shape){.prompts = 1, .points = 1}, &e))
        fail_msg("%s", e.text);
    uint64_t weights = 0;
    for (uint32_t i = 0; i < a.run.planned.graph.params.n; i++) {
        weights += tensor_bytes(tensor_at(&a.run.planned.graph, a.run.planned.graph.params.at[i].tensor));
        assert_int_equal(a.run.planned.graph.params.at[i].grad, 0);
    }
    print_message("encoder %llu bytes, decoder %llu, of which weights %llu\n", (unsigned long long)a.encoder_bytes,
                  (unsigned long long)a.decoder_bytes, (unsigned long long)weights);
    assert_int_equal(a.fit_w, 128);
    assert_int_equal(a.fit_h, 96);
    assert_true(a.run.planned.plan.peak.by_kind[KIND_GRAD] == 0);
    predictor_close(&a);
    image_free(&p);
    config_free(&settings);
}

TEST(test_other_models)
{
    struct config settings = config();
    struct image p = {.width = 4, .height = 4, .rgb = mem_alloc(48)};
    struct predictor a;
    struct error e;
    settings.model_path = (char *)"tests/golden/clip_vision";
    assert_int_equal(predictor_open(&a, &settings, &p, &(struct predictor_shape){.prompts = 1, .points = 1}, &e),
                     PL_USAGE);
    assert_non_null(strstr(e.text, "clip_vision_model predicts no masks"));
    image_free(&p);
    config_free(&settings);
}

MAIN(NULL, NULL)

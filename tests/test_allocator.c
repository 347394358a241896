/*
 * test_allocator.c: the texture of an image and its information, as tests/golden/make_allocator.py
 * computes them; which tokens are the question.
 *
 * Run from the repository's root.
 */
#include "io/file.h"
#include "io/safetensors.h"
#include "models/allocator.h"

#include "harness.h"

enum { IMAGE = 44 };

static void read_tensor(const struct st_file *f, const char *name, float *to, int64_t n)
{
    struct error e;
    const struct st_entry *t = st_find(f, name);
    assert_non_null(t);
    assert_int_equal(t->elements, n);
    if (st_read(f, t, 0, t->bytes, to, &e)) fail_msg("%s", e.text);
}

static void assert_near(const char *what, const float *got, const float *want, int n)
{
    for (int i = 0; i < n; i++)
        if (!(fabsf(got[i] - want[i]) < 1e-5f))
            fail_msg("%s, element %d: %g, expected %g", what, i, (double)got[i], (double)want[i]);
}

static float image[3 * IMAGE * IMAGE], texture[TEXTURE_CELLS * TEXTURE_CHANNELS],
    expected[TEXTURE_CELLS * TEXTURE_CHANNELS], information[TEXTURE_CELLS];

TEST(test_texture)
{
    struct st_file f;
    struct error e;
    if (st_open("tests/golden/texture.safetensors", &f, &e)) fail_msg("%s", e.text);
    read_tensor(&f, "image", image, 3 * IMAGE * IMAGE);
    read_tensor(&f, "texture", expected, TEXTURE_CELLS * TEXTURE_CHANNELS);
    texture_of(image, IMAGE, IMAGE, texture);
    assert_near("texture", texture, expected, TEXTURE_CELLS * TEXTURE_CHANNELS);
    read_tensor(&f, "information", expected, TEXTURE_CELLS);
    texture_information(texture, information);
    assert_near("information", information, expected, TEXTURE_CELLS);
    st_close(&f);
}

/* An image of one colour has no edges, and nothing is divided by 0. */
TEST(test_blank)
{
    for (int i = 0; i < 3 * IMAGE * IMAGE; i++) image[i] = 0.5f;
    texture_of(image, IMAGE, IMAGE, texture);
    texture_information(texture, information);
    for (int i = 0; i < TEXTURE_CELLS; i++) {
        assert_true(texture[i * TEXTURE_CHANNELS + TEXTURE_EDGES] == 0);
        assert_true(information[i] >= 0 && information[i] <= 1);
    }
}

/* The question is the text before the first answer of the conversation with the image. */
TEST(test_question)
{
    enum { T = 12 };
    /* another conversation; u <image> <image> q, answer; a second question and padding are no part
     * of it */
    const int32_t positions[T] = {0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 0, 0},
                  index[T] = {-1, -1, -1, 0, 1, -1, -1, -1, -1, -1, -1, -1},
                  labels[T] = {-100, 5, -100, -100, -100, -100, 7, 8, -100, 9, -100, -100};
    const float half[T] = {0, 0, 0.5f, 0, 0, 0.5f}, zeros[T] = {0};
    float weights[T];
    question_weights(positions, labels, index, T, 0, weights);
    assert_memory_equal(weights, half, sizeof weights);
    const int32_t none[T] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
    question_weights(positions, labels, none, T, 0, weights);
    assert_memory_equal(weights, zeros, sizeof weights);
}

/* Opens a golden model with the other strategy; its message names the tower and what to set. */
static void refuses_strategy(const char *path, const char *was, const char *other, const char *says)
{
    struct model m;
    struct error e = {0};
    char *text;
    size_t n;
    if (file_read(path, UINT64_MAX, &text, &n, &e)) fail_msg("%s", e.text);
    struct text changed = {0};
    char *at = strstr(text, was);
    assert_non_null(at);
    text_printf(&changed, "%.*s%s%s", (int)(at - text), text, other, at + strlen(was));
    assert_int_equal(model_text(&m, changed.at, "config.json", &e), PL_USAGE);
    if (!strstr(e.text, says)) fail_msg("%s", e.text);
    model_close(&m);
    text_free(&changed);
    mem_free(text);
}

TEST(test_strategy)
{
    const char full[] = "\"vision_feature_select_strategy\": \"full\"",
               usual[] = "\"vision_feature_select_strategy\": \"default\"";
    refuses_strategy("tests/golden/allocator_siglip_qwen2/config.json", full, usual,
                     "a siglip_vision_model has no class token that could be dropped; set it to full");
    refuses_strategy("tests/golden/allocator_clip_llama/config.json", usual, full,
                     "a clip_vision_model has a class token before them; set it to default");
}

MAIN(NULL, NULL)

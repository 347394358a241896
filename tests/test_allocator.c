/*
 * test_allocator.c: the texture of an image and its information, as tests/golden/make_allocator.py computes them; which
 * tokens are the question.
 *
 * Run from the repository's root.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>

#include "io/safetensors.h"
#include "models/allocator.h"

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
        if (!(fabsf(got[i] - want[i]) < 1e-5f)) fail_msg("%s, element %d: %g, expected %g", what, i, (double)got[i], (double)want[i]);
}

static float image[3 * IMAGE * IMAGE], texture[TEXTURE_CELLS * TEXTURE_CHANNELS], expected[TEXTURE_CELLS * TEXTURE_CHANNELS], information[TEXTURE_CELLS];

static void test_texture(void **state)
{
    (void)state;
    struct st_file f;
    struct error e;
    if (st_open("tests/golden/texture.safetensors", &f, &e)) fail_msg("%s", e.text);
    read_tensor(&f, "image", image, 3 * IMAGE * IMAGE);
    read_tensor(&f, "texture", expected, TEXTURE_CELLS * TEXTURE_CHANNELS);
    texture_of(image, IMAGE, texture);
    assert_near("texture", texture, expected, TEXTURE_CELLS * TEXTURE_CHANNELS);
    read_tensor(&f, "information", expected, TEXTURE_CELLS);
    texture_information(texture, information);
    assert_near("information", information, expected, TEXTURE_CELLS);
    st_close(&f);
}

/* An image of one colour has no edges, and nothing is divided by 0. */
static void test_blank(void **state)
{
    (void)state;
    for (int i = 0; i < 3 * IMAGE * IMAGE; i++) image[i] = 0.5f;
    texture_of(image, IMAGE, texture);
    texture_information(texture, information);
    for (int i = 0; i < TEXTURE_CELLS; i++) {
        assert_true(texture[i * TEXTURE_CHANNELS + TEXTURE_EDGES] == 0);
        assert_true(information[i] >= 0 && information[i] <= 1);
    }
}

/* The question is the text before the first answer of the conversation with the image. */
static void test_question(void **state)
{
    (void)state;
    enum { T = 12 };
    /* another conversation; u <image> <image> q, answer; a second question and padding are no part of it */
    const int32_t positions[T] = {0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 0, 0}, index[T] = {-1, -1, -1, 0, 1, -1, -1, -1, -1, -1, -1, -1},
                  labels[T] = {-100, 5, -100, -100, -100, -100, 7, 8, -100, 9, -100, -100};
    const float half[T] = {0, 0, 0.5f, 0, 0, 0.5f}, zeros[T] = {0};
    float weights[T];
    question_weights(positions, labels, index, T, weights);
    assert_memory_equal(weights, half, sizeof weights);
    const int32_t none[T] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
    question_weights(positions, labels, none, T, weights);
    assert_memory_equal(weights, zeros, sizeof weights);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_texture), cmocka_unit_test(test_blank), cmocka_unit_test(test_question)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

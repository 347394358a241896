/*
 * test_video_score.c: compares J and F with those of a NumPy script that has the public evaluator's
 * definition (tests/golden/video_score, written by tests/golden/make_video_score.py).
 */
#include "infer/score.h"
#include "io/file.h"
#include "io/png.h"

#include <math.h>

#include "harness.h"

static uint8_t *read_masks(const char *name, int number, uint32_t *w, uint32_t *h)
{
    struct error e;
    struct png_pixels p;
    char path[256];
    snprintf(path, sizeof path, "tests/golden/video_score/%s-%d.png", name, number);
    if (png_read(path, PNG_AS_STORED, 0, NULL, 0, &p, &e)) fail_msg("%s", e.text);
    *w = p.width, *h = p.height;
    return p.at;
}

TEST(test_reference)
{
    struct error e;
    char *text, *save;
    size_t n;
    int at = 0, last = -1, lines = 0;
    uint8_t *predicted = NULL, *target = NULL, *scratch = NULL;
    uint32_t w = 0, h = 0;
    if (file_read("tests/golden/video_score/expect.txt", 1 << 16, &text, &n, &e)) fail_msg("%s", e.text);
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save), lines++) {
        int number, frames;
        double j, f;
        assert_int_equal(sscanf(line, "%d %d %lf %lf", &number, &frames, &j, &f), 4);
        if (number != last) {
            mem_free(predicted), mem_free(target), mem_free(scratch);
            predicted = read_masks("predicted", number, &w, &h);
            target = read_masks("target", number, &w, &h);
            h /= (uint32_t)frames;
            scratch = mem_alloc((size_t)3 * w * h);
            at = 0;
        }
        last = number;
        const size_t pixels = (size_t)w * h;
        const uint8_t *a = predicted + (size_t)at * pixels, *b = target + (size_t)at * pixels;
        const struct overlap o = overlap_masks(a, b, pixels);
        assert_true(fabs(overlap_iou(&o) - j) < 1e-8);
        assert_true(fabs(boundary_score(a, b, w, h, scratch) - f) < 1e-8);
        assert_true(fabs(boundary_score(b, a, w, h, scratch) - f) < 1e-8); /* it is symmetric */
        at++;
    }
    assert_true(lines == 22);
    mem_free(predicted), mem_free(target), mem_free(scratch), mem_free(text);
}

MAIN(NULL, NULL)

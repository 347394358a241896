/*
 * test_image.c: pictures in and out: PNG, JPEG, resizing, drawing. The inputs are in
 * tests/golden/image, made by tests/golden/make_image.py with another library, and what
 * that library makes of them beside them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/file.h"
#include "io/png.h"

static char *golden(const char *name, size_t *n)
{
    char path[256], *bytes;
    struct error e;
    snprintf(path, sizeof path, "tests/golden/image/%s", name);
    if (file_read(path, 1 << 24, &bytes, n, &e)) fail_msg("%s", e.text);
    return bytes;
}

static void assert_says(const struct error *e, const char *part)
{
    if (!strstr(e->text, part)) fail_msg("expected \"%s\" in the message: %s", part, e->text);
}

/* ---- PNG ---- */

enum { W = 13, H = 7 };
static int grey_at(int x, int y) { return (31 * x + 17 * y) % 256; }
static int deep_at(int x, int y) { return (3001 * x + 7001 * y) % 65536; }
static int index_at(int x, int y) { return (x + 2 * y) % 5; }
static int rgb_at(int x, int y, int c) { return (c == 0 ? 9 * x : c == 1 ? 7 * y : 5 * (x + y)) % 256; }

static struct png_pixels load(const char *name, enum png_as as)
{
    size_t n;
    char *bytes = golden(name, &n);
    struct png_pixels p;
    struct png_header h;
    struct error e;
    if (png_peek(bytes, n, &h, &e) || png_decode(bytes, n, as, 0, NULL, 0, &p, &e)) fail_msg("%s: %s", name, e.text);
    assert_int_equal(p.width, W);
    assert_int_equal(p.height, H);
    assert_true(p.bytes <= png_bytes(&h, as));
    mem_free(bytes);
    return p;
}

static int sample(const struct png_pixels *p, int x, int y, int c)
{
    size_t i = ((size_t)y * p->width + x) * p->channels + c;
    return p->depth == 16 ? ((uint16_t *)p->at)[i] : ((uint8_t *)p->at)[i];
}

#define FOR_PIXELS for (int y = 0; y < H; y++) for (int x = 0; x < W; x++)

/* One channel: labels and stored forms keep the very numbers. */
static void check_numbers(const char *name, uint32_t depth, int (*at)(int, int), enum png_as as)
{
    struct png_pixels p = load(name, as);
    assert_int_equal(p.channels, 1);
    assert_int_equal(p.depth, depth);
    FOR_PIXELS if (sample(&p, x, y, 0) != at(x, y)) fail_msg("%s at %d,%d: %d", name, x, y, sample(&p, x, y, 0));
    mem_free(p.at);
}

static int bit_at(int x, int y) { return grey_at(x, y) > 127; }

static void test_png_numbers(void **state)
{
    (void)state;
    for (enum png_as as = PNG_AS_STORED; as <= PNG_AS_LABELS; as++) {
        check_numbers("grey8.png", 8, grey_at, as);
        check_numbers("grey16.png", 16, deep_at, as);
        check_numbers("bits.png", 8, bit_at, as);
        check_numbers("palette.png", 8, index_at, as);
        check_numbers("palette4.png", 8, index_at, as);
        check_numbers("interlaced.png", 8, grey_at, as);
    }
    check_numbers("grey_alpha.png", 8, grey_at, PNG_AS_LABELS);
    check_numbers("rgb_of_grey.png", 8, grey_at, PNG_AS_LABELS);
}

static void check_rgb(const char *name, int (*at)(int, int, int))
{
    struct png_pixels p = load(name, PNG_AS_RGB);
    assert_int_equal(p.channels, 3);
    FOR_PIXELS for (int c = 0; c < 3; c++)
        if (sample(&p, x, y, c) != at(x, y, c)) fail_msg("%s at %d,%d,%d: %d", name, x, y, c, sample(&p, x, y, c));
    mem_free(p.at);
}

static int grey3_at(int x, int y, int c) { return (void)c, grey_at(x, y); }
static int bit3_at(int x, int y, int c) { return (void)c, 255 * bit_at(x, y); }
static int deep3_at(int x, int y, int c) { return (void)c, (deep_at(x, y) * 255 + 32767) / 65535; }
static int palette_at(int x, int y, int c)
{
    static const int colours[5][3] = {{200, 10, 20}, {30, 200, 40}, {50, 60, 200}, {200, 200, 10}, {7, 8, 9}};
    return colours[index_at(x, y)][c];
}

static void test_png_rgb(void **state)
{
    (void)state;
    check_rgb("rgb.png", rgb_at);
    check_rgb("rgba.png", rgb_at);
    check_rgb("grey8.png", grey3_at);
    check_rgb("grey16.png", deep3_at);
    check_rgb("grey_alpha.png", grey3_at);
    check_rgb("bits.png", bit3_at);
    check_rgb("interlaced.png", grey3_at);
    check_rgb("palette.png", palette_at);
    check_rgb("palette4.png", palette_at);
    struct png_pixels p = load("rgba.png", PNG_AS_STORED);
    assert_int_equal(p.channels, 4);
    FOR_PIXELS assert_int_equal(sample(&p, x, y, 3), grey_at(x, y));
    mem_free(p.at);
}

static void png_bad(const char *name, enum png_as as, size_t room, const char *says)
{
    size_t n;
    char *bytes = golden(name, &n);
    uint8_t to[1024];
    struct png_pixels p;
    struct error e = {0};
    if (!png_decode(bytes, n, as, 0, room ? to : NULL, room, &p, &e)) fail_msg("%s was accepted", name);
    assert_int_equal(e.code, PL_USAGE);
    assert_null(p.at);
    assert_says(&e, says);
    mem_free(bytes);
}

static void test_png_refused(void **state)
{
    (void)state;
    png_bad("truncated.png", PNG_AS_STORED, 0, "ends too early");
    png_bad("badcrc.png", PNG_AS_STORED, 0, "a PNG that cannot be read");
    png_bad("huge.png", PNG_AS_STORED, 0, "60000x60000");
    png_bad("rgb.png", PNG_AS_LABELS, 0, "differ");
    png_bad("rgb.png", PNG_AS_RGB, 3 * W * H - 1, "needs 273 bytes; there are 272");
    png_bad("base.jpg", PNG_AS_RGB, 0, "not a PNG");
}

/* What is written is read back; one bit and strides included. */
static void test_png_write(void **state)
{
    (void)state;
    uint8_t pixels[H][W * 4 + 5], back[H * W * 4];
    for (size_t i = 0; i < sizeof pixels; i++) ((uint8_t *)pixels)[i] = (uint8_t)(i * 37 % 251);
    char path[] = "/tmp/plimsoll-image-XXXXXX";
    close(mkstemp(path));
    for (enum png_kind kind = PNG_BITS; kind <= PNG_RGBA; kind++) {
        struct error e;
        struct png_pixels p;
        uint32_t channels = kind == PNG_RGB ? 3 : kind == PNG_RGBA ? 4 : 1;
        if (png_write(path, kind, W, H, pixels, sizeof pixels[0], &e)) fail_msg("%s", e.text);
        if (png_read(path, PNG_AS_STORED, W * H, back, sizeof back, &p, &e)) fail_msg("%s", e.text);
        assert_int_equal(p.channels, channels);
        for (int y = 0; y < H; y++)
            for (uint32_t i = 0; i < W * channels; i++)
                assert_int_equal(back[y * W * channels + i], kind == PNG_BITS ? pixels[y][i] != 0 : pixels[y][i]);
    }
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_png_numbers),
        cmocka_unit_test(test_png_rgb),
        cmocka_unit_test(test_png_refused),
        cmocka_unit_test(test_png_write),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * test_image.c: reading and writing images: PNG, JPEG, resizing, drawing, synthetic datasets. The
 * inputs and the expected results are in tests/golden/image; tests/golden/make_image.py made both
 * with another library.
 */
#include "base/random.h"
#include "data/masks/annotation.h"
#include "data/images/jpeg.h"
#include "data/images/resize.h"
#include "data/prepare/prepare.h"
#include "io/file.h"
#include "io/gunzip.h"
#include "io/png.h"
#include "report/draw.h"

#include "harness.h"

static char *golden(const char *name, size_t *n)
{
    char path[256], *bytes;
    struct error e;
    snprintf(path, sizeof path, "tests/golden/image/%s", name);
    if (file_read(path, 1 << 24, &bytes, n, &e)) fail_msg("%s", e.text);
    return bytes;
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

/* One channel: reading as labels or as stored keeps the exact numbers. */
static void check_numbers(const char *name, uint32_t depth, int (*at)(int, int), enum png_as as)
{
    struct png_pixels p = load(name, as);
    assert_int_equal(p.channels, 1);
    assert_int_equal(p.depth, depth);
    FOR_PIXELS if (sample(&p, x, y, 0) != at(x, y)) fail_msg("%s at %d,%d: %d", name, x, y, sample(&p, x, y, 0));
    mem_free(p.at);
}

static int bit_at(int x, int y) { return grey_at(x, y) > 127; }

TEST(test_png_numbers)
{
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

TEST(test_png_rgb)
{
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

TEST(test_png_refused)
{
    png_bad("truncated.png", PNG_AS_STORED, 0, "ends too early");
    png_bad("badcrc.png", PNG_AS_STORED, 0, "the PNG cannot be read");
    png_bad("huge.png", PNG_AS_STORED, 0, "60000x60000");
    png_bad("rgb.png", PNG_AS_LABELS, 0, "differ");
    png_bad("rgb.png", PNG_AS_RGB, 3 * W * H - 1, "needs 273 bytes; the buffer has 272");
    png_bad("base.jpg", PNG_AS_RGB, 0, "not a PNG");
}

/* Written images are read back, one-bit images and strides included. */
TEST(test_png_write)
{
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

/* ---- JPEG ---- */

static int difference(const uint8_t *a, const uint8_t *b, size_t n)
{
    int most = 0;
    for (size_t i = 0; i < n; i++) most = abs(a[i] - b[i]) > most ? abs(a[i] - b[i]) : most;
    return most;
}

/* Two versions of the same integer transform: equal except for rounding in one of them. */
static void check_jpeg(struct jpg *j, const char *name, uint32_t w, uint32_t h, uint32_t components)
{
    char file[64];
    size_t n, want_n;
    snprintf(file, sizeof file, "%s.jpg", name);
    char *bytes = golden(file, &n);
    snprintf(file, sizeof file, "%s.rgb", name);
    char *want = golden(file, &want_n);
    struct jpg_header head;
    struct error e;
    uint32_t got_w = 0, got_h = 0;
    uint8_t *got = NULL;
    if (jpg_peek(bytes, n, &head, &e) || jpg_decode(j, bytes, n, 1, &got_w, &got_h, &got, &e))
        fail_msg("%s: %s", name, e.text);
    assert_int_equal(head.width, w);
    assert_int_equal(head.height, h);
    assert_int_equal(head.components, components);
    assert_int_equal(head.progressive, !strcmp(name, "progressive"));
    assert_int_equal(got_w, w);
    assert_int_equal(got_h, h);
    assert_int_equal(want_n, (size_t)w * h * 3);
    int most = difference(got, (uint8_t *)want, want_n);
    if (most > 2) fail_msg("%s: differs by %d", name, most);
    mem_free(got);
    mem_free(want);
    mem_free(bytes);
}

TEST(test_jpeg_kinds)
{
    struct jpg *j = jpg_new(NULL);
    check_jpeg(j, "base", 83, 61, 3);
    check_jpeg(j, "grey", 83, 61, 1);
    check_jpeg(j, "cmyk", 83, 61, 4);
    check_jpeg(j, "ycck", 83, 61, 4);
    check_jpeg(j, "progressive", 83, 61, 3);
    check_jpeg(j, "exif6", 83, 61, 3); /* not rotated */
    check_jpeg(j, "s444", 83, 61, 3);
    check_jpeg(j, "one", 1, 1, 3);
    check_jpeg(j, "wide", 3000, 3, 3);
    jpg_free(j);
}

TEST(test_jpeg_scaled)
{
    assert_int_equal(jpg_divisor(2250, 1500, 1024), 2);
    assert_int_equal(jpg_divisor(2000, 1500, 1024), 2); /* 1000 is within 3 % */
    assert_int_equal(jpg_divisor(1500, 1980, 1024), 1);
    assert_int_equal(jpg_divisor(4000, 100, 1024), 4);
    assert_int_equal(jpg_divisor(64, 64, 1024), 1);
    size_t n;
    char *bytes = golden("base.jpg", &n);
    struct jpg *j = jpg_new(NULL);
    for (uint32_t divisor = 2; divisor <= 4; divisor *= 2) {
        uint32_t w, h;
        uint8_t *p;
        struct error e;
        if (jpg_decode(j, bytes, n, divisor, &w, &h, &p, &e)) fail_msg("%s", e.text);
        assert_int_equal(w, (83 + divisor - 1) / divisor);
        assert_int_equal(h, (61 + divisor - 1) / divisor);
        /* the centre of the disc is red at every size */
        const uint8_t *middle = p + ((size_t)h / 2 * w + w / 2) * 3;
        assert_true(middle[0] > 200 && middle[1] < 90 && middle[2] < 70);
        mem_free(p);
    }
    jpg_free(j);
    mem_free(bytes);
}

static void jpeg_bad(struct jpg *j, const char *name, const char *says)
{
    size_t n;
    char *bytes = golden(name, &n);
    uint32_t w, h;
    uint8_t *p;
    struct error e = {0};
    if (!jpg_decode(j, bytes, n, 1, &w, &h, &p, &e)) fail_msg("%s was accepted", name);
    assert_int_equal(e.code, PL_USAGE);
    assert_null(p);
    assert_says(&e, says);
    mem_free(bytes);
}

/* After a failure the reader can read the next file. */
TEST(test_jpeg_refused)
{
    struct jpg *j = jpg_new(NULL);
    jpeg_bad(j, "truncated.jpg", "Premature end");
    jpeg_bad(j, "noend.jpg", "Premature end");
    jpeg_bad(j, "damaged.jpg", "the JPEG cannot be read");
    jpeg_bad(j, "headonly.jpg", "the JPEG cannot be read");
    jpeg_bad(j, "rgb.png", "Not a JPEG");
    check_jpeg(j, "base", 83, 61, 3);
    jpg_free(j);
    j = jpg_new(&(struct jpg_limits){.pixels = 83 * 61 - 1});
    jpeg_bad(j, "base.jpg", "at most 5062 pixels");
    jpg_free(j);
    j = jpg_new(&(struct jpg_limits){.scans = 2, .memory = 1 << 20});
    jpeg_bad(j, "progressive.jpg", "more than 2 scans");
    jpg_free(j);
    j = jpg_new(&(struct jpg_limits){.memory = 10000});
    jpeg_bad(j, "progressive.jpg", "at most 10000");
    jpg_free(j);
    size_t n;
    char *bytes = golden("truncated.jpg", &n);
    uint32_t w, h;
    uint8_t *p;
    struct error e;
    j = jpg_new(&(struct jpg_limits){.tolerant = true});
    if (jpg_decode(j, bytes, n, 1, &w, &h, &p, &e)) fail_msg("%s", e.text);
    assert_true(jpg_warnings(j) > 0);
    mem_free(p);
    mem_free(bytes);
    jpg_free(j);
}

/* Waves, edges and noise. */
static void paint(uint8_t *rgb, uint32_t w, uint32_t h, uint64_t seed)
{
    uint64_t key = random_key(seed, "image");
    for (uint32_t y = 0; y < h; y++)
        for (uint32_t x = 0; x < w; x++)
            for (uint32_t c = 0; c < 3; c++) {
                uint32_t i = (y * w + x) * 3 + c;
                int noise = (int)(random_bits(key, i) % 61) - 30,
                    v = (int)(128 + 100 * sin((x * (c + 1) + 2 * y) / 9.0)) + noise;
                if ((x / 13 + y / 11) % 5 == 0) v = c * 120;
                rgb[i] = (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
            }
}

/* Both readers give the same rows of an intact file. */
static void check_same(struct jpg *strict, struct jpg *tolerant, const char *bytes, size_t n)
{
    for (uint32_t divisor = 1; divisor <= 4; divisor *= 2) {
        uint32_t w = 0, h = 0, want_w = 0, want_h = 0;
        uint8_t *got = NULL, *want = NULL;
        struct error e;
        if (jpg_decode(strict, bytes, n, divisor, &w, &h, &got, &e) ||
            jpg_decode(tolerant, bytes, n, divisor, &want_w, &want_h, &want, &e))
            fail_msg("%s", e.text);
        assert_true(w == want_w && h == want_h && !jpg_warnings(tolerant));
        assert_int_equal(difference(got, want, (size_t)w * h * 3), 0);
        mem_free(got);
        mem_free(want);
    }
}

/* A byte changed, or the end truncated: the strict reader rejects exactly the files for which the
 * tolerant one counts a warning. After 400 files, most of them damaged, both read an intact one. */
TEST(test_jpeg_damaged)
{
    enum { W = 120, H = 90 };
    struct jpg *strict = jpg_new(NULL), *tolerant = jpg_new(&(struct jpg_limits){.tolerant = true});
    struct text file = {0};
    struct error e;
    uint8_t *rgb = mem_alloc(W * H * 3), *p;
    uint32_t w, h, refused = 0;
    paint(rgb, W, H, 1);
    if (jpg_encode(&file, W, H, rgb, 0, 90, &e)) fail_msg("%s", e.text);
    uint64_t key = random_key(7, "damage");
    for (uint32_t i = 0; i < 400; i++) {
        uint64_t at = random_bits(key, i) % file.n, n = i % 4 ? file.n : at;
        char was = file.at[at];
        if (i % 4) file.at[at] = (char)(was ^ 1 << i % 8);
        bool takes = !jpg_decode(strict, file.at, n, 1 + i % 2, &w, &h, &p, &e);
        mem_free(p);
        bool good = !jpg_decode(tolerant, file.at, n, 1 + i % 2, &w, &h, &p, &e) && !jpg_warnings(tolerant);
        mem_free(p);
        file.at[at] = was;
        refused += !good;
        if (takes != good)
            fail_msg("damage %u at %llu: %s by the strict reader, the tolerant one %s", i, (unsigned long long)at,
                     takes ? "taken" : "refused", good ? "has no warning" : "warns");
    }
    assert_true(refused > 100);
    check_same(strict, tolerant, file.at, file.n);
    text_free(&file);
    mem_free(rgb);
    jpg_free(strict);
    jpg_free(tolerant);
}

TEST(test_jpeg_write)
{
    size_t n;
    uint8_t *pixels = (uint8_t *)golden("base.rgb", &n), *back = NULL;
    struct text file = {0};
    struct jpg_header head;
    struct error e;
    struct jpg *j = jpg_new(NULL);
    uint32_t w = 0, h = 0;
    if (jpg_encode(&file, 83, 61, pixels, 0, 95, &e) || jpg_peek(file.at, file.n, &head, &e) ||
        jpg_decode(j, file.at, file.n, 1, &w, &h, &back, &e))
        fail_msg("%s", e.text);
    assert_int_equal(w, 83);
    assert_int_equal(h, 61);
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (pixels[i] - back[i]) * (pixels[i] - back[i]);
    if (sum / n > 12) fail_msg("mean square error %.1f", sum / n);
    mem_free(back);
    mem_free(pixels);
    text_free(&file);
    jpg_free(j);
}

/* ---- resize ---- */

static void run_resize(const struct resize_view *view, const uint8_t *src)
{
    struct resize r;
    size_t room = resize_scratch(view);
    void *scratch = mem_alloc(room);
    resize_begin(&r, view, scratch, room);
    for (uint32_t y = 0; resize_wants(&r); y++) resize_row(&r, src + (size_t)y * view->width * 3);
    assert_int_equal(r.next, view->to_height);
    mem_free(scratch);
}

static void check_resize(const char *name, struct resize_view v)
{
    char file[64];
    size_t n, want_n;
    snprintf(file, sizeof file, "resize_%s.rgb", name);
    uint8_t *src = (uint8_t *)golden("resize_src.rgb", &n), *want = (uint8_t *)golden(file, &want_n);
    v.width = 150, v.height = 100, v.stride = v.to_width * 3;
    assert_int_equal(want_n, (size_t)v.to_width * v.to_height * 3);
    uint8_t *got = mem_alloc(want_n + 1), *flipped = mem_alloc(want_n + 1);
    got[want_n] = flipped[want_n] = 77; /* nothing is written beyond the end */
    v.to = got;
    run_resize(&v, src);
    int most = difference(got, want, want_n);
    if (most > 1) fail_msg("%s differs by %d", name, most);
    v.to = flipped;
    v.flip = true;
    run_resize(&v, src);
    for (uint32_t y = 0; y < v.to_height; y++)
        for (uint32_t x = 0; x < v.to_width; x++)
            assert_memory_equal(flipped + (y * v.to_width + x) * 3, got + (y * v.to_width + v.to_width - 1 - x) * 3, 3);
    assert_int_equal(got[want_n], 77);
    assert_int_equal(flipped[want_n], 77);
    mem_free(got);
    mem_free(flipped);
    mem_free(src);
    mem_free(want);
}

TEST(test_resize)
{
    check_resize("down", (struct resize_view){.to_width = 64, .to_height = 43});
    check_resize("slight", (struct resize_view){.to_width = 137, .to_height = 91});
    check_resize("up", (struct resize_view){.to_width = 211, .to_height = 141});
    check_resize("crop",
                 (struct resize_view){.x = 20.5, .y = 10.25, .w = 99.5, .h = 70.5, .to_width = 96, .to_height = 64});
    check_resize("tiny", (struct resize_view){.to_width = 7, .to_height = 5});
    check_resize("src", (struct resize_view){.to_width = 150, .to_height = 100}); /* the same size: the same bytes */
}

/* A uniform colour is unchanged at all sizes; so are single pixels. */
TEST(test_resize_flat)
{
    for (uint32_t trial = 0; trial < 200; trial++) {
        struct resize_view v = {.width = 1 + trial * 7 % 61, .height = 1 + trial * 5 % 43,
                                .to_width = 1 + trial * 11 % 53, .to_height = 1 + trial * 3 % 47};
        v.stride = v.to_width * 3;
        uint8_t *src = mem_alloc((size_t)v.width * v.height * 3), *to = mem_alloc(v.stride * v.to_height);
        memset(src, (int)trial + 55, (size_t)v.width * v.height * 3);
        v.to = to;
        run_resize(&v, src);
        for (size_t i = 0; i < v.stride * v.to_height; i++) assert_int_equal(to[i], trial + 55);
        mem_free(src);
        mem_free(to);
    }
}

TEST(test_resize_sizes)
{
    uint32_t w, h;
    resize_longest(2250, 1500, 1024, &w, &h);
    assert_int_equal(w, 1024);
    assert_int_equal(h, 683);
    resize_longest(3, 3000, 1024, &w, &h);
    assert_int_equal(w, 1);
    assert_int_equal(h, 1024);
    for (uint32_t width = 1; width < 3000; width = width * 5 / 4 + 1)
        for (uint32_t height = 1; height < 3000; height = height * 4 / 3 + 1) {
            struct resize_view v = {.width = width, .height = height};
            resize_longest(width, height, 64, &v.to_width, &v.to_height);
            assert_true(resize_scratch(&v) <= resize_scratch_most(3000, 64));
        }
}

/* ---- gunzip ---- */

/* Two members and padding; the same file truncated. `gzip` of "plimsoll\n". */
TEST(test_gunzip)
{
    static const uint8_t member[] = {0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x03,
                                     0x2b, 0xc8, 0xc9, 0xcc, 0x2d, 0xce, 0xcf, 0xc9, 0xe1, 0x02,
                                     0x00, 0x86, 0xf5, 0xcd, 0x8e, 0x09, 0x00, 0x00, 0x00};
    uint8_t file[2 * sizeof member + 100] = {0}, back[64];
    memcpy(file, member, sizeof member);
    memcpy(file + sizeof member, member, sizeof member);
    for (int cut = 0; cut < 3; cut++) {
        FILE *from = tmpfile(), *to = tmpfile();
        struct gunzip_report r;
        struct error e;
        size_t n = cut == 0 ? sizeof file : cut == 1 ? 2 * sizeof member - 10 : 5;
        assert_int_equal(fwrite(file, 1, n, from), n);
        fflush(from);
        lseek(fileno(from), 0, SEEK_SET);
        if (gunzip(fileno(from), fileno(to), &r, &e)) fail_msg("%s", e.text);
        assert_int_equal(r.damaged, cut > 0);
        ssize_t got = pread(fileno(to), back, sizeof back, 0);
        assert_int_equal(got, (ssize_t)r.out);
        if (cut == 0) assert_int_equal(got, 18);
        if (cut == 2) assert_int_equal(got, 0);
        if (cut < 2) assert_memory_equal(back, "plimsoll\n", 9);
        fclose(from);
        fclose(to);
    }
}

/* ---- synthetic scenes ---- */

/* The file reads back; every mask is exactly the shape's visible pixels. */
static void check_scene(const struct synth_options *o, uint64_t id)
{
    struct synth_scene s;
    struct text json = {0};
    struct annotation a;
    struct mask *masks = mem_alloc(o->masks * sizeof *masks);
    struct error e;
    synth_draw(&s, o, id);
    uint32_t n = synth_json(&s, &json);
    if (annotation_read(json.at, json.n, &a, masks, o->masks, &e)) fail_msg("%s", e.text);
    assert_int_equal(a.masks, n);
    assert_true(n > 0 && a.id == (int64_t)id && a.w == o->width && a.h == o->height);
    uint8_t *pixels = mem_alloc((size_t)a.w * a.h);
    for (uint32_t k = 0; k < n; k++) {
        struct rle_facts f;
        assert_int_equal(rle_measure(&masks[k].shape.rle, &f), RLE_OK);
        assert_int_equal(rle_to_pixels(&masks[k].shape.rle, pixels), RLE_OK);
        assert_true(masks[k].area == f.area && masks[k].box[0] == f.x && masks[k].box[1] == f.y);
        assert_true(masks[k].box[2] + 1 == f.w && masks[k].box[3] + 1 == f.h); /* one short */
        uint32_t px = (uint32_t)masks[k].point[0], py = (uint32_t)masks[k].point[1];
        uint16_t owner = s.owner[(size_t)py * a.w + px];
        assert_true(owner > 0);
        for (uint32_t y = 0; y < a.h; y++)
            for (uint32_t x = 0; x < a.w; x++)
                if (pixels[(size_t)x * a.h + y] != (s.owner[(size_t)y * a.w + x] == owner))
                    fail_msg("mask %u is wrong at %u,%u", k, x, y);
    }
    mem_free(pixels);
    mem_free(masks);
    text_free(&json);
    synth_free(&s);
}

TEST(test_synth)
{
    for (uint64_t id = 1; id < 6; id++) check_scene(&(struct synth_options){3, 160, 120, 9}, id);
    check_scene(&(struct synth_options){4, 31, 97, 40}, 7);
    struct synth_scene a, b;
    struct synth_options o = {8, 64, 48, 5};
    synth_draw(&a, &o, 3);
    synth_draw(&b, &o, 3);
    assert_memory_equal(a.rgb, b.rgb, 64 * 48 * 3);
    synth_free(&b);
    synth_draw(&b, &o, 4);
    assert_true(memcmp(a.rgb, b.rgb, 64 * 48 * 3) != 0);
    synth_free(&a);
    synth_free(&b);
}

static bool pixel_set(const void *of, uint32_t x, uint32_t y) { return ((const uint8_t *)of)[y * 5 + x]; }

/* Compares traced runs with those of rle.h, for every 5x3 image. */
TEST(test_trace)
{
    struct traced t = {0};
    for (uint32_t bits = 0; bits < 1 << 15; bits++) {
        uint8_t pixels[15];
        uint32_t runs[16], n;
        for (int k = 0; k < 15; k++) pixels[k] = bits >> k & 1;
        trace_runs(&t, 3, 5, 0, 0, 4, 2, pixel_set, pixels);
        assert_int_equal(rle_from_pixels(pixels, 3, 5, 5, 1, runs, 16, &n), RLE_OK);
        assert_int_equal(t.runs.n, n);
        assert_memory_equal(t.runs.at, runs, n * sizeof *runs);
        assert_int_equal(t.area, __builtin_popcount(bits));
        if (bits) assert_true(pixel_set(pixels, t.point[0], t.point[1]));
    }
    trace_free(&t);
}

/* ---- drawing ---- */

TEST(test_draw)
{
    struct canvas p = canvas_new(40, 30, DRAW_WHITE);
    draw_rect(&p, -5, -5, 10, 10, DRAW_BLACK);
    draw_rect(&p, 38, 28, 100, 100, DRAW_BLACK);
    draw_text(&p, 30, 25, 2, DRAW_BLACK, "cut off\xff");
    draw_point(&p, 0, 29, 6, draw_colour(2));
    draw_box(&p, -3, 10, 60, 10, 2, draw_colour(3));
    assert_int_equal(p.rgb[0], DRAW_BLACK.r);
    assert_int_equal(p.rgb[5 * 3], 255);
    /* A mask of 2x2 with one pixel set covers a quarter of the area, outlined. */
    uint8_t mask[4] = {0, 1, 0, 0}, bits[2] = {2, 0};
    struct canvas q = canvas_new(40, 30, DRAW_WHITE), r = canvas_new(40, 30, DRAW_WHITE);
    struct colour c = {200, 0, 0};
    draw_overlay(&q, (struct draw_area){10, 10, 20, 20}, &(struct draw_mask){mask, 2, 2, 2, false}, c, 0.5, 1);
    draw_overlay(&r, (struct draw_area){10, 10, 20, 20}, &(struct draw_mask){bits, 1, 2, 2, true}, c, 0.5, 1);
    assert_memory_equal(q.rgb, r.rgb, 40 * 30 * 3);
    uint32_t edge = 0, inner = 0;
    for (int i = 0; i < 40 * 30; i++) {
        edge += q.rgb[3 * i + 1] == 0;
        inner += q.rgb[3 * i + 1] == 128;
    }
    assert_int_equal(edge, 36);
    assert_int_equal(inner, 64);
    canvas_free(&p);
    canvas_free(&q);
    canvas_free(&r);
}

MAIN(NULL, NULL)

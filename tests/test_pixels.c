/*
 * test_pixels.c: images for vision towers: resizing, processors, WebP and transparency, references
 * to images. The expected values are Pillow's and transformers', in tests/golden/pixels, which
 * tests/golden/make_pixels.py made.
 *
 * WebP files need libwebp; a build without it checks that they are refused.
 */
#include <sys/resource.h>
#include <sys/stat.h>
#include <fcntl.h>

#include "base/coding.h"
#include "data/images/image.h"
#include "data/images/image_files.h"
#include "data/images/image_processor.h"
#include "data/formats/tar.h"
#include "io/file.h"
#include "io/safetensors.h"

#include "harness.h"
#include "pixel_values.h"

#define GOLDEN "tests/golden/pixels/"

static struct st_file golden;

static void *tensor(const struct st_entry *t)
{
    struct error e;
    void *p = mem_alloc(t->bytes);
    if (st_read(&golden, t, 0, t->bytes, p, &e)) fail_msg("%s", e.text);
    return p;
}

static const struct st_entry *entry(const char *prefix, const char *name)
{
    char full[128];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    const struct st_entry *t = st_find(&golden, full);
    if (!t) fail_msg("no tensor %s", full);
    return t;
}

static struct image image_named(const char *name)
{
    const struct st_entry *t = entry("image.", name);
    return (struct image){.width = (uint32_t)t->dims[1], .height = (uint32_t)t->dims[0], .rgb = tensor(t)};
}

static int difference(const uint8_t *a, const uint8_t *b, size_t n)
{
    int most = 0;
    for (size_t i = 0; i < n; i++) most = abs(a[i] - b[i]) > most ? abs(a[i] - b[i]) : most;
    return most;
}

/* --- resizing ------------------------------------------------------------------------------- */

static const char *const filter_names[] = {"bilinear", "bicubic", "lanczos"};

/* Resizes a part of the result; w 0: all. */
static uint8_t *resized(const struct image *i, enum resize_filter filter, uint32_t w, uint32_t h,
                        const uint32_t part[4], bool flip)
{
    struct resize_view v =
        {.filter = filter, .width = i->width, .height = i->height, .to_width = w, .to_height = h, .flip = flip};
    if (part) v.out_x = part[0], v.out_y = part[1], v.out_w = part[2], v.out_h = part[3];
    v.stride = (size_t)(part ? part[2] : w) * 3;
    v.to = mem_alloc(v.stride * (part ? part[3] : h));
    size_t room = resize_scratch(&v);
    void *scratch = mem_alloc(room);
    struct resize r;
    resize_begin(&r, &v, scratch, room);
    for (uint32_t y = 0; resize_wants(&r); y++) resize_row(&r, i->rgb + (size_t)y * i->width * 3);
    mem_free(scratch);
    return v.to;
}

/* Every case of the file, "resize.IMAGE.FILTER.WxH". */
TEST(test_resize)
{
    uint32_t tried = 0;
    for (uint32_t k = 0; k < golden.n_entries; k++) {
        const struct st_entry *t = &golden.entries[k];
        char image[16], filter[16];
        unsigned w, h;
        if (sscanf(t->name, "resize.%15[a-z].%15[a-z].%ux%u", image, filter, &w, &h) != 4) continue;
        enum resize_filter f = 0;
        while (strcmp(filter, filter_names[f]) != 0) f++;
        struct image i = image_named(image);
        uint8_t *got = resized(&i, f, w, h, NULL, false), *want = tensor(t);
        int most = difference(got, want, t->bytes);
        if (most > 1) fail_msg("%s differs by %d", t->name, most);
        mem_free(got);
        mem_free(want);
        mem_free(i.rgb);
        tried++;
    }
    assert_int_equal(tried, 48);
}

/* A part of the result has the bytes of the whole, mirrored or not. */
TEST(test_resize_part)
{
    struct image i = image_named("wide");
    static const uint32_t parts[][4] = {{0, 0, 33, 27}, {7, 3, 11, 20}, {32, 26, 1, 1}, {0, 26, 33, 1}, {5, 0, 1, 27}};
    for (enum resize_filter f = RESIZE_BILINEAR; f <= RESIZE_LANCZOS; f++)
        for (int flip = 0; flip < 2; flip++) {
            uint8_t *whole = resized(&i, f, 33, 27, NULL, flip);
            for (size_t k = 0; k < COUNT(parts); k++) {
                const uint32_t *p = parts[k];
                uint8_t *got = resized(&i, f, 33, 27, p, flip);
                for (uint32_t y = 0; y < p[3]; y++)
                    assert_memory_equal(got + (size_t)y * p[2] * 3, whole + ((size_t)(p[1] + y) * 33 + p[0]) * 3,
                                        (size_t)p[2] * 3);
                mem_free(got);
            }
            mem_free(whole);
        }
    mem_free(i.rgb);
}

/* --- processors ------------------------------------------------------------------------------ */

static const char *const families[] = {"clip", "siglip", "idefics3", "internvl", "gemma3", "anyres",
                                       "onevision", "beside"};
enum { BESIDE = IMAGES_ONEVISION + 1 }; /* an image of LLaVA-OneVision that is not the only one */

static float *process(const struct image_processor *p, const struct image *i, uint32_t *count, uint32_t *rows,
                      uint32_t *columns, size_t *n)
{
    uint32_t h, w;
    size_t room = image_processor_scratch(p, i->width, i->height);
    void *scratch = mem_alloc(room);
    *count = image_processor_count(p, i->width, i->height, rows, columns);
    image_processor_size(p, &h, &w);
    *n = (size_t)*count * 3 * h * w;
    uint8_t *to = mem_alloc(*n);
    float value[3][256];
    image_processor_run(p, i->rgb, i->width, i->height, scratch, room, to);
    image_processor_values(p, value);
    float *values = pixel_values(to, *n, (size_t)h * w, value);
    mem_free(to);
    mem_free(scratch);
    return values;
}

/* The triangle's bytes may differ from Pillow's by 1; the others are equal. */
static double tolerance(const struct image_processor *p)
{
    return p->filter == RESIZE_BILINEAR ? 1.001 / 255 / 0.26 : 1e-6;
}

static void check_processed(const struct st_entry *t, const char *folder_name, const char *family, const char *image,
                            uint32_t rows, uint32_t columns)
{
    char path[128];
    struct image_processor p;
    struct error e;
    struct image i = image_named(image);
    uint32_t count, got_rows, got_columns;
    size_t n;
    int f = 0;
    while (strcmp(family, families[f]) != 0) f++;
    snprintf(path, sizeof path, GOLDEN "%s", folder_name);
    const enum image_family read = f == BESIDE ? IMAGES_ONEVISION : (enum image_family)f;
    if (image_processor_read(&p, path, read, strstr(folder_name, "_none") ? 14 : 0, &e)) fail_msg("%s", e.text);
    if (f == BESIDE) p = image_processor_beside(&p);
    float *got = process(&p, &i, &count, &got_rows, &got_columns, &n), *want = tensor(t);
    assert_int_equal(count, t->dims[0]);
    assert_int_equal(n * sizeof(float), t->bytes);
    assert_true(got_rows == rows && got_columns == columns);
    for (size_t k = 0; k < n; k++)
        if (fabs((double)got[k] - want[k]) > tolerance(&p))
            fail_msg("%s: element %zu is %.9g; expected %.9g", t->name, k, got[k], want[k]);
    mem_free(got);
    mem_free(want);
    mem_free(i.rgb);
}

/* Every case of the file, "process.FOLDER.FAMILY.IMAGE.ROWSxCOLUMNS". */
TEST(test_processors)
{
    uint32_t tried = 0;
    for (uint32_t k = 0; k < golden.n_entries; k++) {
        char name[32], family[16], image[16];
        unsigned rows, columns;
        if (sscanf(golden.entries[k].name, "process.%31[a-z0-9_].%15[a-z0-9].%15[a-z].%ux%u", name, family, image,
                   &rows, &columns) != 5)
            continue;
        check_processed(&golden.entries[k], name, family, image, rows, columns);
        tried++;
    }
    assert_int_equal(tried, 59);
}

/* A width that rounds down to nothing is one tile: 784 * (1.0 / 784) is below 1. */
TEST(test_narrow_tiles)
{
    struct image_processor p;
    uint32_t rows, columns;
    image_processor_default(&p, IMAGES_IDEFICS3, 112);
    p.longest_edge = 784;
    assert_int_equal(image_processor_count(&p, 1, 784, &rows, &columns), 8);
    assert_int_equal(rows, 7);
    assert_int_equal(columns, 1);
}

/* A very long image costs no more than the crop. */
TEST(test_long_image)
{
    struct image_processor p;
    image_processor_default(&p, IMAGES_CLIP, 336);
    assert_true(image_processor_scratch(&p, 1 << 20, 1) < 16 << 20);
    struct image i = {.width = 3000, .height = 1, .rgb = mem_alloc(9000)};
    memset(i.rgb, 200, 9000);
    uint32_t count, rows, columns;
    size_t n;
    float *got = process(&p, &i, &count, &rows, &columns, &n);
    for (size_t k = 0; k < n; k++)
        assert_true(fabs(got[k] - (200 / 255.0 - p.mean[k / (336 * 336)]) / p.std[k / (336 * 336)]) < 1e-5);
    mem_free(got);
    mem_free(i.rgb);
}

static void refused(const char *json, enum image_family family, uint32_t side, const char *says)
{
    struct image_processor p;
    struct error e = {0};
    if (!image_processor_parse(&p, json, strlen(json), "p.json", family, side, &e)) fail_msg("accepted: %s", json);
    assert_int_equal(e.code, PL_USAGE);
    assert_says(&e, says);
    assert_says(&e, "p.json: ");
}

TEST(test_processor_errors)
{
    refused("{\"image_processor_type\": \"Qwen2VLImageProcessor\"}", IMAGES_CLIP, 0,
            "image_processor_type is Qwen2VLImageProcessor");
    refused("{\"image_processor_type\": \"SmolVLMImageProcessor\"}", IMAGES_CLIP, 0, "splits images into tiles");
    refused("{\"image_processor_type\": \"CLIPImageProcessor\"}", IMAGES_CLIP, 336,
            "makes images of 224 x 224 pixels, and the vision tower takes 336 x 336");
    refused("{\"resample\": 0}", IMAGES_CLIP, 0, "resample is 0; expected 1 (Lanczos)");
    refused("{\"size\": {\"shortest_edge\": 0}}", IMAGES_CLIP, 0, "size.shortest_edge is 0; expected 1 to 4096");
    refused("{\"size\": {\"longest_edge\": 20}}", IMAGES_CLIP, 0, "size is not understood");
    refused("{\"size\": {\"height\": 20}}", IMAGES_SIGLIP, 0, "size is not understood");
    refused("{\"size\": [1, 2, 3]}", IMAGES_SIGLIP, 0, "size has 3 numbers; expected height and width");
    refused("{\"do_center_crop\": false}", IMAGES_CLIP, 0, "images would keep their shape");
    refused("{\"image_mean\": [0.5]}", IMAGES_CLIP, 0, "image_mean has 1 numbers; expected 3");
    refused("{\"image_std\": 0}", IMAGES_CLIP, 0, "image_std is 0; expected numbers above 0");
    refused("{\"do_resize\": 1}", IMAGES_CLIP, 0, "do_resize");
    refused("{\"size\": ", IMAGES_CLIP, 0, "");
    refused("[]", IMAGES_CLIP, 0, "image processor");
    refused("{\"resample\": 2}", IMAGES_ONEVISION, 0, "resample is 2; expected 3 (bicubic)");
    refused("{\"do_resize\": false}", IMAGES_ONEVISION, 0, "do_resize is false; expected true");
    refused("{\"size\": {\"height\": 384, \"width\": 192}}", IMAGES_ONEVISION, 0, "size is 192 x 384");
    refused("{\"crop_size\": {\"height\": 336, \"width\": 336}}", IMAGES_ONEVISION, 0, "expected no crop_size");
    refused("{\"size\": 100}", IMAGES_ONEVISION, 0, "384 x 384 pixels are not divisible by size, which is 100");
    refused("{\"image_processor_type\": \"LlavaNextImageProcessor\"}", IMAGES_ONEVISION, 0,
            "LlavaNextImageProcessor, which makes a whole image and tiles with padding of each; the model expects");
    refused("{\"video_processor_type\": \"V\", \"do_sample_frames\": true, \"num_frames\": 4, \"fps\": 1}",
            IMAGES_ONEVISION, 0, "num_frames and fps are both set");
}

/* --- WebP and transparency -------------------------------------------------------------------- */

static char *file_named(const char *name, size_t *n)
{
    char path[128], *bytes;
    struct error e;
    snprintf(path, sizeof path, GOLDEN "%s", name);
    if (file_read(path, 1 << 24, &bytes, n, &e)) fail_msg("%s", e.text);
    return bytes;
}

static void check_decoded(const char *name, bool on_white, int tolerated)
{
    size_t n;
    char *bytes = file_named(name, &n);
    struct image got;
    struct error e;
    const struct st_entry *t = entry(on_white ? "white." : "drop.", name);
    uint8_t *want = tensor(t);
    if (image_decode(&got, bytes, n, &(struct image_options){.on_white = on_white}, NULL, 0, &e))
        fail_msg("%s: %s", name, e.text);
    assert_true(got.width == t->dims[1] && got.height == t->dims[0]);
    int most = difference(got.rgb, want, t->bytes);
    if (most > tolerated) fail_msg("%s, %s: differs by %d", name, on_white ? "on white" : "alpha dropped", most);
    mem_free(got.rgb);
    mem_free(want);
    mem_free(bytes);
}

TEST(test_transparency)
{
    static const char *const names[] = {"rgb.png", "alpha.png", "grey_alpha.png", "palette.png", "grey_key.png"};
    for (size_t i = 0; i < COUNT(names); i++)
        for (int on_white = 0; on_white < 2; on_white++) check_decoded(names[i], on_white, 0);
}

static void bad_image(const char *name, size_t cut, const char *says)
{
    size_t n;
    char *bytes = file_named(name, &n);
    struct image got;
    struct error e = {0};
    if (!image_decode(&got, bytes, cut ? cut : n, &(struct image_options){0}, NULL, 0, &e))
        fail_msg("%s was accepted", name);
    assert_int_equal(e.code, PL_USAGE);
    assert_null(got.rgb);
    assert_says(&e, says);
    mem_free(bytes);
}

TEST(test_webp)
{
    static const char *const names[] = {"lossless.webp", "alpha.webp", "one.webp", "lossy.webp", "lossy_alpha.webp"};
    if (!webp_version()) {
        for (size_t i = 0; i < COUNT(names); i++)
            bad_image(names[i], 0, "the image is WebP, and this build has no libwebp");
        printf("SKIPPED: decoding of WebP: this build has no libwebp\n");
        return;
    }
    /* Lossy files may be rounded in another way by another version of libwebp. */
    for (size_t i = 0; i < COUNT(names); i++)
        for (int on_white = 0; on_white < 2; on_white++)
            check_decoded(names[i], on_white, strstr(names[i], "lossy") ? 2 : 0);
    bad_image("cut.webp", 0, "the WebP cannot be read: the file ends too early");
    bad_image("damaged.webp", 0, "the WebP cannot be read: ");
    bad_image("animated.webp", 0, "animated");
    bad_image("lossy.webp", 16, "the WebP cannot be read: ");
}

/* A buffer of the caller; what is no image. */
TEST(test_decode)
{
    size_t n, room;
    char *bytes = file_named("alpha.png", &n);
    const struct image_options o = {.on_white = true};
    uint32_t w, h;
    struct image i;
    struct error e;
    uint8_t to[1024];
    if (image_peek(bytes, n, &o, &w, &h, &room, &e)) fail_msg("%s", e.text);
    assert_true(w == 19 && h == 11 && room == 19 * 11 * 4);
    if (image_decode(&i, bytes, n, &o, to, room, &e)) fail_msg("%s", e.text);
    assert_ptr_equal(i.rgb, to);
    assert_int_equal(image_decode(&i, bytes, n, &o, to, room - 1, &e), PL_NOFIT);
    assert_says(&e, "the PNG of 19x11 pixels needs 836 bytes; the buffer has 835");
    assert_int_equal(image_decode(&i, "GIF89a", 6, &o, NULL, 0, &e), PL_USAGE);
    assert_says(&e, "but GIF, which is not read: convert to PNG");
    assert_int_equal(image_decode(&i, "", 0, &o, NULL, 0, &e), PL_USAGE);
    assert_says(&e, "the file is empty");
    assert_int_equal(image_decode(&i, "hello", 5, &o, NULL, 0, &e), PL_USAGE);
    assert_says(&e, "not a JPEG, PNG, WebP or TIFF image");
    bad_image("alpha.png", 80, "the PNG cannot be read");
    mem_free(bytes);
}

/* --- references ------------------------------------------------------------------------------- */

TEST(test_base64)
{
    static const char *const texts[] = {"", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"};
    for (size_t i = 0; i < COUNT(texts); i++) {
        char got[16];
        size_t bad;
        struct text back = {0};
        assert_int_equal(base64_decode(got, texts[i], strlen(texts[i]), &bad), i);
        assert_memory_equal(got, "foobar", i);
        base64_encode(&back, "foobar", i);
        assert_int_equal(back.n, strlen(texts[i]));
        assert_memory_equal(back.at ? back.at : "", texts[i], back.n);
        text_free(&back);
    }
    static const struct {
        const char *text;
        int64_t n;
        size_t bad;
    } odd[] = {{"Zm9v\nYg", 4, 0}, {"_-8", 2, 0}, {"Zm9%", -1, 3},  {"Z", -1, 1},
               {"Zg==Zg", -1, 4},  {"=", -1, 0},  {"Zg===", -1, 4}, {"Zm9v=", -1, 4}};
    for (size_t i = 0; i < COUNT(odd); i++) {
        char got[16];
        size_t bad = 0;
        assert_int_equal(base64_decode(got, odd[i].text, strlen(odd[i].text), &bad), odd[i].n);
        if (odd[i].n < 0) assert_int_equal(bad, odd[i].bad);
    }
}

static char *in_folder(const char *name)
{
    static char path[4][512];
    static int k;
    k = (k + 1) % 4;
    snprintf(path[k], sizeof path[k], "%s/%s", folder, name);
    return path[k];
}

static void put_file(const char *name, const void *bytes, size_t n)
{
    struct error e;
    if (file_write_atomic(in_folder(name), bytes, n, &e)) fail_msg("%s", e.text);
}

static void put_tar(const char *name, const char *const *members, uint32_t n)
{
    struct error e;
    struct tar_writer w = {.fd = open(in_folder(name), O_WRONLY | O_CREAT | O_TRUNC, 0644)};
    for (uint32_t i = 0; i < n; i++)
        if (tar_write_member(&w, members[i], members[i], strlen(members[i]), &e)) fail_msg("%s", e.text);
    if (tar_write_end(&w, &e)) fail_msg("%s", e.text);
    close(w.fd);
}

static void check_reference(struct image_files *f, const char *reference, const char *want)
{
    char got[256] = {0};
    size_t n = 0;
    uint64_t bytes = 0;
    struct error e;
    if (image_files_find(f, reference, &bytes, &e) || image_files_read(f, reference, got, sizeof got, &n, &e))
        fail_msg("%s", e.text);
    assert_int_equal(n, strlen(want));
    assert_true(bytes >= n);
    assert_memory_equal(got, want, n);
}

static void bad_reference(struct image_files *f, const char *reference, const char *says)
{
    char got[256];
    size_t n;
    struct error e = {0};
    if (!image_files_read(f, reference, got, sizeof got, &n, &e)) fail_msg("%s was accepted", reference);
    assert_int_equal(e.code, PL_USAGE);
    assert_says(&e, says);
}

static void put_files(void)
{
    static const char *const members[] = {"./b/two.jpg", "one.png", "a/three.webp"};
    struct error e;
    if (dir_make(in_folder("images/sub"), &e)) fail_msg("%s", e.text);
    put_file("images/a.jpg", "a.jpg", 5);
    put_file("images/sub/b c.png", "b c.png", 7);
    put_tar("images/part.tar", members, COUNT(members));
    put_file("images/z.tar", "\x1f\x8b\x08\x00 gzip", 9);
}

TEST(test_references)
{
    struct image_files *f;
    struct error e;
    char url[600];
    put_files();
    if (image_files_open(&f, &(struct image_scope){.where = in_folder("images"), .anywhere = true}, &e))
        fail_msg("%s", e.text);
    check_reference(f, "a.jpg", "a.jpg");
    check_reference(f, "sub/b c.png", "b c.png");
    check_reference(f, "sub\\b c.png", "b c.png");
    check_reference(f, in_folder("images/a.jpg"), "a.jpg");
    check_reference(f, "part.tar/b/two.jpg", "./b/two.jpg");
    check_reference(f, "part.tar/one.png", "one.png");
    check_reference(f, in_folder("images/part.tar/a/three.webp"), "a/three.webp");
    check_reference(f, "data:image/png;base64,Zm9vYmFy", "foobar");
    snprintf(url, sizeof url, "file://%s", in_folder("images/a.jpg"));
    check_reference(f, url, "a.jpg");
    bad_reference(f, "missing.jpg", "missing.jpg: there is no such file in ");
    bad_reference(f, "/nowhere/missing.jpg", "/nowhere/missing.jpg: there is no such file");
    bad_reference(f, "part.tar/four.jpg", "which has 3 files, such as a/three.webp");
    bad_reference(f, "z.tar/four.jpg", "compressed with gzip");
    bad_reference(f, "https://a.org/b.jpg", "images are not downloaded");
    bad_reference(f, "data:image/png;base64,Zm9*", "its base64 is wrong at character 4");
    bad_reference(f, "data:image/svg+xml,<svg/>", "is not in base64");
    bad_reference(f, "data:image/png;base64", "has no comma");
    bad_reference(f, "", "is empty");
    bad_reference(f, "sub", "folder");
    memset(url, 'x', sizeof url - 1);
    url[sizeof url - 1] = 0;
    memcpy(url, "data:", 5);
    bad_reference(f, url, "xxx...: the data: URL has no comma");
    size_t n;
    char small[4];
    assert_int_equal(image_files_read(f, "a.jpg", small, sizeof small, &n, &e), PL_NOFIT);
    assert_int_equal(n, 5);
    image_files_close(f);
}

/* data.images as a tar; a whole image by a data: URL; no folder. */
TEST(test_reference_roots)
{
    struct image_files *f;
    struct error e;
    put_files();
    if (image_files_open(&f, &(struct image_scope){.where = in_folder("images/part.tar"), .anywhere = true}, &e))
        fail_msg("%s", e.text);
    check_reference(f, "b/two.jpg", "./b/two.jpg");
    check_reference(f, "./one.png", "one.png");
    check_reference(f, in_folder("images/a.jpg"), "a.jpg");
    bad_reference(f, "two.jpg", "it is not in the tar");
    image_files_close(f);
    assert_int_equal(image_files_open(&f, &(struct image_scope){.where = in_folder("none"), .anywhere = true}, &e),
                     PL_USAGE);
    assert_says(&e, "there is no such folder or tar");
    assert_int_equal(
        image_files_open(&f, &(struct image_scope){.where = in_folder("images/a.jpg"), .anywhere = true}, &e),
        PL_USAGE);
    assert_says(&e, "is it a tar?");
    if (image_files_open(&f, &(struct image_scope){.where = NULL, .anywhere = true}, &e)) fail_msg("%s", e.text);
    size_t n, m, want;
    char *url = file_named("image.url", &n), *png = file_named("rgb.png", &want), *got = mem_alloc(n);
    if (image_files_read(f, url, got, n, &m, &e)) fail_msg("%s", e.text);
    assert_int_equal(m, want);
    assert_memory_equal(got, png, want);
    if (image_files_read(f, GOLDEN "rgb.png", got, n, &m, &e)) fail_msg("%s", e.text);
    mem_free(url);
    mem_free(png);
    mem_free(got);
    image_files_close(f);
}

/* Without `anywhere` nothing outside of the folder is read, by whatever name. */
TEST(test_references_outside)
{
    struct image_files *f;
    struct error e;
    char url[600], table[512], *tables[] = {table};
    put_files();
    put_file("secret.png", "secret", 6);
    if (dir_make(in_folder("images2"), &e)) fail_msg("%s", e.text);
    put_file("images2/x.png", "x.png", 5);
    snprintf(table, sizeof table, "%s", in_folder("data.parquet"));
    const struct image_scope inside = {.where = in_folder("images"), .tables = tables, .n_tables = 1};
    if (image_files_open(&f, &inside, &e)) fail_msg("%s", e.text);
    check_reference(f, "a.jpg", "a.jpg");
    check_reference(f, "sub/../a.jpg", "a.jpg");
    check_reference(f, in_folder("images/a.jpg"), "a.jpg");
    check_reference(f, in_folder("images2/../images/a.jpg"), "a.jpg");
    check_reference(f, in_folder("images/part.tar/a/three.webp"), "a/three.webp");
    bad_reference(f, "../secret.png", "../secret.png: it is outside of ");
    bad_reference(f, "sub/../../secret.png", "data.outside_images: true");
    bad_reference(f, "sub\\..\\..\\secret.png", "it is outside of ");
    bad_reference(f, in_folder("secret.png"), "it is outside of ");
    bad_reference(f, in_folder("images2/x.png"), "it is outside of "); /* a folder whose name begins alike */
    snprintf(url, sizeof url, "file://%s", in_folder("secret.png"));
    bad_reference(f, url, "it is outside of ");
    snprintf(url, sizeof url, "parquet:%s/1/0/1", in_folder("other.parquet"));
    bad_reference(f, url, "it is outside of ");
    snprintf(url, sizeof url, "parquet:%s/1/0/1", table); /* the data itself, which may be anywhere */
    bad_reference(f, url, "No such file");
    struct video_at v;
    snprintf(url, sizeof url, "video:%s", in_folder("images2"));
    assert_int_equal(image_files_video(f, url, &v, &e), PL_USAGE);
    assert_says(&e, "it is outside of ");
    image_files_close(f);
    if (image_files_open(&f, &(struct image_scope){.where = in_folder("images/part.tar")}, &e)) fail_msg("%s", e.text);
    check_reference(f, "b/two.jpg", "./b/two.jpg");
    bad_reference(f, in_folder("images/a.jpg"), "it is outside of ");
    image_files_close(f);
}

/* More tars than may be open: each is opened again when it is read. */
TEST(test_many_tars)
{
    static const char *const members[] = {"0.png"};
    struct rlimit before, few;
    struct image_files *f;
    struct error e = {0};
    char name[64], room[16];
    size_t n;
    enum { TARS = 40, LIMIT = 32 };
    if (dir_make(in_folder("many"), &e)) fail_msg("%s", e.text);
    for (int i = 0; i < TARS; i++) {
        snprintf(name, sizeof name, "many/%02d.tar", i);
        put_tar(name, members, COUNT(members));
    }
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before, few.rlim_cur = LIMIT;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    if (image_files_open(&f, &(struct image_scope){.where = in_folder("many")}, &e)) fail_msg("%s", e.text);
    for (int i = 0; i < 2 * TARS; i++) {
        snprintf(name, sizeof name, "%02d.tar/0.png", i % TARS);
        check_reference(f, name, "0.png");
    }
    /* No descriptor is left: a tar that nobody reads is closed, and what cannot be opened has no
     * fault. */
    put_file("many/plain.png", "plain", 5);
    int taken[LIMIT], k = 0;
    while (k < LIMIT && (taken[k] = open("/dev/null", O_RDONLY)) >= 0) k++;
    const int in_tar = image_files_read(f, "20.tar/0.png", room, sizeof room, &n, &e);
    while (k < LIMIT && (taken[k] = open("/dev/null", O_RDONLY)) >= 0) k++;
    const int plain = image_files_read(f, "plain.png", room, sizeof room, &n, &e);
    while (k) close(taken[--k]);
    setrlimit(RLIMIT_NOFILE, &before);
    assert_int_equal(in_tar, PL_OK);
    assert_int_equal(plain, PL_FAIL);
    assert_true(e.no_descriptors);
    assert_says(&e, "Too many open files (raise the limit of open files of a process with `ulimit -n`)");
    /* Another file in the place of a tar is noticed. */
    put_tar("many/new.tar", (const char *const[]){"1.png"}, 1);
    assert_int_equal(rename(in_folder("many/new.tar"), in_folder("many/00.tar")), 0);
    bad_reference(f, "00.tar/0.png", "it is not the tar that it was");
    image_files_close(f);
}

static int open_all(void **state)
{
    struct error e = {0};
    must(st_open(GOLDEN "pixels.safetensors", &golden, &e), &e);
    return make_folder(state);
}

MAIN(open_all, remove_folder)

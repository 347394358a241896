/*
 * test_patches.c: images and videos as the patches of Qwen2-VL, Qwen2.5-VL and Qwen3-VL. The
 * expected values are transformers', in tests/golden/qwen_vl_pixels.json, which
 * tests/golden/make_qwen_vl_pixels.py made: pixel values as their CRC-32, bit for bit.
 */
#include <zlib.h>

#include "data/images/image_reader.h"
#include "io/file.h"
#include "io/json.h"
#include "io/png.h"
#include "text/template/chat_images.h"

#include "harness.h"
#include "pixel_values.h"

static struct bump memory;
static struct value *golden;

static const char *const names[] = {"qwen2_vl", "qwen2_5_vl", "qwen3_vl"};

static enum patch_family family_of(const char *name) { return name[4] == '3' ? PATCHES_QWEN3_VL : PATCHES_QWEN2_VL; }

static uint64_t number(const struct value *v, const char *key)
{
    uint64_t x = 0;
    struct error e;
    must(value_as_uint(value_path(v, key), key, &x, &e), &e);
    return x;
}

static double real(const struct value *v, const char *key)
{
    double x = 0;
    struct error e;
    must(value_as_number(value_get(v, key), key, &x, &e), &e);
    return x;
}

static uint32_t element(const struct value *list, uint32_t i)
{
    uint64_t x;
    struct error e;
    must(value_as_uint(value_at(list, i), "number", &x, &e), &e);
    return (uint32_t)x;
}

/* Writes the files of a family into the folder of the tests. */
static const struct value *write_files(const char *name)
{
    const struct value *family = value_get(golden, name), *files = value_get(family, "files");
    struct error e;
    must(tree_remove(folder, &e), &e);
    must(dir_make(folder, &e), &e);
    for (uint32_t i = 0; i < files->count; i++) {
        struct text t = {0};
        const char *path = bump_format(&memory, "%s/%s", folder, files->items[i]->key);
        json_write(files->items[i], 0, &t);
        must(file_write_atomic(path, t.at, t.n, &e), &e);
        text_free(&t);
    }
    return family;
}

static struct patch_rules rules_of(const char *name, bool videos, const struct patch_overrides *o)
{
    struct patch_rules p;
    struct error e;
    must(patch_rules_read(&p, folder, family_of(name), videos, o, &e), &e);
    return p;
}

/* Makes the pixels of make_qwen_vl_pixels.py's `made`. */
static uint8_t *made(size_t n, bool edges)
{
    uint8_t *rgb = mem_alloc(n);
    for (size_t i = 0; i < n; i++) {
        const uint8_t v = (uint8_t)(((i * 2654435761u & 0xffffffff) ^ (i >> 6) * 97) >> 24);
        rgb[i] = edges ? v > 127 ? 255 : 0 : v;
    }
    return rgb;
}

static void expect_grid(const struct patch_grid *g, const struct value *want)
{
    if (g->t != element(want, 0) || g->h != element(want, 1) || g->w != element(want, 2))
        fail_msg("grid %u %u %u; expected %u %u %u", g->t, g->h, g->w, element(want, 0), element(want, 1),
                 element(want, 2));
}

static void expect_values(const struct patch_rules *p, const struct patch_grid *g, const uint8_t *patches,
                          const struct value *want)
{
    const size_t n = patch_grid_patches(g) * patch_bytes(p);
    float value[3][256];
    patch_values(p, value);
    float *got = pixel_values(patches, n, patch_bytes(p) / 3, value);
    assert_true((double)got[n - 1] == real(want, "last"));
    if (crc32(0, (const Bytef *)got, (uInt)(n * sizeof *got)) != number(want, "values"))
        fail_msg("the pixel values of %llu x %llu pixels are others", (unsigned long long)number(want, "w"),
                 (unsigned long long)number(want, "h"));
    mem_free(got);
}

/* --- images ----------------------------------------------------------------------------------- */

static void check_image(const struct patch_rules *p, const struct value *c, bool edges)
{
    const uint32_t w = (uint32_t)number(c, "w"), h = (uint32_t)number(c, "h");
    struct patch_grid g;
    struct error e;
    must(patch_grid_image(p, w, h, &g, &e), &e);
    expect_grid(&g, value_get(c, "grid"));
    assert_int_equal(patch_grid_tokens(p, &g), number(c, "tokens"));
    const uint64_t room = patch_scratch(p, &g, w, h);
    uint8_t *rgb = made((size_t)w * h * 3, edges);
    void *scratch = mem_alloc(room);
    uint8_t *to = mem_alloc(patch_grid_patches(&g) * patch_bytes(p));
    patch_image(p, &g, rgb, w, h, scratch, room, to);
    expect_values(p, &g, to, c);
    mem_free(to);
    mem_free(scratch);
    mem_free(rgb);
}

TEST(test_images)
{
    for (size_t f = 0; f < COUNT(names); f++) {
        const struct value *list = value_get(write_files(names[f]), "images");
        const struct patch_rules p = rules_of(names[f], false, NULL);
        assert_true(list->count > 10);
        for (uint32_t i = 0; i < list->count; i++) check_image(&p, list->items[i], i % 2);
    }
}

/* --- videos ----------------------------------------------------------------------------------- */

static void expect_text(const struct patch_rules *p, const struct patch_grid *g, const double *seconds,
                        const struct value *want)
{
    struct text t = {0};
    const struct vision_text v = {"<|video_pad|>", "<|vision_start|>", "<|vision_end|>", g->t,
                                  patch_grid_tokens(p, g) / g->t, p->family == PATCHES_QWEN3_VL ? seconds : NULL};
    vision_text_put(&v, &t);
    assert_int_equal(vision_text_features(&v), patch_grid_tokens(p, g));
    assert_int_equal(crc32(0, (const Bytef *)t.at, (uInt)t.n), number(want, "text"));
    text_free(&t);
}

/* Writes the frames from the last one to the first: the order is free. */
static void check_pixels(const struct patch_rules *p, const struct patch_grid *g, const struct value *c,
                         const uint32_t *chosen, uint32_t n, bool edges)
{
    const uint32_t w = (uint32_t)number(c, "w"), h = (uint32_t)number(c, "h");
    const uint64_t room = patch_scratch(p, g, w, h);
    uint8_t *rgb = made(number(c, "frames") * w * h * 3, edges);
    void *scratch = mem_alloc(room);
    uint8_t *to = mem_alloc(patch_grid_patches(g) * patch_bytes(p));
    for (uint32_t i = n; i-- > 0;)
        patch_frame(p, g, i, n, rgb + (size_t)chosen[i] * w * h * 3, w, h, scratch, room, to);
    expect_values(p, g, to, c);
    mem_free(to);
    mem_free(scratch);
    mem_free(rgb);
}

static void check_video(const char *name, const struct value *c, bool edges)
{
    const struct patch_overrides o = {.fps = real(c, "set_fps"), .max_frames = (uint32_t)number(c, "set_max")};
    const struct patch_rules p = rules_of(name, true, &o);
    const struct video_facts v = {.frames = (uint32_t)number(c, "frames"), .fps = real(c, "fps")};
    const struct value *want = value_get(c, "chosen");
    uint32_t chosen[64], n;
    double seconds[64];
    struct patch_grid g;
    struct error e;
    must(patch_frames_choose(&p, &v, chosen, &n, &e), &e);
    assert_int_equal(n, want->count);
    for (uint32_t i = 0; i < n; i++) assert_int_equal(chosen[i], element(want, i));
    must(patch_grid_video(&p, n, (uint32_t)number(c, "w"), (uint32_t)number(c, "h"), &g, &e), &e);
    expect_grid(&g, value_get(c, "grid"));
    assert_true(patch_seconds_per_grid(&p, &v, n) == real(c, "seconds"));
    patch_grid_seconds(&p, &v, chosen, n, seconds);
    expect_text(&p, &g, seconds, c);
    check_pixels(&p, &g, c, chosen, n, edges);
}

TEST(test_videos)
{
    for (size_t f = 0; f < COUNT(names); f++) {
        const struct value *list = value_get(write_files(names[f]), "videos");
        assert_true(list->count > 10);
        for (uint32_t i = 0; i < list->count; i++) check_video(names[f], list->items[i], i % 2);
    }
}

/* A folder of seven images: all of them, at 24 a second or at the user's rate; or some, evenly. */
TEST(test_folder_of_frames)
{
    const struct video_facts v = {.frames = 7};
    uint32_t chosen[7], n;
    double seconds[4];
    struct error e;
    write_files("qwen3_vl");
    struct patch_rules p = rules_of("qwen3_vl", true, NULL);
    must(patch_frames_choose(&p, &v, chosen, &n, &e), &e);
    assert_int_equal(n, 7);
    patch_grid_seconds(&p, &v, chosen, n, seconds);
    assert_true(seconds[0] == (0 + 1 / 24.0) / 2 && seconds[3] == 6 / 24.0);
    p = rules_of("qwen3_vl", true, &(struct patch_overrides){.fps = 0.5, .max_frames = 3});
    must(patch_frames_choose(&p, &v, chosen, &n, &e), &e);
    assert_int_equal(n, 3);
    assert_true(chosen[0] == 0 && chosen[1] == 3 && chosen[2] == 6);
    patch_grid_seconds(&p, &v, chosen, n, seconds);
    assert_true(seconds[0] == 3 && seconds[1] == 12);
    write_files("qwen2_vl");
    p = rules_of("qwen2_vl", true, &(struct patch_overrides){.max_frames = 5});
    must(patch_frames_choose(&p, &v, chosen, &n, &e), &e);
    assert_int_equal(n, 4);
}

/* The chooser in a real folder, whose first image is damaged. */
TEST(test_listing)
{
    uint8_t rgb[30 * 20 * 3] = {0};
    struct bump b = {0};
    struct video_choice c;
    struct error e;
    write_files("qwen3_vl");
    const struct patch_rules p = rules_of("qwen3_vl", true, &(struct patch_overrides){.max_frames = 4});
    const char *frames = bump_format(&b, "%s/frames", folder);
    must(dir_make(frames, &e), &e);
    must(file_write_atomic(bump_format(&b, "%s/0.png", frames), "\x89PNG\r\n\x1a\n", 8, &e), &e);
    for (int i = 1; i < 9; i++)
        must(png_write(bump_format(&b, "%s/%d.png", frames, i), PNG_RGB, 30, 20, rgb, 0, &e), &e);
    const struct video_options o = {.choose = patch_frames_choose, .chooser = &p};
    must(video_list(VIDEO_AT(frames), &o, &b, &c, &e), &e);
    assert_true(c.facts.frames == 9 && c.facts.fps == 0 && c.facts.width == 30 && c.facts.height == 20);
    assert_true(c.n == 4 && c.chosen[0] == 0 && c.chosen[1] == 3 && c.chosen[2] == 5 && c.chosen[3] == 8);
    uint32_t n;
    must(video_scan(VIDEO_AT(frames), &o, &n, &e), &e);
    assert_int_equal(n, 4);
    bump_free(&b);
}

TEST(test_text)
{
    struct text t = {0};
    vision_text_put(&(struct vision_text){"<p>", "<s>", "<e>", 2, 3, (const double[]){0.25, 10.35}}, &t);
    assert_string_equal(t.at, "<0.2 seconds><s><p><p><p><e><10.3 seconds><s><p><p><p><e>");
    text_free(&t);
    vision_text_put(&(struct vision_text){"<p>", "<s>", "<e>", 2, 2, NULL}, &t);
    assert_string_equal(t.at, "<p><p><p><p>");
    text_free(&t);
}

/* --- sizes and choices ------------------------------------------------------------------------ */

TEST(test_sizes)
{
    for (size_t f = 0; f < COUNT(names); f++) {
        const struct value *list = value_get(write_files(names[f]), "sizes");
        const struct patch_rules images = rules_of(names[f], false, NULL), videos = rules_of(names[f], true, NULL);
        for (uint32_t i = 0; i < list->count; i++) {
            const struct value *c = list->items[i];
            const uint32_t frames = element(c, 0), w = element(c, 1), h = element(c, 2);
            struct patch_grid g = {0};
            struct error e;
            if (frames ? patch_grid_video(&videos, frames, w, h, &g, &e) : patch_grid_image(&images, w, h, &g, &e)) {
                assert_says(&e, "expected at most 200 times");
                assert_int_equal(element(c, 4), 0);
            }
            if (g.t != element(c, 3) || g.h != element(c, 4) || g.w != element(c, 5))
                fail_msg("%s, %u frames of %u x %u: %u %u %u", names[f], frames, w, h, g.t, g.h, g.w);
        }
    }
}

TEST(test_choices)
{
    for (size_t f = 0; f < COUNT(names); f++) {
        const struct value *list = value_get(write_files(names[f]), "choices");
        for (uint32_t i = 0; i < list->count; i++) {
            const struct value *c = list->items[i];
            struct video_facts v = {.frames = element(c, 0)};
            struct patch_overrides o = {.max_frames = element(c, 3)};
            uint32_t *chosen = mem_alloc(v.frames * sizeof *chosen), n = 0;
            struct error e;
            must(value_as_number(value_at(c, 1), "fps", &v.fps, &e), &e);
            must(value_as_number(value_at(c, 2), "fps", &o.fps, &e), &e);
            const struct patch_rules p = rules_of(names[f], true, &o);
            must(patch_frames_choose(&p, &v, chosen, &n, &e), &e);
            assert_int_equal(n, element(c, 4));
            assert_int_equal(crc32(0, (const Bytef *)chosen, n * sizeof *chosen), element(c, 5));
            mem_free(chosen);
        }
    }
}

static void expect_refused(const struct patch_rules *p, uint32_t frames, uint32_t w, uint32_t h, const char *says)
{
    struct patch_grid g;
    struct error e = {0};
    assert_int_equal(frames ? patch_grid_video(p, frames, w, h, &g, &e) : patch_grid_image(p, w, h, &g, &e), PL_USAGE);
    assert_says(&e, says);
    assert_null(strchr(e.text, '\n'));
}

TEST(test_bad_sizes)
{
    struct patch_rules images, videos;
    struct patch_grid g;
    struct video_facts one = {.frames = 1, .fps = 25};
    struct error e;
    uint32_t chosen[1], n;
    patch_rules_default(&images, PATCHES_QWEN2_VL, false);
    patch_rules_default(&videos, PATCHES_QWEN3_VL, true);
    expect_refused(&images, 0, 1, 20000, "the image has 1 x 20000 pixels: one side is 20000 times the other");
    expect_refused(&images, 0, 4294967295u, 1, "4294967295 x 1");
    expect_refused(&images, 0, 0, 5, "0 x 5");
    expect_refused(&images, 0, 201, 1, "200");
    expect_refused(&videos, 1, 64, 64, "the video has 1 frames that are used; expected at least 2");
    expect_refused(&videos, 4, 64, 0, "64 x 0");
    expect_refused(&videos, 4, 9000, 20, "the video has");
    assert_int_equal(patch_frames_choose(&videos, &one, chosen, &n, &e), PL_USAGE);
    assert_says(&e, "expected at least 2");
    /* The largest sizes overflow nothing: the area is bounded. */
    must(patch_grid_image(&images, UINT32_MAX, UINT32_MAX, &g, &e), &e);
    assert_true(patch_grid_patches(&g) * 196 <= images.max_pixels);
    assert_true(patch_scratch(&images, &g, UINT32_MAX, UINT32_MAX) == UINT64_MAX);
    must(patch_grid_video(&videos, UINT32_MAX, UINT32_MAX, UINT32_MAX, &g, &e), &e);
    assert_true(g.h == 2 && g.w == 2 && g.t == 2147483648u);
}

/* --- the folder's files ----------------------------------------------------------------------- */

static struct patch_rules parsed(const char *json, enum patch_family family, bool videos,
                                 const struct patch_overrides *o)
{
    struct patch_rules p;
    struct error e;
    must(patch_rules_parse(&p, json, strlen(json), "p.json", family, videos, o, &e), &e);
    return p;
}

TEST(test_config)
{
    const struct patch_overrides o = {.min_pixels = 1000, .max_pixels = 2000};
    struct patch_rules p = parsed("{}", PATCHES_QWEN3_VL, false, NULL), same;
    assert_true(p.patch == 14 && p.min_pixels == 3136 && p.max_pixels == 1003520); /* the class's */
    p = parsed("{\"size\": {\"shortest_edge\": 7, \"longest_edge\": 9000}, \"max_pixels\": 8000, \"min_pixels\": null}",
               PATCHES_QWEN2_VL, false, NULL);
    assert_true(p.min_pixels == 7 && p.max_pixels == 8000);
    p = parsed("{\"max_pixels\": 5}", PATCHES_QWEN3_VL, true, NULL);
    assert_true(p.max_pixels == 786432 && p.fps == 2 && p.sample && p.patch == 16);
    p = parsed("{\"image_processor\": {\"patch_size\": 12}, \"patch_size\": 13}", PATCHES_QWEN2_VL, false, &o);
    assert_true(p.patch == 12 && p.min_pixels == 1000 && p.max_pixels == 2000);
    p = parsed("{\"image_processor_type\": \"Qwen2VLImageProcessorPil\"}", PATCHES_QWEN2_VL, true, NULL);
    same = p;
    assert_true(!p.sample && p.min_pixels == 100352 && patch_rules_hash(&p) == patch_rules_hash(&same));
    same.most_frames = 3;
    assert_true(patch_rules_hash(&p) != patch_rules_hash(&same));
}

TEST(test_config_refused)
{
    static const struct { bool videos; const char *json, *says; } cases[] = {
        {false, "[]", "the image processor"},
        {false, "{\"image_processor_type\": \"CLIPImageProcessor\"}",
         "image_processor_type is CLIPImageProcessor; expected Qwen2VLImageProcessor"},
        {true, "{\"video_processor_type\": \"Qwen3VLVideoProcessor\"}", "expected Qwen2VLVideoProcessor"},
        {true, "{\"image_processor_type\": \"SiglipImageProcessor\"}", "expected Qwen2VLImageProcessor"},
        {false, "{\"do_resize\": false}", "do_resize is false; expected true"},
        {false, "{\"resample\": 2}", "resample is 2; expected 3 (bicubic)"},
        {false, "{\"size\": {\"height\": 5}}", "size has no shortest_edge"},
        {false, "{\"size\": {\"shortest_edge\": 5}}", "size has no longest_edge"},
        {false, "{\"size\": 5}", "size"},
        {false, "{\"min_pixels\": 9000, \"max_pixels\": 8000}", "min_pixels is 9000, and max_pixels is 8000"},
        {false, "{\"max_pixels\": 9999999999}", "expected 1 to 4294967296"},
        {false, "{\"patch_size\": 0}", "patch_size is 0; expected 1 to 256"},
        {false, "{\"merge_size\": 17}", "merge_size is 17"},
        {false, "{\"temporal_patch_size\": -1}", "temporal_patch_size"},
        {false, "{\"rescale_factor\": 0}", "rescale_factor is 0"},
        {false, "{\"rescale_factor\": 1e-300}", "rescale_factor"},
        {false, "{\"image_std\": [0, 1, 1]}", "image_std is 0"},
        {false, "{\"image_mean\": [0.5, 0.5]}", "image_mean has 2 numbers"},
        {true, "{\"do_sample_frames\": true}", "fps is 0"},
        {true, "{\"do_sample_frames\": true, \"fps\": 2, \"num_frames\": 8}", "num_frames is set"},
        {true, "{\"max_frames\": 1}", "max_frames is 1; expected at least 2"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct patch_rules p;
        struct error e = {0};
        const char *json = cases[i].json;
        assert_int_equal(patch_rules_parse(&p, json, strlen(json), "p.json", PATCHES_QWEN2_VL, cases[i].videos, NULL,
                                           &e), PL_USAGE);
        assert_says(&e, "p.json: ");
        assert_says(&e, cases[i].says);
    }
}

/* Without files: what the models are published with. */
TEST(test_default)
{
    struct error e;
    struct patch_rules a, b;
    write_files("qwen3_vl");
    for (int videos = 0; videos < 2; videos++) {
        a = rules_of("qwen3_vl", videos, NULL);
        must(patch_rules_read(&b, "", PATCHES_QWEN3_VL, videos, NULL, &e), &e);
        assert_true(patch_rules_hash(&a) == patch_rules_hash(&b) && a.mean[0] == b.mean[0] && a.std[2] == b.std[2]);
    }
    write_files("qwen2_vl");
    a = rules_of("qwen2_vl", true, NULL);
    patch_rules_default(&b, PATCHES_QWEN2_VL, true);
    assert_true(patch_rules_hash(&a) == patch_rules_hash(&b) && a.mean[1] == b.mean[1]);
}

/* --- the reader ------------------------------------------------------------------------------- */

static void put_png(const char *name, uint32_t w, uint32_t h)
{
    uint8_t *rgb = made((size_t)w * h * 3, false);
    struct error e;
    must(png_write(bump_format(&memory, "%s/%s", folder, name), PNG_RGB, w, h, rgb, 0, &e), &e);
    mem_free(rgb);
}

struct reading {
    struct image_reader_options o;
    struct image_reader *reader;
    struct image_files *files;
    char *room;
};

static void open_reading(struct reading *r, uint64_t room, const struct patch_rules *images,
                         const struct patch_rules *videos)
{
    struct error e;
    r->o = (struct image_reader_options){.patches = images, .video_patches = videos, .room = room};
    must(image_files_open(&r->files, &(struct image_scope){.where = folder, .room = room}, &e), &e);
    r->room = mem_alloc(image_reader_bytes(&r->o));
    r->reader = image_reader_new(&r->o, r->room);
}

static void close_reading(struct reading *r)
{
    image_reader_free(r->reader);
    image_files_close(r->files);
    mem_free(r->room);
}

static enum data_fault read_patches(struct reading *r, const char *reference, const struct patch_grid *g, uint8_t *to,
                                    struct error *e)
{
    const bool video = media_is_video(reference);
    struct patches_read x = {.to = to, .tokens = patch_grid_tokens(video ? r->o.video_patches : r->o.patches, g)};
    return video ? image_reader_video_patches(r->reader, r->files, reference, &x, e)
                 : image_reader_patches(r->reader, r->files, reference, &x, e);
}

static void expect_fault(struct reading *r, const char *reference, const struct patch_grid *g, enum data_fault want,
                         const char *says)
{
    uint8_t to[1];
    struct error e = {0};
    const enum data_fault got = read_patches(r, reference, g, to, &e);
    if (got != want) fail_msg("%s: fault %d, expected %d: %s", reference, got, want, e.text);
    assert_says(&e, says);
    assert_null(strchr(e.text, '\n'));
}

/* The reader gives what patch_image and patch_frame give, and refuses before memory is written. */
TEST(test_reader)
{
    struct patch_rules images, videos;
    struct patch_grid g, other = {1, 2, 2};
    struct error e;
    struct reading r;
    patch_rules_default(&images, PATCHES_QWEN2_VL, false);
    patch_rules_default(&videos, PATCHES_QWEN2_VL, true);
    must(tree_remove(folder, &e), &e);
    must(dir_make(folder, &e), &e);
    must(dir_make(bump_format(&memory, "%s/walk", folder), &e), &e);
    must(dir_make(bump_format(&memory, "%s/mixed", folder), &e), &e);
    put_png("a.png", 70, 40);
    put_png("long.png", 1, 900);
    put_png("large.png", 900, 900);
    put_png("20000.png", 1, 20000);
    for (int i = 0; i < 3; i++) put_png(bump_format(&memory, "walk/%d.png", i), 70, 40);
    put_png("mixed/0.png", 70, 40);
    put_png("mixed/1.png", 40, 70);
    open_reading(&r, 1 << 20, &images, &videos);
    must(patch_grid_image(&images, 70, 40, &g, &e), &e);
    const size_t n = patch_grid_patches(&g) * patch_bytes(&images);
    const uint64_t room = patch_scratch(&images, &g, 70, 40);
    uint8_t *rgb = made(70 * 40 * 3, false);
    uint8_t *want = mem_alloc(n), *got = mem_alloc(2 * n);
    void *scratch = mem_alloc(room);
    patch_image(&images, &g, rgb, 70, 40, scratch, room, want);
    assert_int_equal(read_patches(&r, "a.png", &g, got, &e), FAULT_NONE);
    assert_memory_equal(want, got, n);
    expect_fault(&r, "a.png", &other, FAULT_SIZE, "a.png: it has 70 x 40 pixels, which is not the size");
    expect_fault(&r, "long.png", &g, FAULT_SIZE, "long.png: the image has 1 x 900 pixels: one side is 900 times");
    expect_fault(&r, "20000.png", &g, FAULT_TOO_LARGE, "20000.png: the image has 1 x 20000 pixels");
    expect_fault(&r, "large.png", &g, FAULT_TOO_LARGE, "(data.sample_memory)");
    g.t = 2;
    assert_int_equal(read_patches(&r, "video:walk", &g, got, &e), FAULT_NONE);
    assert_memory_equal(want, got, n);
    assert_memory_equal(want, got + n, n);
    expect_fault(&r, "video:walk", &other, FAULT_IMAGE, "it has 3 frames of 70 x 40 pixels, which is not what");
    mem_free(got);
    mem_free(want);
    mem_free(scratch);
    mem_free(rgb);
    close_reading(&r);
}

/* Frames of two sizes are found while they are read. */
TEST(test_frames_of_two_sizes)
{
    struct patch_rules videos;
    struct patch_grid g;
    struct error e;
    struct reading r;
    patch_rules_default(&videos, PATCHES_QWEN2_VL, true);
    must(patch_grid_video(&videos, 2, 70, 40, &g, &e), &e);
    open_reading(&r, 1 << 20, NULL, &videos);
    uint8_t *to = mem_alloc(patch_grid_patches(&g) * patch_bytes(&videos));
    assert_int_equal(read_patches(&r, "video:mixed", &g, to, &e), FAULT_IMAGE);
    assert_says(&e, "frame 1 has 40 x 70 pixels; expected 70 x 40, the size of the first one");
    mem_free(to);
    close_reading(&r);
}

static int begin(void **state)
{
    struct error e;
    if (json_read_file("tests/golden/qwen_vl_pixels.json", 1 << 20, &memory, &golden, &e))
        return fprintf(stderr, "%s\n", e.text), -1;
    return make_folder(state);
}

static int end(void **state)
{
    bump_free(&memory);
    return remove_folder(state);
}

MAIN(begin, end)

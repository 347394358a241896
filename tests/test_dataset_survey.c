/*
 * test_dataset_survey.c: what mask images and images of 16 bits look like, and what is decided over
 * a dataset. The files in tests/golden/people are as other programs write them; tests/run_labels.sh
 * runs the commands on them.
 */
#include "data/formats/coco.h"
#include "data/masks/label.h"
#include "io/file.h"

#include "harness.h"

static const char people[] = "tests/golden/people/";

/* --- parts of masks --------------------------------------------------------------------------- */

/* Parts of a drawing: h rows of w letters, # is set. */
static uint32_t parts(const char *drawing, uint32_t h, uint32_t w)
{
    uint8_t pixels[256];
    uint32_t runs[257], n, found = 0;
    for (uint32_t i = 0; i < h * w; i++) pixels[i] = drawing[i] == '#';
    assert_int_equal(rle_from_pixels(pixels, h, w, w, 1, runs, 257, &n), RLE_OK);
    assert_int_equal(rle_parts(&(struct rle){.kind = RLE_RUNS, .h = h, .w = w, .at = runs, .n = n}, &found), RLE_OK);
    return found;
}

TEST(test_parts)
{
    assert_int_equal(parts("....", 2, 2), 0);
    assert_int_equal(parts("####", 2, 2), 1);
    assert_int_equal(parts("#..#", 2, 2), 1); /* a corner */
    assert_int_equal(parts("#.##.##.#", 3, 3), 2);
    assert_int_equal(parts("#.#"
                           "#.#"
                           "###", 3, 3), 1); /* joined in the last row */
    assert_int_equal(parts("###"
                           "#.#"
                           "###", 3, 3), 1);
    assert_int_equal(parts("#.#.#"
                           "....."
                           "#####"
                           "....."
                           "#.#.#", 5, 5), 7);
    assert_int_equal(parts("#####"
                           "#...#"
                           "#.#.#"
                           "#...#"
                           "#####", 5, 5), 2);
    assert_int_equal(parts("#.....#"
                           ".#...#."
                           "..#.#.."
                           "...#...", 4, 7), 1);
    assert_int_equal(parts("..#"
                           "#.."
                           "..#", 3, 3), 3);
    uint32_t n;
    assert_int_equal(rle_parts(&(struct rle){.kind = RLE_TEXT, .h = 2, .w = 2, .at = "9", .n = 1}, &n), RLE_BAD_RUN);
}

/* --- looks ------------------------------------------------------------------------------------ */

static struct label_facts *look(const char *name, int ignore)
{
    static struct label_facts f;
    static uint64_t scratch[1 << 17];
    char path[256];
    struct label_image m;
    struct error e;
    snprintf(path, sizeof path, "%s%s", people, name);
    if (label_decode(path, scratch, sizeof scratch, &m, &e)) fail_msg("%s", e.text);
    assert_true(m.h == 64 && m.w == 64);
    label_look(&m, ignore, &f);
    return &f;
}

TEST(test_looks)
{
    static const struct {
        const char *name;
        int ignore;
        enum label_look look;
        uint32_t values;
    } each[] = {
        {"classes/masks/a.png", 0, LOOK_VALUES, 2}, {"classes/masks/a.png", 2, LOOK_ONE, 1},
        {"classes/masks/b.png", 0, LOOK_ONE, 1},    {"white/masks/a.png", 0, LOOK_ONE, 1},
        {"white/masks/a.png", 255, LOOK_EMPTY, 0},  {"soft/masks/a.png", 0, LOOK_SOFT, 0},
        {"jpeg/masks/a.jpg", 0, LOOK_SOFT, 0},      {"jpeg/masks/c.jpg", 0, LOOK_SOFT, 0},
        {"resaved/masks/a.png", 0, LOOK_SOFT, 0},   {"smoothed/masks/a.png", 0, LOOK_SOFT_VALUES, 0},
        {"photos/masks/a.png", 0, LOOK_IMAGE, 0},   {"voc/masks/a.png", 0, LOOK_VALUES, 2},
        {"ids/masks/a.png", 0, LOOK_VALUES, 400},
    };
    for (size_t i = 0; i < COUNT(each); i++) {
        const struct label_facts *f = look(each[i].name, each[i].ignore);
        if (f->look != each[i].look || (each[i].values && f->values != each[i].values))
            fail_msg("%s: look %d, %u values", each[i].name, f->look, f->values);
    }
}

/* Drawn classes, not from a file: thin lines, small objects and nested rings are not soft. */
TEST(test_hard_looks)
{
    enum { N = 48 };
    static uint8_t pixels[N * N];
    static struct label_facts f;
    const struct label_image m = {.h = N, .w = N, .bytes = 1, .pixels = pixels};
    /* lines of one pixel, each its own value */
    for (int i = 0; i < N * N; i++) pixels[i] = (i % N) % 4 == 0 ? (uint8_t)(40 + i % N) : 0;
    label_look(&m, 0, &f);
    assert_true(f.look == LOOK_VALUES && f.values == 12);
    for (int i = 0; i < N * N; i++) { /* rings three pixels wide */
        int x = i % N - N / 2, y = i / N - N / 2, r = abs(x) > abs(y) ? abs(x) : abs(y);
        pixels[i] = (uint8_t)(r < 24 ? 200 - 20 * (r / 3) : 0);
    }
    label_look(&m, 0, &f);
    assert_int_equal(f.look, LOOK_VALUES);
}

/* --- ranges ----------------------------------------------------------------------------------- */

TEST(test_percentiles)
{
    uint64_t *count = mem_alloc(RANGE_VALUES * sizeof *count);
    double w[2];
    const struct pixel_range standard = {0}, tenths = {.percentiles = {10, 90}};
    assert_false(range_percentiles(count, &standard, w));
    assert_int_equal(range_choose(count, &standard).kind, RANGE_FULL);
    count[0] = 1000000; /* the background does not count */
    for (uint32_t v = 1; v <= 1000; v++) count[v] = 1;
    assert_true(range_percentiles(count, &standard, w) && w[0] == 5 && w[1] == 995);
    assert_true(range_percentiles(count, &tenths, w) && w[0] == 100 && w[1] == 900);
    struct pixel_range r = range_choose(count, &standard);
    assert_true(r.kind == RANGE_WINDOW && r.window[0] == 5 && r.window[1] == 995);
    memset(count, 0, RANGE_VALUES * sizeof *count);
    count[700] = 5; /* one value */
    assert_true(range_percentiles(count, &standard, w) && w[0] == 0 && w[1] == 700);
    for (uint32_t v = 0; v < RANGE_VALUES; v++) count[v] = 1;
    assert_int_equal(range_choose(count, &standard).kind, RANGE_FULL);
    mem_free(count);
    for (uint32_t v = 0; v < RANGE_VALUES; v += 37)
        assert_int_equal(range_map(v, (double[]){0, 65535}), (v * 255 + 32767) / 65535);
    assert_true(range_map(3, (double[]){5, 9}) == 0 && range_map(5, (double[]){5, 9}) == 0 &&
                range_map(7, (double[]){5, 9}) == 128 && range_map(40, (double[]){5, 9}) == 255);
}

/* An image through each kind of range, in memory of the caller and on the heap. */
TEST(test_range_decode)
{
    static const char *const names[] = {"deep12/images/a.png", "deep_rgb/images/a.png", "black/images/a.png"};
    for (size_t i = 0; i < COUNT(names); i++) {
        char path[256], *bytes;
        size_t n;
        struct error e;
        struct png_header h;
        snprintf(path, sizeof path, "%s%s", people, names[i]);
        if (file_read(path, 1 << 20, &bytes, &n, &e) || png_peek(bytes, n, &h, &e)) fail_msg("%s", e.text);
        struct png_pixels raw, plain;
        if (png_decode(bytes, n, PNG_AS_SAMPLES, 0, NULL, 0, &raw, &e) ||
            png_decode(bytes, n, PNG_AS_RGB, 0, NULL, 0, &plain, &e))
            fail_msg("%s", e.text);
        const struct pixel_range each[] = {{.kind = RANGE_AUTO},
                                           {.kind = RANGE_FULL},
                                           {.kind = RANGE_PERCENTILES, .percentiles = {5, 80}},
                                           {.kind = RANGE_WINDOW, .window = {500, 1500}}};
        for (size_t k = 0; k < COUNT(each); k++) {
            struct png_pixels a, b;
            double w[2], unused[2];
            size_t room = range_bytes(&h, &each[k]);
            uint64_t *to = mem_alloc(room + 8);
            if (range_decode(bytes, n, &each[k], NULL, 0, &a, w, &e) ||
                range_decode(bytes, n, &each[k], to, room, &b, unused, &e))
                fail_msg("%s", e.text);
            assert_int_equal(range_decode(bytes, n, &each[k], to, room - 1, &b, NULL, &e), PL_USAGE);
            if (range_decode(bytes, n, &each[k], to, room, &b, NULL, &e)) fail_msg("%s", e.text);
            assert_true(a.bytes == 64 * 64 * 3 && b.bytes == a.bytes && a.channels == 3 && a.depth == 8 && b.at == to);
            assert_memory_equal(a.at, b.at, a.bytes);
            if (h.depth == 8 || each[k].kind == RANGE_FULL) {
                assert_memory_equal(a.at, plain.at, a.bytes);
                assert_true(w[1] == (h.depth == 8 ? 0 : 65535));
            } else {
                for (size_t p = 0; p < 64 * 64; p++)
                    for (size_t c = 0; c < 3; c++)
                        assert_int_equal(((uint8_t *)a.at)[3 * p + c],
                                         range_map(((uint16_t *)raw.at)[raw.channels == 3 ? 3 * p + c : p], w));
                if (each[k].kind == RANGE_WINDOW) assert_true(w[0] == 500 && w[1] == 1500);
            }
            mem_free(a.at);
            mem_free(to);
        }
        mem_free(raw.at);
        mem_free(plain.at);
        mem_free(bytes);
    }
}

/* --- datasets --------------------------------------------------------------------------------- */

static struct dataset *open_case(const char *name, const struct dataset_options *given)
{
    char path[256], *paths[] = {path};
    struct dataset_options o = *given;
    struct dataset *d;
    struct error e;
    snprintf(path, sizeof path, "%s%s", people, name);
    o.paths = paths, o.n_paths = 1;
    if (dataset_open(&d, &o, &e)) fail_msg("%s", e.text);
    return d;
}

static uint32_t read_masks(const struct dataset *d, uint64_t i, struct mask *masks)
{
    static uint64_t scratch[1 << 17];
    struct dataset_masks found;
    struct error e;
    return dataset_masks(d, i, scratch, sizeof scratch, masks, 8, &found, &e) ? 0 : found.n;
}

TEST(test_decisions)
{
    struct mask m[8];
    const struct dataset_options pairs = {.format = "pairs"};
    struct dataset *d = open_case("classes", &pairs);
    assert_true(read_masks(d, 1, m) == 1 && m[0].category == 3); /* the only one of its image, and still class 3 */
    assert_true(read_masks(d, 2, m) == 1 && m[0].category == 1);
    dataset_close(d);
    d = open_case("soft", &pairs);
    /* pi 14^2 is 616 */
    assert_true(read_masks(d, 0, m) == 1 && m[0].category == 1 && m[0].area > 560 && m[0].area < 660);
    dataset_close(d);
    d = open_case("voc", &pairs);
    assert_true(read_masks(d, 1, m) == 1 && m[0].category == 15 && m[0].area == 28 * 32);
    dataset_close(d);
    d = open_case("voc", &(struct dataset_options){.format = "pairs", .labels = LABELS_BINARY, .ignore = 255});
    /* the ignored value is never the mask */
    assert_true(read_masks(d, 1, m) == 1 && m[0].category == 1 && m[0].area == 28 * 32);
    dataset_close(d);
    d = open_case("jpeg/table.csv", &(struct dataset_options){.format = "csv"});
    assert_true(read_masks(d, 0, m) == 1 && m[0].category == 1 && read_masks(d, 2, m) == 0);
    dataset_close(d);
    d = open_case("jpeg/table.csv", &(struct dataset_options){.format = "csv", .labels = LABELS_CLASSES});
    struct dataset_masks found;
    struct error e;
    static uint64_t scratch[1 << 17];
    assert_int_equal(dataset_masks(d, 0, scratch, sizeof scratch, m, 8, &found, &e), FAULT_MASK);
    assert_non_null(strstr(e.text, "a.jpg: it is a JPEG"));
    dataset_close(d);
}

/* 1100 rows: 1000 are looked at, and row 10 is not one of them. It has two values where all others
 * have one: it is a fault, not a binary mask. */
TEST(test_sample)
{
    char dir[] = "/tmp/plimsoll-survey-XXXXXX", here[4096], path[128], *paths[] = {path};
    struct text rows = {0}, line = {0};
    struct error e;
    struct mask m[8];
    assert_non_null(mkdtemp(dir));
    assert_non_null(realpath("tests/golden/people/classes", here));
    text_printf(&rows, "image,mask\n");
    for (int i = 0; i < 1100; i++)
        text_printf(&rows, "%s/images/a.jpg,%s/masks/%s.png\n", here, here, i == 10 ? "a" : "b");
    snprintf(path, sizeof path, "%s/t.csv", dir);
    if (file_write_atomic(path, rows.at, rows.n, &e)) fail_msg("%s", e.text);
    struct dataset *d;
    if (dataset_open(&d, &(struct dataset_options){.format = "csv", .paths = paths, .n_paths = 1}, &e))
        fail_msg("%s", e.text);
    const struct dataset_survey *s = dataset_survey(d);
    assert_true(s->labels == 1100 && s->labels_seen == SURVEY_LABELS && s->values == 1);
    assert_true(survey_print_labels(d, &line) &&
                strstr(line.at, "binary, the value 3 in 1000 of 1100 mask images looked at"));
    assert_true(read_masks(d, 9, m) == 1 && m[0].category == 1);
    assert_int_equal(read_masks(d, 10, m), 0);
    dataset_close(d);
    tree_remove(dir, &e);
    text_free(&rows);
    text_free(&line);
}

TEST(test_crowds)
{
    struct mask m[8];
    struct text line = {0};
    struct dataset *d =
        open_case("painted/annotations/instances_default.json", &(struct dataset_options){.format = "coco"});
    assert_true(d->left.one_part == 3 && !d->left.crowds && read_masks(d, 0, m) == 2 && !m[0].crowd && !m[1].crowd);
    dataset_close(d);
    d = open_case("crowd/instances_train.json", &(struct dataset_options){.format = "coco"});
    assert_true(d->left.crowds == 1 && d->left.no_mask == 1 && read_masks(d, 0, m) == 2 && !m[0].crowd && m[1].id == 4);
    assert_true(dataset_print_left(d, false, &line) && strstr(line.at, "1 crowd ") &&
                strstr(line.at, "1 without a segmentation"));
    text_free(&line);
    assert_true(dataset_print_left(d, true, &line) && !strstr(line.at, "crowd"));
    text_free(&line);
    dataset_close(d);
    d = open_case("crowd/instances_train.json", &(struct dataset_options){.format = "coco", .crowds = true});
    assert_true(read_masks(d, 0, m) == 3 && m[1].crowd);
    dataset_close(d);
}

MAIN(NULL, NULL)

/*
 * test_annotation.c: annotation files with their keys in various orders, rejected files with their
 * reasons, and one real file of SA-1B, where it is available.
 */
#include "data/masks/annotation.h"
#include "data/masks/grid.h"
#include "io/file.h"

#include "harness.h"

enum { ROOM = 4 };

/* The text lies in a block of its exact size, so that a read past its end is detected. */
static enum data_fault read_text(const char *text, struct annotation *a, struct mask *masks, struct error *e)
{
    char *exact = mem_copy(text, strlen(text));
    enum data_fault f = annotation_read(exact, strlen(text), a, masks, ROOM, e);
    mem_free(exact);
    return f;
}

#define IMAGE "\"image\": {\"image_id\": 7, \"width\": 4, \"height\": 5, \"file_name\": \"sa_7.jpg\"}"
#define SEGMENT "\"segmentation\": {\"size\": [5, 4], \"counts\": \"62304\"}"

TEST(test_orders)
{
    static const char *const texts[] = {
        "{" IMAGE ", \"annotations\": [{\"bbox\": [1.0, 1.0, 1.0, 1.0], \"area\": 4, " SEGMENT
        ", \"predicted_iou\": 1.019, "
        "\"point_coords\": [[2.25, 1.5]], \"crop_box\": [0, 0, 4, 5], \"id\": 333521560, \"stability_score\": 0.97}]}",
        "\n{\"new\": [1, {\"a\": [null, true, false, -1.5e-3, \"\\\"]}\"]}], \"annotations\": [{\"stability_score\": "
        "97e-2, "
        "\"id\": 333521560, \"crop_box\": [0.0, 0, 4, 5], \"point_coords\": [[2.25, 1.5], [3, 3]], \"predicted_iou\": "
        "1.019,"
        "\"segmentation\": {\"counts\": [6, 2, 3, 2, 7], \"x\": {}, \"size\": [5, 4]}, \"area\": 4.0, \"bbox\": [1, 1, "
        "1, 1]}]," IMAGE "}\n",
    };
    for (size_t i = 0; i < COUNT(texts); i++) {
        struct annotation a;
        struct mask m[ROOM];
        struct error e = {0};
        enum data_fault f = annotation_read(texts[i], strlen(texts[i]), &a, m, ROOM, &e);
        if (f) fail_msg("%s", e.text);
        assert_true(a.id == 7 && a.w == 4 && a.h == 5 && a.masks == 1 && !a.empty);
        assert_true(a.file_name_n == 8 && !memcmp(a.file_name, "sa_7.jpg", 8));
        assert_true(m[0].id == 333521560 && m[0].area == 4 && m[0].predicted_iou == 1.019f && m[0].stability == 0.97f);
        assert_true(m[0].box[3] == 1 && m[0].point[0] == 2.25f && m[0].point[1] == 1.5f && m[0].crop_box[3] == 5);
        struct rle_facts facts;
        assert_int_equal(rle_measure(&m[0].shape.rle, &facts), RLE_OK);
        assert_int_equal(facts.area, 4);
    }
}

TEST(test_refused)
{
    static const struct { const char *text; enum data_fault want;
    } cases[] = {
        {"", FAULT_SYNTAX},
        {"[]", FAULT_SYNTAX},
        {"{}", FAULT_SYNTAX},
        {"{" IMAGE "}", FAULT_SYNTAX},
        {"{" IMAGE ", \"annotations\": []}", FAULT_NONE},
        {"{" IMAGE ", \"annotations\": []} x", FAULT_SYNTAX},
        {"{" IMAGE ", \"annotations\": [],}", FAULT_SYNTAX},
        {"{" IMAGE ", \"annotations\": [{" SEGMENT "}]}", FAULT_NONE},
        {"{" IMAGE ", \"annotations\": [{" SEGMENT "},]}", FAULT_SYNTAX},
        {"{" IMAGE ", \"annotations\": [{\"id\": 1}]}", FAULT_SYNTAX},
        {"{" IMAGE ", \"annotations\": [{\"area\": 0}]}", FAULT_NONE},
        {"{" IMAGE ", \"annotations\": [{\"segmentation\": {\"size\": [5, 4]}}]}", FAULT_SYNTAX},
        {"{" IMAGE ", \"annotations\": [{\"segmentation\": {\"size\": [5, 4, 3], \"counts\": \"62304\"}}]}",
         FAULT_SYNTAX},
        {"{" IMAGE ", \"annotations\": [{\"segmentation\": {\"size\": [0, 4], \"counts\": \"62304\"}}]}", FAULT_SYNTAX},
        {"{" IMAGE ", \"annotations\": [{\"segmentation\": {\"size\": [4, 5], \"counts\": \"62304\"}}]}", FAULT_SIZE},
        {"{" IMAGE ", \"annotations\": [{\"segmentation\": [[1, 1, 2, 2, 3, 1]]}]}", FAULT_SHAPE},
        {"{" IMAGE ", \"annotations\": [{" SEGMENT "},{" SEGMENT "},{" SEGMENT "},{" SEGMENT "},{" SEGMENT "}]}",
         FAULT_MANY},
        {"{" IMAGE ", \"annotations\": [{\"bbox\": [1, 2, 3], " SEGMENT "}]}", FAULT_SYNTAX},
        {"{" IMAGE ", \"annotations\": [{\"id\": 1.5, " SEGMENT "}]}", FAULT_SYNTAX},
        {"{" IMAGE ", \"annotations\": [{\"area\": 1e999, " SEGMENT "}]}", FAULT_SYNTAX},
        {"{" IMAGE ", \"annotations\": [{\"area\": 01, " SEGMENT "}]}", FAULT_SYNTAX},
        {"{\"image\": {\"width\": 2147483647, \"height\": 2147483647}, \"annotations\": []}", FAULT_SIZE},
        {"{\"image\": {\"width\": -4, \"height\": 5}, \"annotations\": []}", FAULT_SYNTAX},
        {"{" IMAGE ", \"a\": \"\\\\\\\"", FAULT_SYNTAX},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct annotation a;
        struct mask m[ROOM];
        struct error e = {0};
        enum data_fault f = read_text(cases[i].text, &a, m, &e);
        if (f != cases[i].want) fail_msg("%s: fault %d (%s), expected %d", cases[i].text, f, e.text, cases[i].want);
        if (f) assert_true(e.code == PL_USAGE && e.text[0]);
    }
    struct text deep = {0};
    text_printf(&deep, "{\"x\": ");
    for (int i = 0; i < 100000; i++) text_append(&deep, "[", 1);
    struct annotation a;
    struct mask m[ROOM];
    struct error e;
    assert_int_equal(read_text(deep.at, &a, m, &e), FAULT_SYNTAX);
    text_free(&deep);
}

/* A file truncated anywhere is rejected, and nothing beyond its end is read. */
TEST(test_truncated)
{
    static const char text[] =
        "{" IMAGE ", \"annotations\": [{\"bbox\": [1.0, 1.0, 1.0, 1.0], \"area\": 4, " SEGMENT "}]}";
    for (size_t n = 0; n < sizeof text - 1; n++) {
        char *part = mem_copy(text, n);
        struct annotation a;
        struct mask m[ROOM];
        struct error e;
        assert_int_equal(annotation_read(part, n, &a, m, ROOM, &e), FAULT_SYNTAX);
        mem_free(part);
    }
}

TEST(test_numbers)
{
    static const char *const numbers[] = {"0",
                                          "-0",
                                          "0.1",
                                          "123456789012345678901234567890",
                                          "1e-400",
                                          "2.5e3",
                                          "0.9783458709716797",
                                          "9007199254740993",
                                          "0.30000000000000004",
                                          "1e22",
                                          "179769313486231570000e288",
                                          "861.5",
                                          "-12.0625",
                                          "0.000000000000000000000001"};
    for (size_t i = 0; i < COUNT(numbers); i++) {
        struct scan s = scan_begin(numbers[i], strlen(numbers[i]));
        double x;
        assert_true(scan_number(&s, &x) && scan_finish(&s));
        assert_true(x == strtod(numbers[i], NULL));
    }
}

/* The whole pipeline on a real file: all areas equal, boxes one pixel short on either side, and the
 * grid equal to decoding and sampling. */
TEST(test_real)
{
    static const char *const places[] = {"../shared/sa1b", "shared/sa1b"};
    const char *given = getenv("PLIMSOLL_SA1B");
    char path[512] = "";
    if (given) snprintf(path, sizeof path, "%s/sa_226381.json", given);
    for (size_t i = 0; i < COUNT(places) && !file_exists(path); i++)
        snprintf(path, sizeof path, "%s/sa_226381.json", places[i]);
    if (!file_exists(path)) {
        printf("skipped: no sa_226381.json in $PLIMSOLL_SA1B or ../shared/sa1b\n");
        skip();
    }
    struct error e;
    char *text;
    size_t n;
    static struct mask masks[256];
    struct annotation a;
    assert_int_equal(file_read(path, 1 << 20, &text, &n, &e), PL_OK);
    uint64_t before = mem_allocations();
    assert_int_equal(annotation_read(text, n, &a, masks, 256, &e), FAULT_NONE);
    assert_true(mem_allocations() == before);
    assert_true(a.id == 226381 && a.w == 2000 && a.h == 1500 && a.masks == 113);
    uint8_t *pixels = mem_alloc(2000 * 1500);
    void *memory = mem_alloc(grid_bytes(2000, 256));
    struct grid g;
    grid_init(&g, memory, 2000, 256);
    struct grid_geometry at = {.h = 1500, .w = 2000, .resized_w = 1024, .resized_h = 768, .canvas_w = 1024,
                               .canvas_h = 1024, .gw = 256, .gh = 256, .flip = true};
    assert_int_equal(grid_set(&g, &at, &e), PL_OK);
    assert_true(g.valid_w == 256 && g.valid_h == 192);
    static uint64_t bits[256 * 4];
    for (uint32_t i = 0; i < a.masks; i++) {
        const struct mask *m = &masks[i];
        struct rle_facts f;
        assert_int_equal(rle_measure(&m->shape.rle, &f), RLE_OK);
        assert_true(f.area == m->area);
        assert_true(f.x == m->box[0] && f.y == m->box[1] && f.w == m->box[2] + 1 && f.h == m->box[3] + 1);
        assert_true(m->predicted_iou > 0.8f && m->stability >= 0.95f && m->point[0] < 2000 && m->crop_box[2] > 0);
        assert_int_equal(rle_to_pixels(&m->shape.rle, pixels), RLE_OK);
        assert_int_equal(grid_raster(&g, &m->shape.rle, bits), RLE_OK);
        for (uint32_t y = 0; y < 256; y++)
            for (uint32_t x = 0; x < 256; x++) {
                int want = y < 192 && pixels[g.column[x] * 1500 + g.row[y]];
                assert_int_equal(bits[y * 4 + x / 64] >> x % 64 & 1, want);
            }
    }
    mem_free(memory);
    mem_free(pixels);
    mem_free(text);
}

MAIN(NULL, NULL)

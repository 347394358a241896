/*
 * test_polygon.c: compares polygons and their unions with pycocotools (tests/golden/rle.txt,
 * written by make_rle.py), and checks rejected input.
 */
#include "data/masks/polygon.h"
#include "io/file.h"

#include "harness.h"

enum { ROOM = 1 << 16 };

TEST(test_golden)
{
    struct error e;
    char *text, *line, *rest;
    size_t size;
    static char encoded[7 * ROOM];
    int cases = 0;
    struct polygon_scratch p;
    void *memory = mem_alloc(polygon_bytes(ROOM));
    polygon_init(&p, memory, ROOM);
    if (file_read("tests/golden/rle.txt", 1 << 20, &text, &size, &e)) fail_msg("%s", e.text);
    for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest), cases++) {
        char *field[4];
        for (int i = 0; i < 4; i++)
            field[i] = i ? strchr(field[i - 1], '|') : line, assert_non_null(field[i]), i ? *field[i]++ = 0 : 0;
        uint32_t h, w, want[5];
        assert_int_equal(sscanf(field[0], "%u %u", &h, &w), 2);
        struct rle m;
        enum rle_status s = polygons_union(field[1], strlen(field[1]), h, w, &p, &m);
        if (s) fail_msg("%s: %s", field[1], rle_status_text(s));
        encoded[rle_encode(m.at, m.n, encoded, sizeof encoded)] = 0;
        assert_string_equal(encoded, field[2]);
        struct rle_facts f;
        assert_int_equal(rle_measure(&m, &f), RLE_OK);
        assert_int_equal(sscanf(field[3], "%u %u %u %u %u", want, want + 1, want + 2, want + 3, want + 4), 5);
        assert_true(f.area == want[0] && f.x == want[1] && f.y == want[2] && f.w == want[3] && f.h == want[4]);
    }
    assert_true(cases > 300);
    mem_free(text);
    mem_free(memory);
}

TEST(test_refused)
{
    static const struct { const char *json; enum rle_status want;
    } cases[] = {
        {"[]", RLE_OK},
        {"[[]]", RLE_OK},
        {"[[1, 1, 2, 2]]", RLE_OK},
        {"[[0, 0, 4, 0, 4, 4, 0, 4]]", RLE_OK},
        {"[[0, 0, 4, 0, 4]]", RLE_BAD_CHAR},
        {"[0, 0, 4, 0, 4, 4]", RLE_BAD_CHAR},
        {"[[0, 0, 4, 0, 4, 4]", RLE_BAD_CHAR},
        {"[[0, 0, 4, 0, 4, \"4\"]]", RLE_BAD_CHAR},
        {"", RLE_BAD_CHAR},
        {"[[0, 0, 1e300, 0, 4, 4]]", RLE_BAD_RUN},
        {"[[0, 0, 90000000, 0, 4, 4]]", RLE_MANY},
        {"[[0, 0, 4, 0, 4, 4]] ]", RLE_BAD_CHAR},
    };
    struct polygon_scratch p;
    uint32_t memory[3 * 64];
    polygon_init(&p, memory, 64);
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct rle m;
        char *exact = mem_copy(cases[i].json, strlen(cases[i].json));
        enum rle_status s = polygons_union(exact, strlen(cases[i].json), 5, 6, &p, &m);
        if (s != cases[i].want)
            fail_msg("%s: %d (%s), expected %d", cases[i].json, s, rle_status_text(s), cases[i].want);
        struct rle_facts f;
        if (!s) assert_int_equal(rle_measure(&m, &f), RLE_OK);
        if (!s && i < 3) assert_int_equal(f.area, 0);
        mem_free(exact);
    }
    struct rle m;
    const char *tall = "[[0, 0, 900, 0, 900, 900]]";
    assert_int_equal(polygons_union(tall, strlen(tall), 1000, 1000, &p, &m), RLE_MANY);
}

MAIN(NULL, NULL)

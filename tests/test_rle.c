/*
 * test_rle.c: compares run lengths with the pixels that they encode. Every text is either rejected
 * or encodes a mask of exactly h * w pixels, and rasterising into a grid equals decoding all pixels
 * and sampling them.
 */
#include "base/random.h"
#include "data/masks/grid.h"

#include "harness.h"

enum { SIDE = 96, PIXELS = SIDE * SIDE, CASES = 3000 };

static uint64_t key, counter;
static uint32_t below(uint32_t n) { return (uint32_t)(random_bits(key, counter++) % n); }
static void seed_at(const char *name, uint64_t i) { key = random_key(i, name), counter = 0; }

/* Random column-major pixels: single dots, blocks, stripes, none, all. */
static void random_pixels(uint8_t *p, uint32_t h, uint32_t w)
{
    uint32_t how = below(6);
    memset(p, how == 5, (size_t)h * w);
    if (how == 0)
        for (uint32_t i = 0; i < h * w; i++) p[i] = below(2) != 0;
    for (uint32_t k = below(4) + 1; how && how < 4 && k; k--) {
        uint32_t x0 = below(w), y0 = below(h), x1 = x0 + below(w - x0) + 1, y1 = y0 + below(h - y0) + 1;
        for (uint32_t x = x0; x < x1; x++)
            for (uint32_t y = y0; y < y1; y++) p[x * h + y] ^= 1;
    }
}

static struct rle text_of(const char *s, uint32_t h, uint32_t w)
{
    return (struct rle){RLE_TEXT, h, w, s, (uint32_t)strlen(s)};
}

TEST(test_example)
{
    uint32_t runs[8], n;
    struct rle m = text_of("62304", 5, 4);
    assert_int_equal(rle_decode(&m, runs, 8, &n), RLE_OK);
    const uint32_t want[] = {6, 2, 3, 2, 7};
    assert_int_equal(n, 5);
    assert_memory_equal(runs, want, sizeof want);
    char out[8];
    assert_int_equal(rle_encode(runs, n, out, sizeof out), 5);
    assert_memory_equal(out, "62304", 5);
    struct rle_facts f;
    assert_int_equal(rle_measure(&m, &f), RLE_OK);
    assert_true(f.area == 4 && f.x == 1 && f.y == 1 && f.w == 2 && f.h == 2 && f.runs == 5);
}

TEST(test_faults)
{
    static const struct { enum rle_kind kind; const char *text; uint32_t h, w; enum rle_status want; } cases[] = {
        {RLE_TEXT, "", 5, 4, RLE_BAD_SUM},
        {RLE_TEXT, "62304", 0, 4, RLE_BAD_SIZE},
        {RLE_TEXT, "62304", 65536, 65536, RLE_BAD_SIZE},
        {RLE_TEXT, "62304", 5, 5, RLE_BAD_SUM},
        {RLE_TEXT, "62304", 4, 4, RLE_BAD_SUM},
        {RLE_TEXT, "6230P", 5, 4, RLE_CUT},
        {RLE_TEXT, "623 4", 5, 4, RLE_BAD_CHAR},
        {RLE_TEXT, "623p4", 5, 4, RLE_BAD_CHAR},
        {RLE_TEXT, "PPPPPPPP1", 5, 4, RLE_LONG},
        {RLE_TEXT, "O", 5, 4, RLE_BAD_RUN},       /* -1 */
        {RLE_TEXT, "00000000000000000000000000", 5, 4, RLE_MANY},
        {RLE_JSON, "\\", 5, 4, RLE_BAD_CHAR},
        {RLE_JSON, "\\n", 5, 4, RLE_BAD_CHAR},
        {RLE_JSON, "\\u00", 5, 4, RLE_BAD_CHAR},
        {RLE_JSON, "\\\\", 5, 4, RLE_CUT},        /* 44 = 12 with more to come */
        {RLE_JSON, "6\\u0032304", 5, 4, RLE_OK},
        {RLE_LIST, "[6, 2,3 ,2, 7]", 5, 4, RLE_OK},
        {RLE_LIST, " [ 20 ] ", 5, 4, RLE_OK},
        {RLE_LIST, "[]", 5, 4, RLE_BAD_SUM},
        {RLE_LIST, "[6, 2", 5, 4, RLE_CUT},
        {RLE_LIST, "[6,, 2]", 5, 4, RLE_BAD_CHAR},
        {RLE_LIST, "[6.0, 14]", 5, 4, RLE_BAD_CHAR},
        {RLE_LIST, "[-6, 14]", 5, 4, RLE_BAD_CHAR},
        {RLE_LIST, "[6, 14,]", 5, 4, RLE_BAD_CHAR},
        {RLE_LIST, "[20]]", 5, 4, RLE_BAD_CHAR},
        {RLE_LIST, "[21]", 5, 4, RLE_BAD_RUN},
        {RLE_LIST, "[99999999999999999999]", 5, 4, RLE_BAD_RUN},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        uint32_t runs[64], n;
        struct rle m = {cases[i].kind, cases[i].h, cases[i].w, cases[i].text, (uint32_t)strlen(cases[i].text)};
        enum rle_status s = rle_decode(&m, runs, 64, &n);
        if (s != cases[i].want)
            fail_msg("%s: status %d (%s), expected %d", cases[i].text, s, rle_status_text(s), cases[i].want);
    }
    uint32_t runs[3], n;
    struct rle m = text_of("62304", 5, 4);
    assert_int_equal(rle_decode(&m, runs, 3, &n), RLE_MANY);
}

/* All four encodings of runs reproduce the pixels; areas, boxes and overlaps equal counting. */
TEST(test_round_trip)
{
    static uint8_t a[PIXELS], b[PIXELS], back[PIXELS];
    static uint32_t runs[2][PIXELS + 1], again[PIXELS + 1];
    static char text[7 * PIXELS], json[14 * PIXELS];
    for (uint64_t i = 0; i < CASES; i++) {
        seed_at("round trip", i);
        uint32_t h = below(i % 8 ? 40 : SIDE) + 1, w = below(i % 8 ? 40 : SIDE) + 1, n, m, k;
        random_pixels(a, h, w);
        random_pixels(b, h, w);
        assert_int_equal(rle_from_pixels(a, h, w, 1, h, runs[0], PIXELS + 1, &n), RLE_OK);
        assert_int_equal(rle_from_pixels(b, h, w, 1, h, runs[1], PIXELS + 1, &m), RLE_OK);
        struct rle ra = {RLE_RUNS, h, w, runs[0], n}, rb = {RLE_RUNS, h, w, runs[1], m};
        size_t length = rle_encode(runs[0], n, text, sizeof text), escaped = 0;
        assert_true(length > 0 && !rle_encode(runs[0], n, json, length - 1));
        for (size_t c = 0; c < length; c++) {
            if (text[c] == '\\') json[escaped++] = '\\';
            json[escaped++] = text[c];
        }
        struct rle forms[] = {ra, {RLE_TEXT, h, w, text, (uint32_t)length}, {RLE_JSON, h, w, json, (uint32_t)escaped}};
        for (size_t f = 0; f < COUNT(forms); f++) {
            assert_int_equal(rle_decode(&forms[f], again, PIXELS + 1, &k), RLE_OK);
            assert_true(k == n && !memcmp(again, runs[0], n * sizeof *again));
            assert_int_equal(rle_to_pixels(&forms[f], back), RLE_OK);
            assert_memory_equal(back, a, h * w);
        }
        /* common: of the union, of the intersection */
        uint32_t area = 0, common[2] = {0}, x0 = w, y0 = h, x1 = 0, y1 = 0;
        for (uint32_t p = 0; p < h * w; p++) {
            area += a[p], common[0] += a[p] | b[p], common[1] += a[p] & b[p];
            if (!a[p]) continue;
            uint32_t x = p / h, y = p % h;
            x0 = x < x0 ? x : x0, y0 = y < y0 ? y : y0, x1 = x >= x1 ? x + 1 : x1, y1 = y >= y1 ? y + 1 : y1;
        }
        struct rle_facts f;
        assert_int_equal(rle_measure(&forms[1], &f), RLE_OK);
        assert_true(f.area == area && f.runs == n);
        if (area) assert_true(f.x == x0 && f.y == y0 && f.w == x1 - x0 && f.h == y1 - y0);
        for (int both = 0; both < 2; both++) {
            assert_int_equal(rle_merge(&forms[2], &rb, both, again, PIXELS + 1, &k), RLE_OK);
            assert_int_equal(rle_measure(&(struct rle){RLE_RUNS, h, w, again, k}, &f), RLE_OK);
            assert_int_equal(f.area, common[both]);
        }
    }
}

/* One character changed, added or removed: rejected, or another mask of the right size. */
TEST(test_mutations)
{
    static uint8_t a[PIXELS];
    static uint32_t runs[PIXELS + 1], again[PIXELS + 1];
    static char text[7 * PIXELS];
    int refused = 0;
    for (uint64_t i = 0; i < CASES; i++) {
        seed_at("mutations", i);
        uint32_t h = below(30) + 1, w = below(30) + 1, n;
        random_pixels(a, h, w);
        assert_int_equal(rle_from_pixels(a, h, w, 1, h, runs, PIXELS + 1, &n), RLE_OK);
        uint32_t length = (uint32_t)rle_encode(runs, n, text, sizeof text), at = below(length);
        uint32_t how = below(3);
        if (how == 0) text[at] = (char)(i % 2 ? below(256) : 48 + below(64));
        if (how == 1) memmove(text + at, text + at + 1, --length - at);
        if (how == 2) memmove(text + at + 1, text + at, length++ - at), text[at] = (char)(48 + below(64));
        char *exact = mem_copy(text, length); /* a sanitizer detects a read past the end */
        struct rle m = {i % 3 ? RLE_TEXT : RLE_JSON, h, w, exact, length};
        enum rle_status s = rle_decode(&m, again, h * w + 1, &n);
        refused += s != RLE_OK;
        if (!s) {
            uint64_t sum = 0;
            for (uint32_t r = 0; r < n; r++) sum += again[r];
            assert_true(sum == (uint64_t)h * w && n <= h * w + 1);
        }
        struct rle_facts f;
        assert_int_equal(rle_measure(&m, &f), s);
        assert_int_equal(rle_to_pixels(&m, a), s);
        mem_free(exact);
    }
    assert_true(refused > CASES / 2);
}

static void random_geometry(struct grid_geometry *g)
{
    *g = (struct grid_geometry){0};
    g->h = below(SIDE) + 1, g->w = below(SIDE) + 1, g->flip = below(2);
    if (below(2)) {
        g->crop_x = below(g->w), g->crop_y = below(g->h);
        g->crop_w = below(g->w - g->crop_x) + 1, g->crop_h = below(g->h - g->crop_y) + 1;
    }
    g->canvas_w = below(200) + 1, g->canvas_h = below(200) + 1;
    g->resized_w = below(g->canvas_w) + 1, g->resized_h = below(g->canvas_h) + 1;
    g->gw = below(150) + 1, g->gh = below(150) + 1;
}

/* The definition in plain arithmetic: the source pixel of cell (c, r), or -1. */
static int64_t source(const struct grid_geometry *g, uint32_t c, uint32_t r)
{
    uint32_t cw = g->crop_w ? g->crop_w : g->w, ch = g->crop_h ? g->crop_h : g->h;
    int64_t x = (int64_t)(2 * c + 1) * g->canvas_w * cw / (2 * (int64_t)g->gw * g->resized_w);
    int64_t y = (int64_t)(2 * r + 1) * g->canvas_h * ch / (2 * (int64_t)g->gh * g->resized_h);
    if (x >= cw || y >= ch) return -1;
    if (g->flip) x = cw - 1 - x;
    return (g->crop_x + x) * g->h + g->crop_y + y;
}

TEST(test_grid)
{
    static uint8_t a[PIXELS], row_major[PIXELS];
    static uint32_t runs[PIXELS + 1];
    static char text[7 * PIXELS];
    static uint64_t bits[150 * 3], labels[150 * 3];
    void *memory = mem_alloc(grid_bytes(SIDE, 150));
    struct grid g;
    grid_init(&g, memory, SIDE, 150);
    for (uint64_t i = 0; i < CASES; i++) {
        struct grid_geometry at;
        struct error e;
        uint32_t n;
        seed_at("grid", i);
        random_geometry(&at);
        random_pixels(a, at.h, at.w);
        assert_int_equal(grid_set(&g, &at, &e), PL_OK);
        assert_int_equal(rle_from_pixels(a, at.h, at.w, 1, at.h, runs, PIXELS + 1, &n), RLE_OK);
        uint32_t length = (uint32_t)rle_encode(runs, n, text, sizeof text);
        struct rle m = {RLE_TEXT, at.h, at.w, text, length};
        memset(bits, 0xa5, sizeof bits);
        assert_int_equal(grid_raster(&g, &m, bits), RLE_OK);
        for (uint32_t p = 0; p < at.h * at.w; p++) row_major[p % at.h * at.w + p / at.h] = a[p];
        grid_raster_label(&g, row_major, at.w, 1, 1, labels);
        assert_memory_equal(bits, labels, grid_mask_bytes(at.gw, at.gh));
        const uint8_t *bytes = (const uint8_t *)bits;
        uint64_t count = 0;
        for (uint32_t r = 0; r < at.gh; r++)
            for (uint32_t c = 0; c < g.stride * 8; c++) {
                int64_t p = c < at.gw ? source(&at, c, r) : -1;
                int want = p >= 0 ? a[p] : 0, got = bytes[r * g.stride + c / 8] >> c % 8 & 1;
                if (want != got) fail_msg("case %u: cell %u, %u is %d, expected %d", (unsigned)i, c, r, got, want);
                count += (uint64_t)got;
            }
        assert_true(grid_count(&g, bits) == count);
    }
    struct error e;
    struct grid_geometry bad = {.h = 5, .w = 5, .crop_x = 3, .crop_y = 0, .crop_w = 3, .crop_h = 5, .resized_w = 8,
                                .resized_h = 8, .canvas_w = 8, .canvas_h = 8, .gw = 8, .gh = 8};
    assert_int_equal(grid_set(&g, &bad, &e), PL_USAGE);
    struct rle other = text_of("62304", 5, 4);
    assert_int_equal(grid_raster(&g, &other, bits), RLE_BAD_SIZE);
    mem_free(memory);
}

MAIN(NULL, NULL)

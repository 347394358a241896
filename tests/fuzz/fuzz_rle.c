/*
 * fuzz_rle.c: any bytes as a mask. The first 5 bytes are the kind of text, the height and the
 * width; the rest is the text. An accepted mask covers exactly h * w pixels, is the same for every
 * reader, survives encoding, and keeps its pixels when resampled to its own size.
 */

#include "data/masks/grid.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SIDE = 128 };

static void check_mask(const struct rle *m, const uint32_t *runs, uint32_t n)
{
    static char text[7 * (SIDE * SIDE + 1)];
    static uint32_t again[SIDE * SIDE + 1];
    static uint64_t memory[4096], bits[SIDE * SIDE / 64];
    uint32_t length = (uint32_t)rle_encode(runs, n, text, sizeof text), count;
    struct rle encoded = {RLE_TEXT, m->h, m->w, text, length};
    CHECK(!rle_decode(&encoded, again, SIDE * SIDE + 1, &count) && count == n && !memcmp(runs, again, n * sizeof *runs),
          "runs that do not survive");
    struct rle_facts f;
    CHECK(!rle_measure(m, &f) && f.runs == n, "facts of a good mask");
    struct grid g;
    CHECK(grid_bytes(SIDE, SIDE) <= sizeof memory);
    grid_init(&g, memory, SIDE, SIDE);
    struct grid_geometry at = {.h = m->h, .w = m->w, .resized_w = m->w, .resized_h = m->h, .canvas_w = m->w,
                               .canvas_h = m->h, .gw = m->w, .gh = m->h};
    struct error e;
    CHECK(!grid_set(&g, &at, &e), "%s", e.text);
    CHECK(!grid_raster(&g, m, bits), "a good mask that cannot be rasterised");
    CHECK(grid_count(&g, bits) == f.area, "a grid of another area");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint32_t runs[SIDE * SIDE + 1];
    if (size < 5) return 0;
    struct rle m = {data[0] % 3, data[1] | data[2] << 8, data[3] | data[4] << 8, data + 5, (uint32_t)(size - 5)};
    uint32_t n;
    if (m.h > SIDE || m.w > SIDE) { /* only parsed: the buffers here are too small for such a mask */
        struct rle_facts f;
        rle_measure(&m, &f);
        return 0;
    }
    struct rle_facts f;
    enum rle_status s = rle_decode(&m, runs, SIDE * SIDE + 1, &n);
    CHECK(rle_measure(&m, &f) == s, "two readers disagree");
    if (!s) check_mask(&m, runs, n);
    return 0;
}

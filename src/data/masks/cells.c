/*
 * cells.c: see cells.h.
 *
 *     image   |........x.......|           w pixels
 *     cells     |....c....|....|             over_w / per of them cover the image
 *
 * The centre of pixel x lies in cell (x + 1/2) * over_w / (per * w). The arithmetic is in integers.
 */
#include "data/masks/cells.h"

#include <string.h>

static inline uint32_t cell_of(uint32_t x, uint32_t w, uint32_t over, uint32_t per, uint32_t cells)
{
    uint64_t c = (2ull * x + 1) * over / (2ull * w * per);
    return c < cells ? (uint32_t)c : cells - 1;
}

static inline bool cell_at(const struct shape *s, const uint8_t *row, uint32_t x)
{
    return s->cells.id ? row[x] == s->cells.id : row[x / 8] >> x % 8 & 1;
}

/* Whether there is no crop or flip, and the image covers the same number of cells in both. */
static bool same_grid(const struct shape *s, const struct grid *g)
{
    const struct grid_geometry *a = &g->at;
    uint64_t per = s->cells.per;
    return !s->cells.id && !a->flip && a->crop_w == a->w && a->crop_h == a->h && a->gw == s->cells.w &&
           a->gh == s->cells.h && (uint64_t)s->cells.over_w * a->canvas_w == (uint64_t)a->resized_w * a->gw * per &&
           (uint64_t)s->cells.over_h * a->canvas_h == (uint64_t)a->resized_h * a->gh * per;
}

static void copy_rows(const struct shape *s, const struct grid *g, uint8_t *to)
{
    size_t whole = g->valid_w / 8;
    for (uint32_t y = 0; y < g->valid_h; y++) {
        const uint8_t *from = (const uint8_t *)s->cells.at + y * s->cells.stride;
        uint8_t *row = to + (size_t)y * g->stride;
        memcpy(row, from, whole);
        if (g->valid_w % 8) row[whole] = (uint8_t)(from[whole] & ((1u << g->valid_w % 8) - 1));
    }
}

void cells_raster(const struct shape *s, const struct grid *g, void *bits)
{
    memset(bits, 0, (size_t)g->stride * g->at.gh);
    if (same_grid(s, g)) {
        copy_rows(s, g, bits);
        return;
    }
    for (uint32_t r = 0; r < g->valid_h; r++) {
        uint32_t y = cell_of(g->row[r], s->h, s->cells.over_h, s->cells.per, s->cells.h);
        const uint8_t *from = (const uint8_t *)s->cells.at + y * s->cells.stride;
        uint64_t *row = (uint64_t *)(void *)((char *)bits + (size_t)r * g->stride);
        for (uint32_t c = 0; c < g->valid_w; c++) {
            uint32_t x = cell_of(g->column[c], s->w, s->cells.over_w, s->cells.per, s->cells.w);
            row[c / 64] |= (uint64_t)cell_at(s, from, x) << c % 64;
        }
    }
}

static bool cell_is_on(const void *of, uint32_t y, uint32_t x)
{
    const struct shape *s = of;
    return cell_at(s, (const uint8_t *)s->cells.at + y * s->cells.stride, x);
}

void cells_measure(const struct shape *s, struct rle_facts *f)
{
    rle_measure_pixels(f, s->cells.h, s->cells.w, cell_is_on, s);
}

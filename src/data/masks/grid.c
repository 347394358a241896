/*
 * grid.c: lookup tables, and rasterising masks with them (see grid.h).
 *
 * A run of ones is a vertical segment of one column, or of several. Only its two ends are
 * written: bit c is toggled in the first row of the segment and in the first row below it. After
 * all runs, each row is xor-ed with the row above, which turns toggles into filled segments, 64
 * columns at a time. A run costs two writes, independent of its length, and a source column that
 * no cell samples (most of them, when an image shrinks) costs one table lookup.
 */
#include "data/masks/grid.h"

/* Cells [first, end) sample this source column; `next` is the first column from this one on that
 * any cell samples (w: none). */
struct grid_span {
    uint32_t next;
    uint16_t first, end;
};

/* Returns the bytes of the tables, each of which starts 8-byte aligned. */
static size_t columns_bytes(uint32_t side) { return ((size_t)side + 1) * sizeof(struct grid_span); }
static size_t above_bytes(uint32_t side) { return align_up(((size_t)side + 1) * sizeof(uint16_t), 8); }
static size_t cells_bytes(uint32_t cells) { return align_up((size_t)cells * sizeof(uint32_t), 8); }

size_t grid_bytes(uint32_t max_side, uint32_t max_cells)
{
    return columns_bytes(max_side) + above_bytes(max_side) + 2 * cells_bytes(max_cells);
}

void grid_init(struct grid *g, void *memory, uint32_t max_side, uint32_t max_cells)
{
    char *at = memory;
    CHECK((uintptr_t)at % 8 == 0 && max_cells <= GRID_MAX_CELLS);
    *g = (struct grid){.max_side = max_side, .max_cells = max_cells};
    g->columns = (struct grid_span *)at;
    g->column = (uint32_t *)(at += columns_bytes(max_side));
    g->row = (uint32_t *)(at += cells_bytes(max_cells));
    g->above = (uint16_t *)(at + cells_bytes(max_cells));
}

/* Computes, along one axis, the source positions of the cells in the resized window; returns their
 * number. The centre of cell c lies at (c + 1/2) * canvas / cells on the canvas and at that times
 * window / resized in the window. The arithmetic is in integers, so no rounding error decides. */
static uint32_t sample_axis(uint32_t *to, uint32_t cells, uint32_t canvas, uint32_t resized, uint32_t from,
                            uint32_t window, bool flip)
{
    uint32_t c = 0;
    for (; c < cells; c++) {
        uint64_t centre = (2ull * c + 1) * canvas, unit = 2ull * cells * resized;
        if (centre >= unit) break;
        uint32_t p = (uint32_t)(centre * window / unit);
        to[c] = from + (flip ? window - 1 - p : p);
    }
    return c;
}

static void invert_columns(struct grid *g)
{
    uint32_t w = g->at.w;
    for (uint32_t x = 0; x <= w; x++) g->columns[x] = (struct grid_span){.next = w};
    for (uint32_t c = 0; c < g->valid_w; c++) {
        struct grid_span *s = &g->columns[g->column[c]];
        if (s->first == s->end) s->first = (uint16_t)c;
        s->end = (uint16_t)(c + 1);
    }
    for (uint32_t x = w, next = w; x-- > 0; g->columns[x].next = next)
        if (g->columns[x].first != g->columns[x].end) next = x;
}

static void invert_rows(struct grid *g)
{
    uint32_t r = 0;
    for (uint32_t y = 0; y <= g->at.h; y++) {
        while (r < g->valid_h && g->row[r] < y) r++;
        g->above[y] = (uint16_t)r;
    }
}

int grid_set(struct grid *g, const struct grid_geometry *geometry, struct error *e)
{
    struct grid_geometry a = *geometry;
    if (!a.crop_w && !a.crop_h) a.crop_x = a.crop_y = 0, a.crop_w = a.w, a.crop_h = a.h;
    if (!a.w || !a.h || a.w > g->max_side || a.h > g->max_side)
        return error_set(e, PL_USAGE, "the image has %u x %u pixels; expected sides of 1 to %u", a.w, a.h, g->max_side);
    if (!a.gw || !a.gh || a.gw > g->max_cells || a.gh > g->max_cells)
        return error_set(e, PL_USAGE, "the grid has %u x %u cells; expected sides of 1 to %u", a.gw, a.gh,
                         g->max_cells);
    if (!a.crop_w || !a.crop_h || a.crop_w > a.w || a.crop_x > a.w - a.crop_w || a.crop_h > a.h ||
        a.crop_y > a.h - a.crop_h)
        return error_set(e, PL_USAGE, "the crop of %u x %u at %u, %u is outside of the image of %u x %u", a.crop_w,
                         a.crop_h, a.crop_x, a.crop_y, a.w, a.h);
    if (!a.resized_w || !a.resized_h || a.resized_w > a.canvas_w || a.resized_h > a.canvas_h ||
        a.canvas_w > 1u << 20 || a.canvas_h > 1u << 20)
        return error_set(e, PL_USAGE, "the image resized to %u x %u is larger than the canvas of %u x %u", a.resized_w,
                         a.resized_h, a.canvas_w, a.canvas_h);
    g->at = a;
    g->stride = (uint32_t)grid_stride(a.gw);
    g->valid_w = sample_axis(g->column, a.gw, a.canvas_w, a.resized_w, a.crop_x, a.crop_w, a.flip);
    g->valid_h = sample_axis(g->row, a.gh, a.canvas_h, a.resized_h, a.crop_y, a.crop_h, false);
    invert_columns(g);
    invert_rows(g);
    return PL_OK;
}

/* --- runs to bits ------------------------------------------------------------------- */

/* The rows between the first and the last toggle; rows above and below are 0. */
struct raster {
    const struct grid *g;
    uint64_t *bits;
    uint32_t words; /* 64-bit words of a row */
    uint32_t top, bottom;
};

static void toggle(uint64_t *row, uint32_t first, uint32_t end)
{
    for (uint32_t c = first; c < end; c++) row[c / 64] ^= 1ull << c % 64;
}

/* Marks rows y0 <= y < y1 of one source column. */
static inline void mark(struct raster *t, const struct grid_span *s, uint32_t y0, uint32_t y1)
{
    uint32_t r0 = t->g->above[y0], r1 = t->g->above[y1];
    if (r0 == r1) return;
    toggle(t->bits + (size_t)r0 * t->words, s->first, s->end);
    if (r1 < t->g->valid_h) toggle(t->bits + (size_t)r1 * t->words, s->first, s->end);
    if (r0 < t->top) t->top = r0;
    if (r1 > t->bottom) t->bottom = r1;
}

/* Marks a run of `run` ones from (x, y) down, continuing in the columns to the right. */
static inline void mark_run(struct raster *t, uint32_t x, uint32_t y, uint32_t run)
{
    const struct grid_span *columns = t->g->columns;
    uint32_t h = t->g->at.h;
    if (run <= h - y) {
        if (columns[x].first != columns[x].end) mark(t, &columns[x], y, y + run);
        return;
    }
    uint32_t last = x + (y + run - 1) / h, end = (y + run - 1) % h + 1;
    for (uint32_t c = columns[x].next; c <= last && c < t->g->at.w; c = columns[c + 1].next)
        mark(t, &columns[c], c == x ? y : 0, c == last ? end : h);
}

static void fill_down(struct raster *t)
{
    for (uint32_t r = t->top + 1; r < t->bottom; r++) {
        uint64_t *row = t->bits + (size_t)r * t->words, *above = row - t->words;
        for (uint32_t i = 0; i < t->words; i++) row[i] ^= above[i];
    }
    /* clear the toggles below the lowest segment */
    if (t->bottom && t->bottom < t->g->valid_h) memset(t->bits + (size_t)t->bottom * t->words, 0, t->g->stride);
}

enum rle_status grid_raster(const struct grid *g, const struct rle *m, void *bits)
{
    struct raster t = {.g = g, .bits = bits, .words = g->stride / 8, .top = g->valid_h};
    struct rle_reader r;
    uint32_t run, x = 0, y = 0, h = m->h;
    if (m->h != g->at.h || m->w != g->at.w) return RLE_BAD_SIZE;
    memset(bits, 0, (size_t)g->stride * g->at.gh);
    enum rle_status s = rle_open(&r, m);
    while (!s && !(s = rle_next(&r, &run))) {
        if (run && !(r.count & 1)) mark_run(&t, x, y, run);
        y += run;
        if (y >= h) {
            x += y / h;
            y %= h;
        }
    }
    if (s != RLE_END) return s;
    fill_down(&t);
    return RLE_OK;
}

/* --- label images ------------------------------------------------------------------- */

void grid_raster_label(const struct grid *g, const void *pixels, size_t stride, int pixel_bytes, uint32_t id,
                       void *bits)
{
    memset(bits, 0, (size_t)g->stride * g->at.gh);
    for (uint32_t r = 0; r < g->valid_h; r++) {
        const uint8_t *from = (const uint8_t *)pixels + g->row[r] * stride;
        uint64_t *row = (uint64_t *)((char *)bits + (size_t)r * g->stride);
        for (uint32_t c = 0; c < g->valid_w; c++) {
            uint32_t x = g->column[c];
            uint16_t wide = 0;
            if (pixel_bytes == 2) memcpy(&wide, from + 2 * (size_t)x, sizeof wide);
            else wide = from[x];
            row[c / 64] |= (uint64_t)(wide == id) << c % 64;
        }
    }
}

uint64_t grid_count(const struct grid *g, const void *bits)
{
    const uint64_t *words = bits;
    uint64_t count = 0;
    for (size_t i = 0, n = (size_t)g->stride / 8 * g->at.gh; i < n; i++)
        count += (uint64_t)__builtin_popcountll(words[i]);
    return count;
}

/* ---- Cells ----
 *
 * image   |........x.......|           w pixels
 *     cells     |....c....|....|             over_w / per of them cover the image
 *
 * The centre of pixel x lies in cell (x + 1/2) * over_w / (per * w). The arithmetic is in integers.
 */

static inline uint32_t cell_of(uint32_t x, uint32_t w, uint32_t over, uint32_t per, uint32_t cells)
{
    uint64_t c = (2ull * x + 1) * over / (2ull * w * per);
    return c < cells ? (uint32_t)c : cells - 1;
}

static inline bool cell_at(const struct shape *s, const uint8_t *row, uint32_t x)
{
    return s->cells.id ? row[x] == s->cells.id : row[x / 8] >> x % 8 & 1;
}

/* Reports whether there is no crop or flip, and the image covers the same number of cells in
 * both. */
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

/*
 * draw.c: drawing on RGB images in memory.
 *
 * Invariant: every write goes through put(), blend() or a rectangle that is clipped to the image,
 * so no coordinate of a caller is used as an address unchecked.
 */
#include "report/draw.h"

#include <math.h>

#include "data/images/resize.h"

/* Printable ASCII from the space on: seven rows of five dots, the leftmost is bit 4. */
static const uint8_t letters[95][7] = {
    {0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00}, {0x04, 0x04, 0x04, 0x04, 0x04, 0x00, 0x04},
    {0x0a, 0x0a, 0x0a, 0x00, 0x00, 0x00, 0x00}, {0x0a, 0x0a, 0x1f, 0x0a, 0x1f, 0x0a, 0x0a},
    {0x04, 0x0f, 0x14, 0x0e, 0x05, 0x1e, 0x04}, {0x18, 0x19, 0x02, 0x04, 0x08, 0x13, 0x03},
    {0x0c, 0x12, 0x14, 0x08, 0x15, 0x12, 0x0d}, {0x04, 0x04, 0x08, 0x00, 0x00, 0x00, 0x00},
    {0x02, 0x04, 0x08, 0x08, 0x08, 0x04, 0x02}, {0x08, 0x04, 0x02, 0x02, 0x02, 0x04, 0x08},
    {0x00, 0x04, 0x15, 0x0e, 0x15, 0x04, 0x00}, {0x00, 0x04, 0x04, 0x1f, 0x04, 0x04, 0x00},
    {0x00, 0x00, 0x00, 0x00, 0x0c, 0x04, 0x08}, {0x00, 0x00, 0x00, 0x1f, 0x00, 0x00, 0x00},
    {0x00, 0x00, 0x00, 0x00, 0x00, 0x0c, 0x0c}, {0x00, 0x01, 0x02, 0x04, 0x08, 0x10, 0x00},
    {0x0e, 0x11, 0x13, 0x15, 0x19, 0x11, 0x0e}, {0x04, 0x0c, 0x04, 0x04, 0x04, 0x04, 0x0e},
    {0x0e, 0x11, 0x01, 0x02, 0x04, 0x08, 0x1f}, {0x1f, 0x02, 0x04, 0x02, 0x01, 0x11, 0x0e},
    {0x02, 0x06, 0x0a, 0x12, 0x1f, 0x02, 0x02}, {0x1f, 0x10, 0x1e, 0x01, 0x01, 0x11, 0x0e},
    {0x06, 0x08, 0x10, 0x1e, 0x11, 0x11, 0x0e}, {0x1f, 0x01, 0x02, 0x04, 0x08, 0x08, 0x08},
    {0x0e, 0x11, 0x11, 0x0e, 0x11, 0x11, 0x0e}, {0x0e, 0x11, 0x11, 0x0f, 0x01, 0x02, 0x0c},
    {0x00, 0x0c, 0x0c, 0x00, 0x0c, 0x0c, 0x00}, {0x00, 0x0c, 0x0c, 0x00, 0x0c, 0x04, 0x08},
    {0x02, 0x04, 0x08, 0x10, 0x08, 0x04, 0x02}, {0x00, 0x00, 0x1f, 0x00, 0x1f, 0x00, 0x00},
    {0x08, 0x04, 0x02, 0x01, 0x02, 0x04, 0x08}, {0x0e, 0x11, 0x01, 0x02, 0x04, 0x00, 0x04},
    {0x0e, 0x11, 0x01, 0x0d, 0x15, 0x15, 0x0e}, {0x0e, 0x11, 0x11, 0x1f, 0x11, 0x11, 0x11},
    {0x1e, 0x11, 0x11, 0x1e, 0x11, 0x11, 0x1e}, {0x0e, 0x11, 0x10, 0x10, 0x10, 0x11, 0x0e},
    {0x1c, 0x12, 0x11, 0x11, 0x11, 0x12, 0x1c}, {0x1f, 0x10, 0x10, 0x1e, 0x10, 0x10, 0x1f},
    {0x1f, 0x10, 0x10, 0x1e, 0x10, 0x10, 0x10}, {0x0e, 0x11, 0x10, 0x17, 0x11, 0x11, 0x0f},
    {0x11, 0x11, 0x11, 0x1f, 0x11, 0x11, 0x11}, {0x0e, 0x04, 0x04, 0x04, 0x04, 0x04, 0x0e},
    {0x07, 0x02, 0x02, 0x02, 0x02, 0x12, 0x0c}, {0x11, 0x12, 0x14, 0x18, 0x14, 0x12, 0x11},
    {0x10, 0x10, 0x10, 0x10, 0x10, 0x10, 0x1f}, {0x11, 0x1b, 0x15, 0x15, 0x11, 0x11, 0x11},
    {0x11, 0x11, 0x19, 0x15, 0x13, 0x11, 0x11}, {0x0e, 0x11, 0x11, 0x11, 0x11, 0x11, 0x0e},
    {0x1e, 0x11, 0x11, 0x1e, 0x10, 0x10, 0x10}, {0x0e, 0x11, 0x11, 0x11, 0x15, 0x12, 0x0d},
    {0x1e, 0x11, 0x11, 0x1e, 0x14, 0x12, 0x11}, {0x0f, 0x10, 0x10, 0x0e, 0x01, 0x01, 0x1e},
    {0x1f, 0x04, 0x04, 0x04, 0x04, 0x04, 0x04}, {0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x0e},
    {0x11, 0x11, 0x11, 0x11, 0x11, 0x0a, 0x04}, {0x11, 0x11, 0x11, 0x15, 0x15, 0x15, 0x0a},
    {0x11, 0x11, 0x0a, 0x04, 0x0a, 0x11, 0x11}, {0x11, 0x11, 0x11, 0x0a, 0x04, 0x04, 0x04},
    {0x1f, 0x01, 0x02, 0x04, 0x08, 0x10, 0x1f}, {0x0e, 0x08, 0x08, 0x08, 0x08, 0x08, 0x0e},
    {0x00, 0x10, 0x08, 0x04, 0x02, 0x01, 0x00}, {0x0e, 0x02, 0x02, 0x02, 0x02, 0x02, 0x0e},
    {0x04, 0x0a, 0x11, 0x00, 0x00, 0x00, 0x00}, {0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x1f},
    {0x08, 0x04, 0x02, 0x00, 0x00, 0x00, 0x00}, {0x00, 0x00, 0x0e, 0x01, 0x0f, 0x11, 0x0f},
    {0x10, 0x10, 0x16, 0x19, 0x11, 0x11, 0x1e}, {0x00, 0x00, 0x0e, 0x10, 0x10, 0x11, 0x0e},
    {0x01, 0x01, 0x0d, 0x13, 0x11, 0x11, 0x0f}, {0x00, 0x00, 0x0e, 0x11, 0x1f, 0x10, 0x0e},
    {0x06, 0x09, 0x08, 0x1c, 0x08, 0x08, 0x08}, {0x00, 0x0f, 0x11, 0x11, 0x0f, 0x01, 0x0e},
    {0x10, 0x10, 0x16, 0x19, 0x11, 0x11, 0x11}, {0x04, 0x00, 0x0c, 0x04, 0x04, 0x04, 0x0e},
    {0x02, 0x00, 0x06, 0x02, 0x02, 0x12, 0x0c}, {0x10, 0x10, 0x12, 0x14, 0x18, 0x14, 0x12},
    {0x0c, 0x04, 0x04, 0x04, 0x04, 0x04, 0x0e}, {0x00, 0x00, 0x1a, 0x15, 0x15, 0x11, 0x11},
    {0x00, 0x00, 0x16, 0x19, 0x11, 0x11, 0x11}, {0x00, 0x00, 0x0e, 0x11, 0x11, 0x11, 0x0e},
    {0x00, 0x00, 0x1e, 0x11, 0x1e, 0x10, 0x10}, {0x00, 0x00, 0x0d, 0x13, 0x0f, 0x01, 0x01},
    {0x00, 0x00, 0x16, 0x19, 0x10, 0x10, 0x10}, {0x00, 0x00, 0x0e, 0x10, 0x0e, 0x01, 0x1e},
    {0x08, 0x08, 0x1c, 0x08, 0x08, 0x09, 0x06}, {0x00, 0x00, 0x11, 0x11, 0x11, 0x13, 0x0d},
    {0x00, 0x00, 0x11, 0x11, 0x11, 0x0a, 0x04}, {0x00, 0x00, 0x11, 0x11, 0x15, 0x15, 0x0a},
    {0x00, 0x00, 0x11, 0x0a, 0x04, 0x0a, 0x11}, {0x00, 0x00, 0x11, 0x11, 0x0f, 0x01, 0x0e},
    {0x00, 0x00, 0x1f, 0x02, 0x04, 0x08, 0x1f}, {0x02, 0x04, 0x04, 0x08, 0x04, 0x04, 0x02},
    {0x04, 0x04, 0x04, 0x04, 0x04, 0x04, 0x04}, {0x08, 0x04, 0x04, 0x02, 0x04, 0x04, 0x08},
    {0x00, 0x00, 0x08, 0x15, 0x02, 0x00, 0x00},
};

/* ---- images ---- */

struct canvas canvas_new(uint32_t w, uint32_t h, struct colour c)
{
    struct canvas p = {w, h, mem_alloc((size_t)w * h * 3)};
    draw_rect(&p, 0, 0, (int)w, (int)h, c);
    return p;
}

void canvas_free(struct canvas *p)
{
    mem_free(p->rgb);
    memset(p, 0, sizeof *p);
}

static inline uint8_t *pixel(const struct canvas *p, int x, int y)
{
    return p->rgb + ((size_t)y * p->w + (size_t)x) * 3;
}

static inline bool inside(const struct canvas *p, int x, int y)
{
    return x >= 0 && y >= 0 && x < (int)p->w && y < (int)p->h;
}

static inline void put(struct canvas *p, int x, int y, struct colour c)
{
    if (inside(p, x, y)) memcpy(pixel(p, x, y), &c, 3);
}

static void blend(struct canvas *p, int x, int y, struct colour c, double strength)
{
    if (!inside(p, x, y)) return;
    uint8_t *at = pixel(p, x, y);
    const uint8_t with[3] = {c.r, c.g, c.b};
    for (int k = 0; k < 3; k++) at[k] = (uint8_t)(at[k] + (with[k] - at[k]) * strength + 0.5);
}

/* Places neighbouring hues a golden ratio apart, so a few in a row differ clearly. Three brightness
 * levels in turn distinguish colours whose hues come close, such as the first and the tenth. */
struct colour draw_colour(uint32_t i)
{
    double hue = fmod(0.01 + i * 0.61803398875, 1) * 6, deep[] = {1.0, 0.82, 0.92}, pale[] = {0.15, 0.05, 0.35};
    double high = deep[i % 3], low = pale[i % 3] * high, channel[3];
    for (int k = 0; k < 3; k++) {
        /* share of the channel: <= 0 none, >= 1 full */
        double d = fabs(fmod(hue + (k == 0 ? 0 : k == 1 ? 4 : 2), 6) - 3) - 1;
        channel[k] = low + (high - low) * (d < 0 ? 0 : d > 1 ? 1 : d);
    }
    return (struct colour){(uint8_t)(channel[0] * 255), (uint8_t)(channel[1] * 255), (uint8_t)(channel[2] * 255)};
}

void draw_rect(struct canvas *p, int x, int y, int w, int h, struct colour c)
{
    int x1 = (int)min_i64((int64_t)x + w, p->w), y1 = (int)min_i64((int64_t)y + h, p->h);
    for (int v = y < 0 ? 0 : y; v < y1; v++)
        for (int u = x < 0 ? 0 : x; u < x1; u++) memcpy(pixel(p, u, v), &c, 3);
}

void draw_box(struct canvas *p, int x, int y, int w, int h, int line, struct colour c)
{
    draw_rect(p, x, y, w, line, c);
    draw_rect(p, x, y + h - line, w, line, c);
    draw_rect(p, x, y, line, h, c);
    draw_rect(p, x + w - line, y, line, h, c);
}

void draw_point(struct canvas *p, int x, int y, int radius, struct colour c)
{
    for (int v = -radius; v <= radius; v++)
        for (int u = -radius; u <= radius; u++) {
            int distance2 = u * u + v * v;
            if (distance2 <= radius * radius)
                put(p, x + u, y + v, distance2 > (radius - 2) * (radius - 2) ? DRAW_WHITE : c);
        }
}

static void draw_image(struct canvas *p, int x, int y, const struct canvas *what)
{
    for (uint32_t v = 0; v < what->h; v++)
        for (uint32_t u = 0; u < what->w; u++)
            if (inside(p, x + (int)u, y + (int)v))
                memcpy(pixel(p, x + (int)u, y + (int)v), pixel(what, (int)u, (int)v), 3);
}

struct draw_area draw_fit(struct canvas *p, int x, int y, uint32_t w, uint32_t h, const struct canvas *what)
{
    double scale = fmin((double)w / what->w, (double)h / what->h);
    struct canvas small = {(uint32_t)max_i64((int64_t)(what->w * scale + 0.5), 1),
                           (uint32_t)max_i64((int64_t)(what->h * scale + 0.5), 1), NULL};
    small.rgb = mem_alloc((size_t)small.w * small.h * 3);
    struct resize_view view = {.width = what->w, .height = what->h, .to_width = small.w, .to_height = small.h,
                               .to = small.rgb, .stride = (size_t)small.w * 3};
    size_t room = resize_scratch(&view);
    void *scratch = mem_alloc(room);
    struct resize r;
    resize_begin(&r, &view, scratch, room);
    for (uint32_t v = 0; resize_wants(&r); v++) resize_row(&r, what->rgb + (size_t)v * what->w * 3);
    struct draw_area area = {x + ((int)w - (int)small.w) / 2, y + ((int)h - (int)small.h) / 2, small.w, small.h};
    draw_image(p, area.x, area.y, &small);
    mem_free(scratch);
    canvas_free(&small);
    return area;
}

/* ---- letters ---- */

static void draw_letter(struct canvas *p, int x, int y, int scale, struct colour c, unsigned char letter)
{
    static const uint8_t unknown[7] = {0x1f, 0x11, 0x11, 0x11, 0x11, 0x11, 0x1f};
    const uint8_t *rows = letter >= 32 && letter < 127 ? letters[letter - 32] : unknown;
    for (int v = 0; v < 7; v++)
        for (int u = 0; u < 5; u++)
            if (rows[v] >> (4 - u) & 1) draw_rect(p, x + u * scale, y + v * scale, scale, scale, c);
}

void draw_text(struct canvas *p, int x, int y, int scale, struct colour c, const char *text)
{
    for (; *text; text++, x += DRAW_LETTER_W * scale) draw_letter(p, x, y, scale, c, (unsigned char)*text);
}

static int draw_text_width(int scale, const char *text) { return (int)strlen(text) * DRAW_LETTER_W * scale; }

/* Draws text truncated to a width, with two dots at the end when it is truncated. */
static void draw_text_cut(struct canvas *p, int x, int y, int scale, struct colour c, const char *text, int width)
{
    char line[128];
    size_t most = (size_t)max_i64(min_i64(width / (DRAW_LETTER_W * scale), sizeof line - 1), 2), n = strlen(text);
    snprintf(line, sizeof line, "%.*s%s", (int)(n > most ? most - 2 : n), text, n > most ? ".." : "");
    draw_text(p, x, y, scale, c, line);
}

/* ---- masks ---- */

static bool mask_at(const struct draw_mask *m, int64_t x, int64_t y)
{
    if (x < 0 || y < 0 || x >= m->w || y >= m->h) return false;
    const uint8_t *row = m->at + (size_t)y * m->stride;
    return m->bits ? row[x / 8] >> (x % 8) & 1 : row[x] != 0;
}

/* Reports whether the mask is set at pixel (u, v) of the area: the mask pixel under its centre. */
static bool covers(const struct draw_mask *m, struct draw_area at, int u, int v)
{
    if (u < 0 || v < 0 || u >= (int)at.w || v >= (int)at.h) return false;
    return mask_at(m, (2 * (int64_t)u + 1) * m->w / (2 * (int64_t)at.w),
                   (2 * (int64_t)v + 1) * m->h / (2 * (int64_t)at.h));
}

static bool on_edge(const struct draw_mask *m, struct draw_area at, int u, int v, int line)
{
    for (int d = 1; d <= line; d++)
        if (!covers(m, at, u - d, v) || !covers(m, at, u + d, v) || !covers(m, at, u, v - d) ||
            !covers(m, at, u, v + d))
            return true;
    return false;
}

void draw_overlay(struct canvas *p, struct draw_area at, const struct draw_mask *m, struct colour c, double strength,
                  int line)
{
    for (int v = 0; v < (int)at.h; v++)
        for (int u = 0; u < (int)at.w; u++)
            if (covers(m, at, u, v)) blend(p, at.x + u, at.y + v, c, on_edge(m, at, u, v, line) ? 1 : strength);
}

/* ---- sheets ---- */

enum { GAP = 12, TITLE = 34 };

static uint32_t most_lines(const struct draw_cell *cells, uint32_t n)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < COUNT(cells[i].lines); k++)
            if (cells[i].lines[k] && k + 1 > most) most = k + 1;
    return most;
}

struct canvas draw_sheet(const char *title, const struct draw_cell *cells, uint32_t n, uint32_t columns,
                         uint32_t cell_w, uint32_t cell_h)
{
    enum { LINE = 20 };
    uint32_t lines = most_lines(cells, n), step_x = cell_w + GAP, step_y = cell_h + lines * LINE + GAP;
    if (columns > n && n) columns = n;
    uint32_t rows = (n + columns - 1) / columns, top = title ? TITLE : 0;
    int width = (int)(columns * step_x + GAP), titled = title ? draw_text_width(2, title) + 2 * GAP : 0;
    struct canvas p = canvas_new((uint32_t)(width > titled ? width : titled), top + rows * step_y + GAP, DRAW_WHITE);
    if (title) draw_text(&p, GAP, GAP, 2, DRAW_BLACK, title);
    for (uint32_t i = 0; i < n; i++) {
        int x = (int)(GAP + i % columns * step_x), y = (int)(top + GAP + i / columns * step_y);
        draw_fit(&p, x, y, cell_w, cell_h, &cells[i].image);
        for (uint32_t k = 0; k < lines; k++)
            if (cells[i].lines[k])
                draw_text_cut(&p, x, y + (int)(cell_h + 6 + k * LINE), 2, k ? DRAW_GREY : DRAW_BLACK, cells[i].lines[k],
                              (int)cell_w);
    }
    return p;
}

/* ---- bars ---- */

struct canvas draw_bars(const char *title, const struct draw_bar *bars, uint32_t n, uint32_t width)
{
    enum { ROW = 22 };
    int label = 0, shown = 0;
    double most = 0;
    for (uint32_t i = 0; i < n; i++) {
        label = (int)max_i64(label, draw_text_width(2, bars[i].label));
        shown = (int)max_i64(shown, draw_text_width(2, bars[i].shown));
        if (bars[i].value > most) most = bars[i].value;
    }
    struct canvas p = canvas_new(width, TITLE + n * ROW + GAP, DRAW_WHITE);
    draw_text(&p, GAP, GAP, 2, DRAW_BLACK, title);
    int room = (int)width - label - shown - 5 * GAP, from = GAP + label + GAP;
    if (room < 0) room = 0;
    for (uint32_t i = 0; i < n; i++) {
        int y = (int)(TITLE + i * ROW), length = most > 0 ? (int)(room * bars[i].value / most + 0.5) : 0;
        draw_text(&p, GAP, y + 2, 2, DRAW_BLACK, bars[i].label);
        draw_rect(&p, from, y, length > 0 ? length : 1, 18, (struct colour){58, 110, 165});
        draw_text(&p, from + length + GAP / 2, y + 2, 2, DRAW_GREY, bars[i].shown);
    }
    return p;
}

struct canvas draw_stack(const struct canvas *parts, uint32_t n)
{
    uint32_t w = 1, h = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (parts[i].w > w) w = parts[i].w;
        h += parts[i].h;
    }
    struct canvas p = canvas_new(w, h ? h : 1, DRAW_WHITE);
    for (uint32_t i = 0, y = 0; i < n; y += parts[i++].h) draw_image(&p, 0, (int)y, &parts[i]);
    return p;
}

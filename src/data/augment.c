/*
 * augment.c: see loader.h.
 *
 * The map goes from the result to the canvas as it was filled, about the centres of both images: it
 * undoes the rotation, then the vertical flip, then the turn. Without a rotation the map has whole
 * coefficients, so that every pixel of the result is one of the canvas.
 */
#include "data/loader.h"

#include <math.h>

#include "base/random.h"
#include "data/masks/grid.h"

/* Numbers of the position's stream; fill.c has those below. */
enum { DRAW_VERTICAL = 16, DRAW_TURN, DRAW_WHICH, DRAW_ROTATE, DRAW_BRIGHTNESS, DRAW_CONTRAST, DRAW_GAMMA, DRAW_NOISE };

static double draw(uint64_t key, uint64_t i) { return (double)(random_bits(key, i) >> 11) * 0x1p-53; }
static double draw_around(uint64_t key, uint64_t i, double most) { return most * (2 * draw(key, i) - 1); }

/* --- the map ---------------------------------------------------------------------------------- */

static void draw_map(struct augment *o, const struct loader_augment *a, uint64_t key)
{
    static const double cosines[] = {1, 0, -1, 0}, sines[] = {0, 1, 0, -1};
    const bool flip = draw(key, DRAW_VERTICAL) < a->flip_vertical;
    const uint32_t turn = draw(key, DRAW_TURN) < a->turn ? 1 + (uint32_t)(3 * draw(key, DRAW_WHICH)) : 0;
    const double angle = a->rotate > 0 ? draw_around(key, DRAW_ROTATE, a->rotate) * (acos(-1) / 180) : 0;
    const double c = cosines[turn], s = sines[turn], y = flip ? -1 : 1;
    const double rc = angle != 0 ? cos(angle) : 1, rs = angle != 0 ? sin(angle) : 0;
    if (!flip && !turn && angle == 0) return;
    o->moves = true;
    if (turn % 2) o->rows = o->from_columns, o->columns = o->from_rows;
    /* turn * flip * rotation, as rows of a matrix */
    const double m[2][2] = {{c * rc - s * y * rs, -c * rs - s * y * rc}, {s * rc + c * y * rs, -s * rs + c * y * rc}};
    for (int i = 0; i < 2; i++) {
        memcpy(o->map[i], m[i], sizeof m[i]);
        o->map[i][2] =
            (i ? o->from_rows : o->from_columns) / 2.0 - m[i][0] * o->columns / 2.0 - m[i][1] * o->rows / 2.0;
    }
}

struct augment augment_draw(const struct loader_augment *a, uint64_t key, uint32_t rows, uint32_t columns)
{
    struct augment o = {.rows = rows, .columns = columns, .from_rows = rows, .from_columns = columns, .noise = a->noise,
                        .noise_key = random_bits(key, DRAW_NOISE)};
    if (augment_moves(a)) draw_map(&o, a, key);
    o.brightness = draw_around(key, DRAW_BRIGHTNESS, a->brightness);
    o.contrast = 1 + draw_around(key, DRAW_CONTRAST, a->contrast);
    o.gamma = exp(draw_around(key, DRAW_GAMMA, log1p(a->gamma)));
    o.tones = a->brightness > 0 || a->contrast > 0 || a->gamma > 0 || a->noise > 0;
    return o;
}

static void source_of(const struct augment *a, double x, double y, double to[2])
{
    for (int i = 0; i < 2; i++) to[i] = a->map[i][0] * x + a->map[i][1] * y + a->map[i][2];
}

/* --- masks ------------------------------------------------------------------------------------ */

void augment_bits(const struct augment *a, uint32_t side, uint32_t cells, uint32_t rows, uint32_t columns, void *bits,
                  void *scratch)
{
    const size_t stride = grid_stride(cells), bytes = grid_mask_bytes(cells, cells);
    const double cell = (double)side / cells;
    uint8_t *from = scratch, *to = bits;
    if (!a->moves) return;
    memcpy(from, to, bytes);
    memset(to, 0, bytes);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = 0; c < columns; c++) {
            double at[2];
            source_of(a, (c + 0.5) * cell, (r + 0.5) * cell, at);
            if (!(at[0] >= 0 && at[1] >= 0 && at[0] < a->from_columns && at[1] < a->from_rows)) continue;
            const uint32_t x = (uint32_t)(at[0] / cell), y = (uint32_t)(at[1] / cell);
            to[r * stride + c / 8] |= (uint8_t)((from[y * stride + x / 8] >> x % 8 & 1) << c % 8);
        }
}

/* --- the image -------------------------------------------------------------------------------- */

/* Reads a pixel bilinearly between pixel centres; what lies beyond the image is black.inearly
 * between pixel centres; what lies beyond the image is black. */
static void sample_pixel(const struct augment *a, const uint8_t *from, size_t stride, const double at[2], uint8_t *to)
{
    const double x = at[0] - 0.5, y = at[1] - 0.5, fx = floor(x), fy = floor(y);
    const int64_t x0 = (int64_t)fx, y0 = (int64_t)fy;
    const double wx[2] = {1 - (x - fx), x - fx}, wy[2] = {1 - (y - fy), y - fy};
    double sum[3] = {0};
    for (int j = 0; j < 2; j++)
        for (int i = 0; i < 2; i++) {
            const int64_t u = x0 + i, v = y0 + j;
            const double w = wx[i] * wy[j];
            if (w == 0 || u < 0 || v < 0 || u >= a->from_columns || v >= a->from_rows) continue;
            const uint8_t *p = from + (size_t)v * stride + (size_t)u * 3;
            for (int k = 0; k < 3; k++) sum[k] += w * p[k];
        }
    for (int k = 0; k < 3; k++) to[k] = (uint8_t)(sum[k] + 0.5);
}

static void move_image(const struct augment *a, uint32_t side, uint8_t *image, uint8_t *scratch)
{
    const size_t stride = (size_t)side * 3;
    memcpy(scratch, image, stride * side);
    memset(image, 0, stride * side);
    for (uint32_t r = 0; r < a->rows; r++)
        for (uint32_t c = 0; c < a->columns; c++) {
            double at[2];
            source_of(a, c + 0.5, r + 0.5, at);
            sample_pixel(a, scratch, stride, at, image + r * stride + (size_t)c * 3);
        }
}

static uint8_t to_byte(double x) { return x <= 0 ? 0 : x >= 255 ? 255 : (uint8_t)(x + 0.5); }

/* Tabulates gamma, then contrast about the image's mean, then brightness. */
static void make_table(const struct augment *a, uint32_t side, const uint8_t *image, double table[256])
{
    const size_t stride = (size_t)side * 3, n = (size_t)a->rows * a->columns * 3;
    uint64_t count[256] = {0};
    double mean = 0;
    for (uint32_t r = 0; r < a->rows; r++)
        for (size_t i = 0; i < (size_t)a->columns * 3; i++) count[image[r * stride + i]]++;
    for (int v = 0; v < 256; v++) {
        table[v] = a->gamma == 1 ? v : 255 * pow(v / 255.0, a->gamma);
        mean += table[v] * (double)count[v] / (double)n;
    }
    for (int v = 0; v < 256; v++) table[v] = (table[v] - mean) * a->contrast + mean + 255 * a->brightness;
}

/* Returns the same for the three channels. Four uniform numbers of 16 bits have a sum that is
 * nearly normal. */
static double noise_at(const struct augment *a, uint64_t i)
{
    const uint64_t bits = random_bits(a->noise_key, i);
    const double sum =
        (double)(bits & 0xffff) + (double)(bits >> 16 & 0xffff) + (double)(bits >> 32 & 0xffff) + (double)(bits >> 48);
    return (sum - 2 * 65535.0) * (1 / (65536.0 * 0.57735026918962576));
}

static void change_tones(const struct augment *a, uint32_t side, uint8_t *image)
{
    const size_t stride = (size_t)side * 3;
    double table[256];
    make_table(a, side, image, table);
    for (uint32_t r = 0; r < a->rows; r++)
        for (uint32_t c = 0; c < a->columns; c++) {
            uint8_t *p = image + r * stride + (size_t)c * 3;
            const double more = a->noise > 0 ? 255 * a->noise * noise_at(a, (uint64_t)r * side + c) : 0;
            for (int k = 0; k < 3; k++) p[k] = to_byte(table[p[k]] + more);
        }
}

void augment_image(const struct augment *a, uint32_t side, uint8_t *image, uint8_t *scratch)
{
    if (a->moves) move_image(a, side, image, scratch);
    if (a->tones && a->rows && a->columns) change_tones(a, side, image);
}

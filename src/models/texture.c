/*
 * texture.c: what the pixels of an image look like in 32 x 32 cells, for the token allocator
 * (allocator.h).
 *
 *     0-2    red, green, blue of the cell              8, 9   row, column, 0 to 1
 *     3, 4   L* / 100, (a* + 128) / 255                10     distance from the centre, 0 to 1
 *     5-7    Sobel of grey: x, y, magnitude            11     as 7
 *                                                      12     as 3
 *
 * An image is resized to 512 x 512 (bilinear, without antialiasing), and a cell is the mean of 16 x
 * 16 pixels. Channels 5 to 7 are spread over 0 to 1 by the smallest and largest value of this
 * image: ARR-COC takes those of a batch, so that its results depend on what shares a batch. At the
 * border of the grid its outermost cells are repeated.
 */
#include <math.h>

#include "models/allocator.h"

enum { RESIZED = 512, BLOCK = RESIZED / TEXTURE_SIDE, WIDEST = 1 << 14 }; /* no tower takes wider images */

/* The neighbours of position i of the resized image, and the share of the second. */
struct between {
    int64_t a, b;
    float share;
};
static struct between between(int i, int64_t side)
{
    const float at = fmaxf(0, ((float)i + 0.5f) * (float)side / RESIZED - 0.5f);
    const int64_t a = (int64_t)at;
    return (struct between){a, min_i64(a + 1, side - 1), at - (float)a};
}

/* The means of a row of cells of one plane: first over the rows of the resized image, then along
 * them. */
static void put_means(const float *plane, int64_t side, int row, float *cells)
{
    float line[WIDEST];
    for (int64_t x = 0; x < side; x++) line[x] = 0;
    for (int i = 0; i < BLOCK; i++) {
        const struct between y = between(row * BLOCK + i, side);
        const float *above = plane + y.a * side, *below = plane + y.b * side, rest = 1 - y.share;
        for (int64_t x = 0; x < side; x++) line[x] += above[x] * rest + below[x] * y.share;
    }
    for (int column = 0; column < TEXTURE_SIDE; column++) {
        float sum = 0;
        for (int i = 0; i < BLOCK; i++) {
            const struct between x = between(column * BLOCK + i, side);
            sum += line[x.a] * (1 - x.share) + line[x.b] * x.share;
        }
        cells[column * TEXTURE_CHANNELS] = sum / (BLOCK * BLOCK);
    }
}

/* sRGB to linear light; and the curve of CIELAB. */
static double linear_light(double c) { return c <= 0.04045 ? c / 12.92 : pow((c + 0.055) / 1.055, 2.4); }
static double lab_curve(double t) { return t > 216.0 / 24389 ? cbrt(t) : (24389.0 / 27 * t + 16) / 116; }

static void put_lab(float *cell)
{
    const double r = linear_light(cell[0]), g = linear_light(cell[1]), b = linear_light(cell[2]);
    const double x = lab_curve((0.4124564 * r + 0.3575761 * g + 0.1804375 * b) / 0.95047),
                 y = lab_curve(0.2126729 * r + 0.7151522 * g + 0.0721750 * b);
    cell[3] = (float)((116 * y - 16) / 100);
    cell[4] = (float)((500 * (x - y) + 128) / 255);
}

static float grey(const float *texture, int row, int column)
{
    row = row < 0 ? 0 : row >= TEXTURE_SIDE ? TEXTURE_SIDE - 1 : row;
    column = column < 0 ? 0 : column >= TEXTURE_SIDE ? TEXTURE_SIDE - 1 : column;
    const float *cell = texture + (row * TEXTURE_SIDE + column) * TEXTURE_CHANNELS;
    return 0.299f * cell[0] + 0.587f * cell[1] + 0.114f * cell[2];
}

static void put_edges(const float *texture, int row, int column, float *cell)
{
    float x = 0, y = 0;
    for (int k = -1; k <= 1; k++) {
        const float weight = k ? 1 : 2;
        x += weight * (grey(texture, row + k, column + 1) - grey(texture, row + k, column - 1));
        y += weight * (grey(texture, row + 1, column + k) - grey(texture, row - 1, column + k));
    }
    cell[5] = x;
    cell[6] = y;
    cell[7] = sqrtf(x * x + y * y);
}

static void put_position(int row, int column, float *cell)
{
    const float most = TEXTURE_SIDE - 1, y = (float)row / most, x = (float)column / most;
    cell[8] = y;
    cell[9] = x;
    cell[10] = sqrtf(((y - 0.5f) * (y - 0.5f) + (x - 0.5f) * (x - 0.5f)) / 0.5f);
}

/* Spreads every `step`-th of the numbers over 0 to 1; equal ones become 0. */
static void spread(float *x, int step)
{
    float least = x[0], most = x[0];
    for (int i = 0; i < TEXTURE_CELLS; i++) least = fminf(least, x[i * step]), most = fmaxf(most, x[i * step]);
    for (int i = 0; i < TEXTURE_CELLS; i++) x[i * step] = (x[i * step] - least) / (most - least + 1e-8f);
}

void texture_of(const float *rgb, int64_t side, float *texture)
{
    for (int c = 0; c < 3; c++)
        for (int row = 0; row < TEXTURE_SIDE; row++)
            put_means(rgb + c * side * side, side, row, texture + row * TEXTURE_SIDE * TEXTURE_CHANNELS + c);
    for (int i = 0; i < TEXTURE_CELLS; i++) {
        float *cell = texture + i * TEXTURE_CHANNELS;
        put_lab(cell);
        put_position(i / TEXTURE_SIDE, i % TEXTURE_SIDE, cell);
    }
    for (int i = 0; i < TEXTURE_CELLS; i++)
        put_edges(texture, i / TEXTURE_SIDE, i % TEXTURE_SIDE, texture + i * TEXTURE_CHANNELS);
    for (int c = 5; c <= TEXTURE_EDGES; c++) spread(texture + c, TEXTURE_CHANNELS);
    for (int i = 0; i < TEXTURE_CELLS; i++) {
        float *cell = texture + i * TEXTURE_CHANNELS;
        cell[11] = cell[TEXTURE_EDGES];
        cell[12] = cell[3];
    }
}

void texture_information(const float *texture, float *out)
{
    for (int i = 0; i < TEXTURE_CELLS; i++) {
        const float *cell = texture + i * TEXTURE_CHANNELS;
        double sum = 0, weighted = 0;
        for (int c = 0; c < TEXTURE_CHANNELS; c++) {
            const double share = exp((double)cell[c]);
            sum += share;
            weighted += share * (double)cell[c];
        }
        out[i] = (float)(log(sum) - weighted / sum); /* - sum of p log p, with log p = x - log(sum) */
    }
    spread(out, 1);
}

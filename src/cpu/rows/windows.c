/*
 * windows.c: window partition of a map and its inverse, and Fourier features of points, as
 * segmentation models use them.
 *
 *     map      [B,H,W,C]                rows of a window, of size x C elements, are segments of
 *     windows  [B nh nw,size,size,C]    the map's rows: one copy in each direction
 *
 * Window positions beyond the map are zeros, and are dropped in the inverse.
 */
#include <math.h>
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/rows.h"

/* --- windows ---------------------------------------------------------------------------- */

static bool window_match(const struct query *q) { return tensor_is_dense(q->in[0]) && tensor_is_dense(q->out[0]); }
static bool unwindow_match(const struct query *q) { return window_match(q); }

/* Row r of all windows' rows: the index of its first element in the map, and how many of its pixels
 * are in the map. */
struct segment {
    int64_t at, pixels;
};

static struct segment piece_of(const struct operand *map, int64_t size, int64_t r)
{
    const int64_t H = map->dim[1], W = map->dim[2], C = map->dim[3];
    const int64_t across = (W + size - 1) / size, down = (H + size - 1) / size, window = r / size;
    int64_t x = window % across * size, y = window / across % down * size + r % size, b = window / across / down;
    return (struct segment){((b * H + y) * W + x) * C, y < H ? min_i64(size, W - x) : 0};
}

static void window_run(const struct launch *l)
{
    const struct operand *map = &l->in[0], *windows = &l->out[0];
    const int64_t size = windows->dim[1], rows = windows->dim[0] * size, element = dtype_size(map->dtype);
    const int64_t pixel = map->dim[3] * element;
#pragma omp parallel for num_threads(l->threads) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        struct segment p = piece_of(map, size, r);
        char *to = (char *)windows->data + r * size * pixel;
        if (p.pixels) memcpy(to, (const char *)map->data + p.at * element, (size_t)(p.pixels * pixel));
        memset(to + p.pixels * pixel, 0, (size_t)((size - p.pixels) * pixel));
    }
}

static void unwindow_run(const struct launch *l)
{
    const struct operand *map = &l->out[0], *windows = &l->in[0];
    const int64_t size = windows->dim[1], rows = windows->dim[0] * size, element = dtype_size(map->dtype);
    const int64_t pixel = map->dim[3] * element;
#pragma omp parallel for num_threads(l->threads) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        struct segment p = piece_of(map, size, r);
        const char *from = (const char *)windows->data + r * size * pixel;
        if (p.pixels) memcpy((char *)map->data + p.at * element, from, (size_t)(p.pixels * pixel));
    }
}

/* --- Fourier features of points ----------------------------------------------------------- */

static bool fourier_match(const struct query *q) { return query_is_fast(q); }

/* n frequencies of one point. Whole turns are subtracted in double: they would use up the precision
 * of a float angle. */
static void waves(float *sine, float *cosine, const float *gx, const float *gy, int n, double x, double y)
{
    for (int i = 0; i < n; i++) {
        double turns = x * (double)gx[i] + y * (double)gy[i];
        float angle = (float)(2 * M_PI * (turns - rint(turns)));
        sine[i] = sinf(angle);
        cosine[i] = cosf(angle);
    }
}

static void fourier_run(const struct launch *l)
{
    const struct operand *coords = &l->in[0], *gauss = &l->in[1], *out = &l->out[0];
    const int64_t F = gauss->dim[1], points = operand_rows(coords);
#pragma omp parallel for num_threads(l->threads) schedule(static)
    for (int64_t i = 0; i < points; i++) {
        double x = 2 * dtype_load(coords->data, coords->dtype, 2 * i) - 1;
        double y = 2 * dtype_load(coords->data, coords->dtype, 2 * i + 1) - 1;
        for (int64_t f = 0; f < F; f += TILE) {
            float gx[TILE], gy[TILE], sine[TILE], cosine[TILE];
            int n = row_tile(F - f);
            waves(sine, cosine, row_view(gauss, f, n, gx), row_view(gauss, F + f, n, gy), n, x, y);
            dtype_convert((char *)out->data + (i * 2 * F + f) * dtype_size(out->dtype), out->dtype, sine, DT_F32, n);
            dtype_convert((char *)out->data + (i * 2 * F + F + f) * dtype_size(out->dtype), out->dtype, cosine, DT_F32,
                          n);
        }
    }
}

CPU_KERNEL(WINDOW, window);
CPU_KERNEL(UNWINDOW, unwindow);
CPU_KERNEL(FOURIER, fourier);

/*
 * distance.c: see distance.h.
 *
 * The squared distance separates by axis: along a line, D(q) = min over p of f(p) + (s (q - p))^2,
 * where f is the result of the axes before and s the spacing. That is the lower envelope of
 * parabolas, all of the same width, one at each cell where f is finite. A sweep builds the envelope
 * on a stack: a new parabola drops those that it hides, and each is pushed and dropped at most
 * once. A second sweep reads the envelope off. So the time is linear in the number of cells
 * (Felzenszwalb and Huttenlocher).
 *
 *     f(p) \     /\     /         from[k]: where parabola k begins to be the lowest
 *           \   /  \   /
 *            \_/    \_/
 */
#include "infer/distance.h"

#include <math.h>

struct envelope {
    double *f;      /* [n] the line before */
    double *from;   /* [n] */
    uint32_t *at;   /* [n] the parabolas' cells */
};

static uint32_t longest(const struct cell_box *b) { return (uint32_t)max_i64(b->w, max_i64(b->h, b->d)); }

size_t distance_scratch(const struct cell_box *b)
{
    return (size_t)longest(b) * (2 * sizeof(double) + sizeof(uint32_t));
}

/* Where the parabolas at cells p < q cross, in cells. */
static double crossing(const double *f, uint32_t p, uint32_t q, double s2)
{
    return 0.5 * ((double)p + q) + (f[q] - f[p]) / (2 * s2 * ((double)q - p));
}

/* One line of n cells, `step` apart. */
static void transform_line(double *line, size_t step, uint32_t n, double spacing, const struct envelope *v)
{
    const double s2 = spacing * spacing;
    uint32_t k = 0; /* parabolas on the stack */
    for (uint32_t q = 0; q < n; q++) {
        v->f[q] = line[q * step];
        if (isinf(v->f[q])) continue;
        double x = -INFINITY;
        while (k && (x = crossing(v->f, v->at[k - 1], q, s2)) <= v->from[k - 1]) k--;
        v->from[k] = k ? x : -INFINITY;
        v->at[k++] = q;
    }
    if (!k) return;
    for (uint32_t q = 0, i = 0; q < n; q++) {
        while (i + 1 < k && v->from[i + 1] < (double)q) i++;
        const double far = spacing * ((double)q - v->at[i]);
        line[q * step] = v->f[v->at[i]] + far * far;
    }
}

void distance_squared(const struct cell_box *b, double *to, void *scratch)
{
    const uint32_t n = longest(b);
    const size_t row = b->w, slice = row * b->h;
    struct envelope v = {.f = scratch};
    v.from = v.f + n;
    v.at = (uint32_t *)(void *)(v.from + n);
    for (size_t i = 0; b->w > 1 && i < (size_t)b->h * b->d; i++)
        transform_line(to + i * row, 1, b->w, b->spacing[0], &v);
    for (uint32_t z = 0; b->h > 1 && z < b->d; z++)
        for (uint32_t x = 0; x < b->w; x++) transform_line(to + z * slice + x, row, b->h, b->spacing[1], &v);
    for (size_t i = 0; b->d > 1 && i < slice; i++) transform_line(to + i, slice, b->d, b->spacing[2], &v);
}

/*
 * surface.c: see own_size.h.
 *
 * Everything happens in the box around both masks. For each direction one distance map is made, of
 * the surface that is measured against, and read at the cells of the other surface.
 */
#include "infer/own_size.h"

#include <math.h>

/* --- squared distances to the nearest feature ------------------------------------------------ */

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

/* Returns where the parabolas at cells p < q cross, in cells. */
static double crossing(const double *f, uint32_t p, uint32_t q, double s2)
{
    return 0.5 * ((double)p + q) + (f[q] - f[p]) / (2 * s2 * ((double)q - p));
}

/* Transforms one line of n cells, `step` apart. */
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

enum { PREDICTED = 1, TARGET = 2 }; /* bits of a cell: it is on this surface */

/* The cells first .. last along each axis; empty: last < first. */
struct bounds {
    int64_t first[3], last[3];
};

static void widen(struct bounds *o, int axis, int64_t at)
{
    o->first[axis] = min_i64(o->first[axis], at);
    o->last[axis] = max_i64(o->last[axis], at);
}

static struct bounds find_bounds(const struct cell_box *b, const uint8_t *p, const uint8_t *t)
{
    struct bounds o = {{b->w, b->h, b->d}, {-1, -1, -1}};
    size_t i = 0;
    for (int64_t z = 0; z < b->d; z++)
        for (int64_t y = 0; y < b->h; y++, i += b->w) {
            int64_t x0 = 0, x1 = b->w - 1;
            while (x0 <= x1 && !p[i + (size_t)x0] && !t[i + (size_t)x0]) x0++;
            if (x0 > x1) continue;
            while (!p[i + (size_t)x1] && !t[i + (size_t)x1]) x1--;
            widen(&o, 0, x0), widen(&o, 0, x1), widen(&o, 1, y), widen(&o, 2, z);
        }
    return o;
}

/* Reports whether a cell of the mask has a neighbour outside of it. An image has no neighbours
 * along z. */
static bool on_surface(const struct cell_box *b, const uint8_t *m, int64_t x, int64_t y, int64_t z)
{
    const size_t row = b->w, slice = row * b->h, i = (size_t)z * slice + (size_t)y * row + (size_t)x;
    if (!m[i]) return false;
    if (!x || x + 1 == b->w || !m[i - 1] || !m[i + 1] || !y || y + 1 == b->h || !m[i - row] || !m[i + row]) return true;
    return b->d > 1 && (!z || z + 1 == b->d || !m[i - slice] || !m[i + slice]);
}

/* Marks the surfaces in the box `in`, which lies at o.first; counts their cells. */
static void mark_surfaces(const struct cell_box *b, const struct bounds *o, const uint8_t *p, const uint8_t *t,
                          uint8_t *marks, size_t n[2])
{
    size_t i = 0;
    for (int64_t z = o->first[2]; z <= o->last[2]; z++)
        for (int64_t y = o->first[1]; y <= o->last[1]; y++)
            for (int64_t x = o->first[0]; x <= o->last[0]; x++, i++) {
                const bool of_p = on_surface(b, p, x, y, z), of_t = on_surface(b, t, x, y, z);
                marks[i] = (uint8_t)(of_p * PREDICTED + of_t * TARGET);
                n[0] += of_p, n[1] += of_t;
            }
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns the 95th percentile of n sorted values, between two of them. */
static double percentile95(const double *x, size_t n)
{
    const double at = 0.95 * (double)(n - 1);
    const size_t i = (size_t)at;
    return i + 1 < n ? x[i] + (at - (double)i) * (x[i + 1] - x[i]) : x[i];
}

/* Measures the distances of the n cells of a surface to the other one; counts those within the
 * tolerance. */
static double measure(const struct cell_box *in, const uint8_t *marks, int from, size_t n, double tolerance,
                      double *map, double *list, void *scratch, size_t *within)
{
    const size_t cells = box_cells(in);
    const int to = from == PREDICTED ? TARGET : PREDICTED;
    size_t k = 0;
    for (size_t i = 0; i < cells; i++) map[i] = marks[i] & to ? 0 : INFINITY;
    distance_squared(in, map, scratch);
    for (size_t i = 0; i < cells; i++)
        if (marks[i] & from) list[k++] = sqrt(map[i]);
    CHECK(k == n, "%zu cells of a surface, expected %zu", k, n);
    for (size_t i = 0; i < n; i++) *within += list[i] <= tolerance;
    qsort(list, n, sizeof *list, ascending);
    return percentile95(list, n);
}

struct surface_scores surface_compare(const struct cell_box *b, const uint8_t *predicted, const uint8_t *target,
                                      double tolerance)
{
    const struct bounds o = find_bounds(b, predicted, target);
    if (o.last[0] < o.first[0]) return (struct surface_scores){NAN, NAN};
    const struct cell_box in = {(uint32_t)(o.last[0] - o.first[0] + 1),
                                (uint32_t)(o.last[1] - o.first[1] + 1),
                                (uint32_t)(o.last[2] - o.first[2] + 1),
                                {b->spacing[0], b->spacing[1], b->spacing[2]}};
    uint8_t *marks = mem_alloc(box_cells(&in));
    size_t n[2] = {0}, within = 0;
    mark_surfaces(b, &o, predicted, target, marks, n);
    struct surface_scores out = {NAN, 0};
    if (n[0] && n[1]) {
        double *map = mem_alloc(box_cells(&in) * sizeof *map),
               *list = mem_alloc((n[0] > n[1] ? n[0] : n[1]) * sizeof *list);
        void *scratch = mem_alloc(distance_scratch(&in));
        const double there = measure(&in, marks, PREDICTED, n[0], tolerance, map, list, scratch, &within);
        const double back = measure(&in, marks, TARGET, n[1], tolerance, map, list, scratch, &within);
        out = (struct surface_scores){there > back ? there : back, (double)within / (double)(n[0] + n[1])};
        mem_free(scratch);
        mem_free(list);
        mem_free(map);
    }
    mem_free(marks);
    return out;
}

void masks_compare(const struct cell_box *b, const uint8_t *predicted, const uint8_t *target, double tolerance,
                   double value[METRICS])
{
    const struct overlap x = overlap_masks(predicted, target, box_cells(b));
    const struct surface_scores s = surface_compare(b, predicted, target, tolerance);
    value[METRIC_DICE] = overlap_dice(&x);
    value[METRIC_IOU] = overlap_iou(&x);
    value[METRIC_HD95] = s.hd95;
    value[METRIC_NSD] = s.nsd;
}

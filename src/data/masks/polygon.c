/*
 * polygon.c: rasterises polygons to runs, by COCO's rule (see polygon.h).
 *
 * The rule: corners are rounded to a lattice 5 times as fine as the pixels. Each edge is
 * walked along its longer axis, one lattice step at a time, the other coordinate rounded.
 * Where the walk steps from one lattice column to the next and that step passes the middle of a
 * pixel column (lattice column 2 of 5), it crosses the column at the higher of the two lattice
 * rows: the colour changes there, at the first pixel row with its middle not above. All changes,
 * sorted along the scan order, are the ends of the runs; two changes at one position cancel.
 *
 * In integers: lattice column u is pixel column u / 5 when u % 5 == 2, and lattice row
 * v is pixel row ceil((v - 2) / 5), at least 0 and at most h.
 *
 * The walk processes corners as they are parsed, so only the list of changes is kept.
 *
 * Products and sums are rounded one by one, as in COCO's own tools. All 10,000 cases of
 * tests/golden/make_rle.py equal pycocotools 2.0.11 built with -ffp-contract=off; its stock wheel
 * for aarch64 uses fused multiply-adds, which round once, and differs in 51 cases by some pixels
 * at an edge. gcc does not fuse with -std=c11, clang does not with the pragma.
 */
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif
#include "data/masks/polygon.h"

#include <math.h>

#include "data/formats/scan.h"

enum { FINE = 5 };
static const double far_away = 1e8;      /* largest coordinate: the lattice fits an int */
static const uint64_t long_merge = 1 << 26; /* runs read to merge a mask's polygons: 0.5 s */
static const uint64_t long_walk = 1 << 23; /* steps of all polygons of a mask: 1.6 million pixels of edge */

struct walk {
    uint32_t h, w;
    uint32_t *changes;
    uint32_t room, n;
    int x0, y0, x, y; /* the first corner and the last one, on the lattice */
    int u, v;         /* the last step */
    uint32_t corners;
    uint64_t steps;
    enum rle_status status;
};

/* Walks one step, to lattice point (u, v). */
static inline void step(struct walk *k, int u, int v)
{
    int from_u = k->u, from_v = k->v;
    k->u = u;
    k->v = v;
    if (u == from_u) return;
    int column = u < from_u ? u : u - 1, row = v < from_v ? v : from_v;
    if (column < 0 || column % FINE != 2 || (uint32_t)(column / FINE) >= k->w) return;
    uint32_t y = row <= 2 ? 0 : (uint32_t)(row - 2 + FINE - 1) / FINE;
    if (y > k->h) y = k->h;
    if (k->n == k->room) k->status = RLE_MANY;
    else k->changes[k->n++] = (uint32_t)(column / FINE) * k->h + y;
}

/* Walks the edge from the last corner to (x, y). An edge is computed from its left or upper end
 * for both directions, so two polygons that share it meet without a gap. */
static void edge(struct walk *k, int x, int y)
{
    int xs = k->x, ys = k->y, xe = x, ye = y, dx = abs(xe - xs), dy = abs(ye - ys);
    bool flat = dx >= dy, flip = flat ? xs > xe : ys > ye;
    int length = flat ? dx : dy;
    if (flip) xs = x, ys = y, xe = k->x, ye = k->y;
    k->x = x;
    k->y = y;
    k->steps += (uint64_t)length + 1;
    if (k->steps > long_walk) {
        k->status = RLE_MANY;
        return;
    }
    double slope = !length ? 0 : flat ? (double)(ye - ys) / dx : (double)(xe - xs) / dy;
    for (int d = 0; d <= length && !k->status; d++) {
        int t = flip ? length - d : d;
        if (flat) step(k, t + xs, (int)(ys + slope * t + .5));
        else step(k, (int)(xs + slope * t + .5), t + ys);
    }
}

static void corner(struct walk *k, double x, double y)
{
    if (!(fabs(x) <= far_away && fabs(y) <= far_away)) {
        k->status = RLE_BAD_RUN;
        return;
    }
    int fine_x = (int)(FINE * x + .5), fine_y = (int)(FINE * y + .5);
    if (!k->corners++) k->x0 = k->x = k->u = fine_x, k->y0 = k->y = k->v = fine_y;
    else edge(k, fine_x, fine_y);
}

/* Sifts for a heap sort: in place and without allocation, which qsort does not guarantee. */
static void sift(uint32_t *a, uint32_t i, uint32_t n)
{
    uint32_t x = a[i];
    for (uint32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && a[child + 1] > a[child]) child++;
        if (a[child] <= x) break;
        a[i] = a[child];
    }
    a[i] = x;
}

static void sort(uint32_t *a, uint32_t n)
{
    for (uint32_t i = n / 2; i-- > 0;) sift(a, i, n);
    while (n > 1) {
        uint32_t last = a[--n];
        a[n] = a[0];
        a[0] = last;
        sift(a, 0, n);
    }
}

/* Converts changes to runs, in place: a run of 0 joins its two neighbours. The end of the image is
 * the last change. */
static enum rle_status finish(struct walk *k, uint32_t *n)
{
    *n = 0;
    if (!k->status && k->corners) edge(k, k->x0, k->y0);
    if (!k->status && k->n == k->room) k->status = RLE_MANY;
    if (k->status) return k->status;
    uint32_t *a = k->changes;
    if (k->corners < 3) k->n = 0;
    a[k->n++] = k->h * k->w;
    sort(a, k->n);
    uint32_t before = 0, out = 0;
    for (uint32_t i = 0; i < k->n; i++) {
        uint32_t run = a[i] - before;
        before = a[i];
        if (run || !i) {
            a[out++] = run;
        } else if (++i < k->n) {
            a[out - 1] += a[i] - before;
            before = a[i];
        }
    }
    *n = out;
    return RLE_OK;
}

static enum rle_status start(struct walk *k, uint32_t h, uint32_t w, uint32_t *runs, uint32_t room)
{
    if (!h || !w || (uint64_t)h * w > RLE_MAX_PIXELS) return RLE_BAD_SIZE;
    *k = (struct walk){.h = h, .w = w, .changes = runs, .room = room};
    return RLE_OK;
}

void polygon_init(struct polygon_scratch *p, void *memory, uint32_t room)
{
    uint32_t *at = memory;
    *p = (struct polygon_scratch){.runs = {at, at + room, at + 2 * (size_t)room}, .room = room};
}

/* Parses one list of numbers; sets s->fault when it is malformed or odd. */
static enum rle_status scan_polygon(struct scan *s, struct walk *k, uint32_t *n)
{
    double x, y;
    for (bool first = scan_enter(s, '['); scan_element(s, &first);) {
        if (!scan_number(s, &x)) break;
        if (!scan_element(s, &first)) return scan_fail(s, "a pair"), RLE_BAD_CHAR;
        if (!scan_number(s, &y)) break;
        if (!k->status) corner(k, x, y);
    }
    return s->fault ? RLE_BAD_CHAR : finish(k, n);
}

enum rle_status polygons_union(const char *json, size_t length, uint32_t h, uint32_t w, struct polygon_scratch *p,
                               struct rle *out)
{
    struct scan s = scan_begin(json, length);
    struct walk k;
    enum rle_status status = start(&k, h, w, p->runs[0], p->room);
    if (status) return status;
    if (!p->room) return RLE_MANY;
    uint32_t held = 1, fresh = 0; /* runs in [0] and in [1] */
    uint64_t work = 0;
    p->runs[0][0] = h * w;
    for (bool first = scan_enter(&s, '['); scan_element(&s, &first);) {
        uint64_t steps = k.steps;
        start(&k, h, w, p->runs[1], p->room);
        k.steps = steps;
        if ((status = scan_polygon(&s, &k, &fresh))) return status;
        struct rle a = {RLE_RUNS, h, w, p->runs[0], held}, b = {RLE_RUNS, h, w, p->runs[1], fresh};
        if ((work += held + fresh) > long_merge) return RLE_MANY;
        if ((status = rle_merge(&a, &b, false, p->runs[2], p->room, &held))) return status;
        uint32_t *merged = p->runs[2];
        p->runs[2] = p->runs[0];
        p->runs[0] = merged;
    }
    if (!scan_finish(&s)) return RLE_BAD_CHAR;
    *out = (struct rle){RLE_RUNS, h, w, p->runs[0], held};
    return RLE_OK;
}

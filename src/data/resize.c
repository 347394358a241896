/*
 * resize.c: a separable triangle filter that receives one row at a time.
 *
 *   source row ──across──► ring of the last `taps` rows ──down──► result rows
 *                          (result's width, bytes)
 *
 * Each axis has a table: for every output position the first source position and its weights. A
 * window, a scale and a flip only change the tables. Weights are 14-bit integers with a sum of
 * exactly 1.0, so no result leaves 0..255 and equal pixels stay equal.
 *
 * A result row is written as soon as its last source row has arrived; the ring holds `taps` rows,
 * the largest number that a result row needs. When an axis keeps its size there is one weight,
 * and rows are copied.
 */
#include "data/resize.h"

#include <math.h>
#include <string.h>

enum { ONE = 1 << 14, HALF = ONE / 2, SLACK = 16 };

/* ---- tables ---- */

struct window {
    uint32_t source, to;
    double from, length;
};

static double half_width(const struct window *w) /* half the filter's width, in source positions */
{
    double scale = w->length / w->to;
    return scale < 1 ? 1 : scale;
}

/* An upper bound; weights of zero are removed later. */
static uint32_t max_taps(const struct window *w) { return (uint32_t)ceil(half_width(w)) * 2 + 1; }

/* The source positions [*a, *b) under the filter at output position i, and its centre. */
static double span(const struct window *w, uint32_t i, int64_t *a, int64_t *b)
{
    double centre = w->from + (i + 0.5) * (w->length / w->to), support = half_width(w);
    *a = max_i64((int64_t)(centre - support + 0.5), 0);
    *b = min_i64((int64_t)(centre + support + 0.5), w->source);
    return centre;
}

/* Rounds n weights to integers that sum to ONE; the rounding error is added to the largest. */
static void quantise(const double *exact, double total, int64_t n, int16_t *out)
{
    int sum = 0;
    int64_t largest = 0;
    for (int64_t k = 0; k < n; k++) {
        out[k] = (int16_t)lrint(exact[k] / total * ONE);
        sum += out[k];
        if (out[k] > out[largest]) largest = k;
    }
    out[largest] = (int16_t)(out[largest] + ONE - sum);
}

/* Fills row i of the table; `exact` has room for max_taps. Positions beyond the last source
 * position get weight 0, and the row is moved left so that it never reaches beyond it. */
static void fill_weights(const struct window *w, uint32_t i, double *exact, uint32_t taps, uint32_t *first, int16_t *weight)
{
    int64_t a, b;
    double centre = span(w, i, &a, &b), narrow = 1 / half_width(w), total = 0;
    if (b <= a) a = min_i64(max_i64((int64_t)centre, 0), w->source - 1), b = a + 1;
    for (int64_t k = a; k < b; k++) {
        double distance = fabs((k - centre + 0.5) * narrow);
        exact[k - a] = distance < 1 ? 1 - distance : 0;
        total += exact[k - a];
    }
    if (total <= 0) exact[0] = total = 1;
    memset(weight, 0, taps * sizeof *weight);
    quantise(exact, total, b - a, weight);
    *first = (uint32_t)a;
}

static void move_left(uint32_t *first, int16_t *weight, uint32_t taps, uint32_t by)
{
    memmove(weight + by, weight, (taps - by) * sizeof *weight);
    memset(weight, 0, by * sizeof *weight);
    *first -= by;
}

/* Removes leading and trailing zeros that all positions share, so that an axis that keeps its size
 * has one weight; afterwards no row reads beyond the source. */
static void tighten(const struct window *w, struct resize_axis *x, uint32_t taps)
{
    uint32_t most = 1;
    for (uint32_t i = 0; i < w->to; i++) {
        int16_t *k = x->weight + (size_t)i * taps;
        uint32_t lead = 0, end = taps;
        while (lead < taps - 1 && !k[lead]) lead++;
        while (end > lead + 1 && !k[end - 1]) end--;
        memmove(k, k + lead, (end - lead) * sizeof *k);
        memset(k + end - lead, 0, (taps - (end - lead)) * sizeof *k);
        x->first[i] += lead;
        if (end - lead > most) most = end - lead;
    }
    if (most > w->source) most = w->source;
    for (uint32_t i = 0; i < w->to; i++) {
        memmove(x->weight + (size_t)i * most, x->weight + (size_t)i * taps, most * sizeof *x->weight);
        if (x->first[i] + most > w->source) move_left(&x->first[i], x->weight + (size_t)i * most, most, x->first[i] + most - w->source);
    }
    x->taps = most;
}

static void mirror(struct resize_axis *x, uint32_t n)
{
    for (uint32_t i = 0, j = n - 1; i < j; i++, j--) {
        uint32_t f = x->first[i];
        x->first[i] = x->first[j];
        x->first[j] = f;
        for (uint32_t k = 0; k < x->taps; k++) {
            int16_t *a = x->weight + (size_t)i * x->taps + k, *b = x->weight + (size_t)j * x->taps + k, t = *a;
            *a = *b;
            *b = t;
        }
    }
}

/* ---- scratch ---- */

static struct window window_across(const struct resize_view *v)
{
    return v->w > 0 && v->h > 0 ? (struct window){v->width, v->to_width, v->x, v->w} : (struct window){v->width, v->to_width, 0, v->width};
}

static struct window window_down(const struct resize_view *v)
{
    return v->w > 0 && v->h > 0 ? (struct window){v->height, v->to_height, v->y, v->h} : (struct window){v->height, v->to_height, 0, v->height};
}

static size_t table_bytes(const struct window *w)
{
    return align_up(w->to * sizeof(uint32_t), 64) + align_up((size_t)w->to * max_taps(w) * sizeof(int16_t), 64) +
           align_up(max_taps(w) * sizeof(double), 64);
}

static size_t row_stride(uint32_t width) { return align_up((size_t)width * 3 + SLACK, 64); }

size_t resize_scratch(const struct resize_view *v)
{
    struct window across = window_across(v), down = window_down(v);
    return 64 + table_bytes(&across) + table_bytes(&down) + row_stride(v->width) + row_stride(v->to_width) * max_taps(&down);
}

/* A side that rounds down to a few pixels shrinks by up to 1.5 times more than the longer side:
 * 1.49 pixels become 1. */
size_t resize_scratch_most(uint32_t longest, uint32_t side)
{
    struct window w = {longest, side, 0, 1.5 * (longest > side ? longest : side)};
    return 64 + 2 * table_bytes(&w) + row_stride(longest) + row_stride(side) * max_taps(&w);
}

static void *carve(uint8_t **at, size_t bytes)
{
    void *p = *at;
    *at += align_up(bytes, 64);
    return p;
}

static void fill_axis(struct resize_axis *x, const struct window *w, uint8_t **at)
{
    uint32_t taps = max_taps(w);
    x->first = carve(at, w->to * sizeof *x->first);
    x->weight = carve(at, (size_t)w->to * taps * sizeof *x->weight);
    double *exact = carve(at, taps * sizeof *exact);
    for (uint32_t i = 0; i < w->to; i++) fill_weights(w, i, exact, taps, &x->first[i], x->weight + (size_t)i * taps);
    tighten(w, x, taps);
}

void resize_begin(struct resize *r, const struct resize_view *v, void *scratch, size_t room)
{
    CHECK(v->width && v->height && v->to_width && v->to_height && room >= resize_scratch(v), "resize of %ux%u to %ux%u in %zu bytes",
          v->width, v->height, v->to_width, v->to_height, room);
    memset(r, 0, sizeof *r);
    r->v = *v;
    uint8_t *at = (uint8_t *)align_up((uintptr_t)scratch, 64);
    struct window across = window_across(v), down = window_down(v);
    CHECK(across.from >= 0 && down.from >= 0 && across.from + across.length <= v->width + 1e-6 && down.from + down.length <= v->height + 1e-6,
          "the window is outside of the image");
    fill_axis(&r->across, &across, &at);
    fill_axis(&r->down, &down, &at);
    r->copy = r->across.taps == 1 && across.source == across.to && across.length == across.to && !v->flip;
    if (v->flip) mirror(&r->across, v->to_width);
    r->tail = carve(&at, row_stride(v->width));
    r->ring_stride = row_stride(v->to_width);
    r->ring = carve(&at, r->ring_stride * r->down.taps);
}

bool resize_wants(const struct resize *r) { return r->next < r->v.to_height && r->at < r->v.height; }

/* ---- across ---- */

typedef uint8_t bytes16 __attribute__((vector_size(16)));
typedef int16_t shorts8 __attribute__((vector_size(16)));
typedef int32_t ints4 __attribute__((vector_size(16)));

/* Sixteen bytes hold five pixels. ADD adds the k-th pixel, widened to 32-bit lanes, times a weight;
 * k is a literal. store_pixels packs four results to bytes: 12 bytes and 4 undefined ones, which
 * the next store overwrites. x86 before SSE4 lacks a 32-bit multiplication: it uses the product of
 * 16-bit pairs with 0 as the second value. */
#if defined(__SSE2__)
#include <emmintrin.h>
static inline ints4 widen_multiply(__m128i moved, int16_t weight)
{
    __m128i zero = _mm_setzero_si128();
    __m128i lanes = _mm_unpacklo_epi16(_mm_unpacklo_epi8(moved, zero), zero);
    return (ints4)_mm_madd_epi16(lanes, _mm_set1_epi32(weight));
}
#define ADD(sum, b, k, weight) ((sum) + widen_multiply(_mm_srli_si128((__m128i)(b), 3 * (k)), weight))
static inline void store_pixels(uint8_t *to, const ints4 p[4])
{
    __m128i low = _mm_packs_epi32((__m128i)p[0], (__m128i)p[1]), high = _mm_packs_epi32((__m128i)p[2], (__m128i)p[3]);
    uint32_t each[4];
    _mm_storeu_si128((__m128i *)each, _mm_packus_epi16(low, high));
    for (int k = 0; k < 4; k++) memcpy(to + 3 * k, &each[k], 4);
}
#else
#define ADD(sum, b, k, weight)                                                                                                     \
    ((sum) + (ints4)__builtin_shufflevector(b, (bytes16){0}, 3 * (k), 16, 16, 16, 3 * (k) + 1, 16, 16, 16, 3 * (k) + 2, 16, 16, 16, \
                                            16, 16, 16, 16) * (int32_t)(weight))
/* The low byte of every lane. */
static inline void store_pixels(uint8_t *to, const ints4 p[4])
{
    shorts8 low = __builtin_shufflevector((shorts8)p[0], (shorts8)p[1], 0, 2, 4, 6, 8, 10, 12, 14);
    shorts8 high = __builtin_shufflevector((shorts8)p[2], (shorts8)p[3], 0, 2, 4, 6, 8, 10, 12, 14);
    bytes16 packed = __builtin_shufflevector((bytes16)low, (bytes16)high, 0, 2, 4, 8, 10, 12, 16, 18, 20, 24, 26, 28, 6, 14, 22, 30);
    memcpy(to, &packed, sizeof packed);
}
#endif

static inline __attribute__((always_inline)) ints4 one_pixel(const uint8_t *p, const int16_t *weight, uint32_t taps)
{
    ints4 sum = {HALF, HALF, HALF, HALF};
    for (uint32_t from = 0; from < taps; from += 5, weight += 5, p += 15) {
        bytes16 b;
        memcpy(&b, p, sizeof b);
        sum = ADD(sum, b, 0, weight[0]);
        if (taps > from + 1) sum = ADD(sum, b, 1, weight[1]);
        if (taps > from + 2) sum = ADD(sum, b, 2, weight[2]);
        if (taps > from + 3) sum = ADD(sum, b, 3, weight[3]);
        if (taps > from + 4) sum = ADD(sum, b, 4, weight[4]);
    }
    return sum >> 14;
}

/* Four output pixels at a time. The number of taps is a constant where this is inlined, so that
 * the sum is unrolled. Rows have SLACK bytes after their end for the loads and the stores. */
static inline __attribute__((always_inline)) void across_taps(uint8_t *to, const uint8_t *from, const struct resize_axis *x, uint32_t n,
                                                              uint32_t taps)
{
    const int16_t *weight = x->weight;
    const uint32_t *first = x->first;
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4, weight += 4 * taps) {
        ints4 p[4];
        for (uint32_t k = 0; k < 4; k++) p[k] = one_pixel(from + (size_t)first[i + k] * 3, weight + k * taps, taps);
        store_pixels(to + 3 * (size_t)i, p);
    }
    for (; i < n; i++, weight += taps) {
        ints4 p = one_pixel(from + (size_t)first[i] * 3, weight, taps);
        for (int c = 0; c < 3; c++) to[3 * (size_t)i + c] = (uint8_t)p[c];
    }
}

static void across(uint8_t *to, const uint8_t *from, const struct resize_axis *x, uint32_t n)
{
    switch (x->taps) {
    case 1: across_taps(to, from, x, n, 1); break;
    case 2: across_taps(to, from, x, n, 2); break;
    case 3: across_taps(to, from, x, n, 3); break;
    case 4: across_taps(to, from, x, n, 4); break;
    case 5: across_taps(to, from, x, n, 5); break;
    default: across_taps(to, from, x, n, x->taps);
    }
}

/* ---- down ---- */

static inline __attribute__((always_inline)) void down_taps(uint8_t *restrict to, const uint8_t *const *rows, const int16_t *weight, size_t n,
                                                            uint32_t taps)
{
    for (size_t i = 0; i < n; i++) {
        int32_t sum = HALF;
        for (uint32_t k = 0; k < taps; k++) sum += (int16_t)rows[k][i] * weight[k];
        to[i] = (uint8_t)(sum >> 14);
    }
}

/* Many taps: a block of the row at a time, so that the sums stay in the L1 cache. */
static void down_many(uint8_t *restrict to, const struct resize *r, uint32_t first, const int16_t *weight, size_t n)
{
    enum { PART = 512 };
    int32_t sum[PART];
    for (size_t from = 0; from < n; from += PART) {
        size_t part = n - from < PART ? n - from : PART;
        for (size_t i = 0; i < part; i++) sum[i] = HALF;
        for (uint32_t k = 0; k < r->down.taps; k++) {
            const uint8_t *row = r->ring + (first + k) % r->down.taps * r->ring_stride + from;
            int16_t w = weight[k];
            for (size_t i = 0; i < part; i++) sum[i] += (int16_t)row[i] * w;
        }
        for (size_t i = 0; i < part; i++) to[from + i] = (uint8_t)(sum[i] >> 14);
    }
}

/* Source row y is in ring slot y mod taps. */
static void write_row(struct resize *r)
{
    uint32_t taps = r->down.taps, first = r->down.first[r->next];
    const int16_t *weight = r->down.weight + (size_t)r->next * taps;
    uint8_t *to = r->v.to + r->next * r->v.stride;
    const uint8_t *rows[6];
    size_t n = (size_t)r->v.to_width * 3;
    for (uint32_t k = 0; k < taps && taps <= 6; k++) rows[k] = r->ring + (first + k) % taps * r->ring_stride;
    switch (taps) {
    case 1: memcpy(to, rows[0], n); break;
    case 2: down_taps(to, rows, weight, n, 2); break;
    case 3: down_taps(to, rows, weight, n, 3); break;
    case 4: down_taps(to, rows, weight, n, 4); break;
    case 5: down_taps(to, rows, weight, n, 5); break;
    case 6: down_taps(to, rows, weight, n, 6); break;
    default: down_many(to, r, first, weight, n);
    }
    r->next++;
}

void resize_row(struct resize *r, const uint8_t *rgb)
{
    CHECK(r->at < r->v.height, "more rows than the source has");
    uint32_t y = r->at++;
    if (r->next >= r->v.to_height || y < r->down.first[r->next]) return;
    uint8_t *row = r->ring + y % r->down.taps * r->ring_stride;
    if (r->copy) {
        memcpy(row, rgb, (size_t)r->v.width * 3);
    } else {
        /* The last pixel is read as four bytes, so it is read from a padded copy of the row. */
        memcpy(r->tail, rgb, (size_t)r->v.width * 3);
        across(row, r->tail, &r->across, r->v.to_width);
    }
    while (r->next < r->v.to_height && r->down.first[r->next] + r->down.taps - 1 <= y) write_row(r);
}

/* ---- sizes ---- */

void resize_longest(uint32_t width, uint32_t height, uint32_t side, uint32_t *to_width, uint32_t *to_height)
{
    double scale = (double)side / (width > height ? width : height);
    *to_width = (uint32_t)(width * scale + 0.5);
    *to_height = (uint32_t)(height * scale + 0.5);
    if (!*to_width) *to_width = 1;
    if (!*to_height) *to_height = 1;
}

void resize_pad(uint8_t *to, uint32_t side, uint32_t w, uint32_t h, const uint8_t colour[3])
{
    for (uint32_t y = 0; y < side; y++)
        for (uint32_t x = y < h ? w : 0; x < side; x++) memcpy(to + ((size_t)y * side + x) * 3, colour, 3);
}

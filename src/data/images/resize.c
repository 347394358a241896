/*
 * resize.c: a separable filter that receives one row at a time.
 *
 *   source row ──across──► ring of the last `taps` rows ──down──► result rows
 *                          (result's width, bytes)
 *
 *   source row ──► ring of the last `taps` rows ──down──► row ──across──► result rows  (down_first)
 *                  (source's width)
 *
 * Each axis has a table (resize_table.c): for every output position the first source position and
 * its weights. A window, a scale, a part of the result and a flip only change the tables.
 *
 * A result row is written as soon as its last source row has arrived; the ring holds `taps` rows,
 * the largest number that a result row needs. When an axis keeps its size there is one weight,
 * and rows are copied.
 *
 * The triangle's weights have 14 bits and are never negative, so vector instructions of 16 bits
 * apply and no sum leaves 0..255. The other filters have Pillow's 22 bits, or PyTorch's number of
 * them, and clip.
 */
#include "data/images/resize.h"

enum { ONE = 1 << RESIZE_BITS, HALF = ONE / 2, SLACK = 16 };

/* ---- the result and scratch ---- */

static uint32_t result_width(const struct resize_view *v) { return v->out_w ? v->out_w : v->to_width; }
static uint32_t result_height(const struct resize_view *v) { return v->out_h ? v->out_h : v->to_height; }

static struct resize_window window_across(const struct resize_view *v)
{
    const bool part = v->w > 0 && v->h > 0;
    return (struct resize_window){v->filter, v->width, v->to_width, part ? v->x : 0, part ? v->w : v->width,
                                  v->out_w ? v->out_x : 0, result_width(v), v->flip};
}

static struct resize_window window_down(const struct resize_view *v)
{
    const bool part = v->w > 0 && v->h > 0;
    return (struct resize_window){v->filter, v->height, v->to_height, part ? v->y : 0, part ? v->h : v->height,
                                  v->out_h ? v->out_y : 0, result_height(v), false};
}

/* Reports Pillow's choice: the height first where it loses more than twice as many pixels as the
 * width. */
static bool is_down_first(const struct resize_view *v)
{
    const struct resize_window x = window_across(v), y = window_down(v);
    return (v->filter == RESIZE_BICUBIC || v->filter == RESIZE_LANCZOS) && y.length > y.to &&
           y.length - y.to > 2 * (x.length - x.to);
}

static uint32_t ring_width(const struct resize_view *v) { return is_down_first(v) ? v->width : result_width(v); }

static size_t row_stride(uint32_t width) { return align_up((size_t)width * 3 + SLACK, 64); }

size_t resize_scratch(const struct resize_view *v)
{
    struct resize_window across = window_across(v), down = window_down(v);
    return 64 + resize_table_bytes(&across) + resize_table_bytes(&down) + row_stride(v->width) +
           row_stride(ring_width(v)) * resize_table_taps(&down);
}

/* Returns enough scratch for every image, bilinear, with sides of at most `longest`, and every
 * window of one, resized by resize_longest to `side`: the loader's buffer. */
size_t resize_scratch_most(uint32_t longest, uint32_t side)
{
    struct resize_window w =
        {RESIZE_BILINEAR, longest, side, 0, 1.5 * (longest > side ? longest : side), 0, side, false};
    return 64 + 2 * resize_table_bytes(&w) + row_stride(longest) + row_stride(side) * resize_table_taps(&w);
}

static bool inside(const struct resize_window *w)
{
    return w->from >= 0 && w->from + w->length <= w->source + 1e-6 && (uint64_t)w->out + w->n <= w->to;
}

void resize_begin(struct resize *r, const struct resize_view *v, void *scratch, size_t room)
{
    CHECK(v->width && v->height && v->to_width && v->to_height && room >= resize_scratch(v),
          "resize of %ux%u to %ux%u in %zu bytes", v->width, v->height, v->to_width, v->to_height, room);
    memset(r, 0, sizeof *r);
    r->v = *v;
    r->out_w = result_width(v);
    r->out_h = result_height(v);
    uint8_t *at = (uint8_t *)align_up((uintptr_t)scratch, 64);
    struct resize_window across = window_across(v), down = window_down(v);
    CHECK(inside(&across) && inside(&down), "the window is outside of the image");
    resize_table_fill(&r->across, &across, &at);
    resize_table_fill(&r->down, &down, &at);
    r->copy = r->across.taps == 1 && across.source == across.to && across.length == across.to &&
              across.n == across.to && !v->flip;
    r->down_first = is_down_first(v);
    r->tail = resize_carve(&at, row_stride(v->width));
    r->ring_stride = row_stride(ring_width(v));
    r->ring = resize_carve(&at, r->ring_stride * r->down.taps);
}

bool resize_wants(const struct resize *r) { return r->next < r->out_h && r->at < r->v.height; }

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
#define ADD(sum, b, k, weight)                                                                                         \
    ((sum) + (ints4)__builtin_shufflevector(b, (bytes16){0}, 3 * (k), 16, 16, 16, 3 * (k) + 1, 16, 16, 16,             \
                                            3 * (k) + 2, 16, 16, 16, 16, 16, 16, 16) *                                 \
                 (int32_t)(weight))
/* Stores the low byte of every lane. */
static inline void store_pixels(uint8_t *to, const ints4 p[4])
{
    shorts8 low = __builtin_shufflevector((shorts8)p[0], (shorts8)p[1], 0, 2, 4, 6, 8, 10, 12, 14);
    shorts8 high = __builtin_shufflevector((shorts8)p[2], (shorts8)p[3], 0, 2, 4, 6, 8, 10, 12, 14);
    bytes16 packed =
        __builtin_shufflevector((bytes16)low, (bytes16)high, 0, 2, 4, 8, 10, 12, 16, 18, 20, 24, 26, 28, 6, 14, 22, 30);
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
    return sum >> RESIZE_BITS;
}

/* Computes four output pixels at a time. The number of taps is a constant where this is inlined,
 * so that the sum is unrolled. Rows have SLACK bytes after their end for the loads and the
 * stores. */
static inline __attribute__((always_inline)) void across_taps(uint8_t *to, const uint8_t *from,
                                                              const struct resize_axis *x, uint32_t n, uint32_t taps)
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

static inline __attribute__((always_inline)) void down_taps(uint8_t *restrict to, const uint8_t *const *rows,
                                                            const int16_t *weight, size_t n, uint32_t taps)
{
    for (size_t i = 0; i < n; i++) {
        int32_t sum = HALF;
        for (uint32_t k = 0; k < taps; k++) sum += (int16_t)rows[k][i] * weight[k];
        to[i] = (uint8_t)(sum >> RESIZE_BITS);
    }
}

/* Sums many taps: a block of the row at a time, so that the sums stay in the L1 cache. */
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
        for (size_t i = 0; i < part; i++) to[from + i] = (uint8_t)(sum[i] >> RESIZE_BITS);
    }
}

/* ---- the filters with negative weights ---- */

static inline uint8_t clip(int32_t sum, int bits)
{
    sum >>= bits;
    return (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

static void across_fine(uint8_t *to, const uint8_t *from, const struct resize_axis *x, uint32_t n)
{
    const int32_t *weight = x->fine, half = 1 << x->bits >> 1;
    for (uint32_t i = 0; i < n; i++, weight += x->taps, to += 3) {
        const uint8_t *p = from + (size_t)x->first[i] * 3;
        int32_t r = half, g = half, b = half;
        for (uint32_t k = 0; k < x->taps; k++, p += 3)
            r += p[0] * weight[k], g += p[1] * weight[k], b += p[2] * weight[k];
        to[0] = clip(r, x->bits), to[1] = clip(g, x->bits), to[2] = clip(b, x->bits);
    }
}

static void down_fine(uint8_t *restrict to, const struct resize *r, uint32_t first, const int32_t *weight, size_t n)
{
    enum { PART = 512 };
    int32_t sum[PART];
    for (size_t from = 0; from < n; from += PART) {
        size_t part = n - from < PART ? n - from : PART;
        for (size_t i = 0; i < part; i++) sum[i] = 1 << r->down.bits >> 1;
        for (uint32_t k = 0; k < r->down.taps; k++) {
            const uint8_t *row = r->ring + (first + k) % r->down.taps * r->ring_stride + from;
            int32_t w = weight[k];
            for (size_t i = 0; i < part; i++) sum[i] += row[i] * w;
        }
        for (size_t i = 0; i < part; i++) to[from + i] = clip(sum[i], r->down.bits);
    }
}

/* ---- rows ---- */

/* Writes a result row. Source row y is in ring slot y mod taps. */
static void write_triangle(uint8_t *to, const struct resize *r, size_t row, size_t n)
{
    const uint32_t taps = r->down.taps, first = r->down.first[row];
    const int16_t *weight = r->down.weight + row * taps;
    const uint8_t *rows[6];
    for (uint32_t k = 0; k < taps && taps <= COUNT(rows); k++) rows[k] = r->ring + (first + k) % taps * r->ring_stride;
    switch (taps) {
    case 2: down_taps(to, rows, weight, n, 2); break;
    case 3: down_taps(to, rows, weight, n, 3); break;
    case 4: down_taps(to, rows, weight, n, 4); break;
    case 5: down_taps(to, rows, weight, n, 5); break;
    case 6: down_taps(to, rows, weight, n, 6); break;
    default: down_many(to, r, first, weight, n);
    }
}

static void write_row(struct resize *r)
{
    const size_t row = r->next++, n = (size_t)(r->down_first ? r->v.width : r->out_w) * 3;
    uint8_t *result = r->v.to + row * r->v.stride, *to = r->down_first ? r->tail : result;
    if (r->down.taps == 1) memcpy(to, r->ring, n);
    else if (r->down.fine) down_fine(to, r, r->down.first[row], r->down.fine + row * r->down.taps, n);
    else write_triangle(to, r, row, n);
    if (r->down_first) across_fine(result, to, &r->across, r->out_w);
}

void resize_row(struct resize *r, const uint8_t *rgb)
{
    CHECK(r->at < r->v.height, "more rows than the source has");
    uint32_t y = r->at++;
    if (r->next >= r->out_h || y < r->down.first[r->next]) return;
    uint8_t *row = r->ring + y % r->down.taps * r->ring_stride;
    if (r->copy || r->down_first) {
        memcpy(row, rgb, (size_t)r->v.width * 3);
    } else if (r->across.fine) {
        across_fine(row, rgb, &r->across, r->out_w);
    } else {
        /* The last pixel is read as four bytes, so it is read from a padded copy of the row. */
        memcpy(r->tail, rgb, (size_t)r->v.width * 3);
        across(row, r->tail, &r->across, r->out_w);
    }
    while (r->next < r->out_h && r->down.first[r->next] + r->down.taps - 1 <= y) write_row(r);
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

void resize_canvas(uint32_t width, uint32_t height, uint32_t side, bool stretched, uint32_t *to_width,
                   uint32_t *to_height)
{
    if (stretched) *to_width = *to_height = side;
    else resize_longest(width, height, side, to_width, to_height);
}

uint8_t *resize_image(const uint8_t *rgb, uint32_t width, uint32_t height, uint32_t to_width, uint32_t to_height)
{
    struct resize r;
    struct resize_view view = {.width = width, .height = height, .to_width = to_width, .to_height = to_height,
                               .to = mem_alloc((size_t)to_width * to_height * 3), .stride = (size_t)to_width * 3};
    const size_t room = resize_scratch(&view);
    void *scratch = mem_alloc(room);
    resize_begin(&r, &view, scratch, room);
    for (size_t y = 0; resize_wants(&r); y++) resize_row(&r, rgb + y * width * 3);
    mem_free(scratch);
    return view.to;
}

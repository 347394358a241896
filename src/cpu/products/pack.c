/*
 * pack.c: packs rows into panels and unpacks them (see pack.h).
 *
 * There are two cases, by the index that is contiguous in memory:
 *
 *     across = 1   a panel's row is contiguous already: copy runs of `width`
 *     along  = 1   a panel is a transpose: 4 x 4 at a time, in registers
 *
 * bf16 and f16 are converted a strip at a time into a stack buffer that fits the L1 cache, then
 * packed as f32: in both cases packing reads memory once.
 */
#include "cpu/products/pack.h"

/* Elements of a row converted at a time: enough to amortise the conversion's call, and few enough
 * that the reads alternate between rows and many are in flight at once. A multiple of PANEL_B. */
enum { STRIP = GATHER_STRIP, WIDTH_MAX = GATHER_ROWS };

typedef float quad __attribute__((vector_size(16)));
typedef float quad_mem __attribute__((vector_size(16), aligned(4), may_alias));

static inline quad quad_load(const float *p) { return *(const quad_mem *)p; }
static inline void quad_store(float *p, quad x) { *(quad_mem *)p = x; }

/* Transposes four vectors: r[i][j] becomes r[j][i]. */
static inline void quad_transpose(quad r[4])
{
    quad a = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5), b = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
    quad c = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5), d = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
    r[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
    r[1] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
    r[2] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
    r[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
}

/* Packs K steps of four lanes of a panel: to[k * width + i] = row[i][k]. */
static inline void pack_four(float *to, int width, const float *const row[4], int64_t K)
{
    int64_t k = 0;
    for (; k + 4 <= K; k += 4) {
        quad r[4];
        for (int i = 0; i < 4; i++) r[i] = quad_load(row[i] + k);
        quad_transpose(r);
        for (int i = 0; i < 4; i++) quad_store(to + (k + i) * width, r[i]);
    }
    for (; k < K; k++)
        for (int i = 0; i < 4; i++) to[k * width + i] = row[i][k];
}

static const void *element(const void *p, enum dtype t, int64_t i)
{
    return (const char *)p + i * dtype_size(t);
}

/* Packs one panel of n <= width lanes with contiguous k. */
static void pack_along(float *to, int width, const void *from, enum dtype t, int64_t across, int64_t n, int64_t K)
{
    static const float zeros[STRIP];
    float strip[WIDTH_MAX][STRIP];
    for (int64_t k = 0; k < K; k += STRIP, to += STRIP * width) {
        int64_t kn = min_i64(STRIP, K - k);
        for (int i = 0; i < width; i += 4) {
            const float *row[4];
            for (int r = 0; r < 4; r++) {
                row[r] = zeros;
                if (i + r >= n) continue;
                const void *at = element(from, t, (i + r) * across + k);
                row[r] = t == DT_F32 ? at : strip[i + r];
                if (t != DT_F32) dtype_convert(strip[i + r], DT_F32, at, t, kn);
            }
            pack_four(to + i, width, row, kn);
        }
    }
}

/* Distributes n contiguous floats over the panels: step k of the first begins at `to`, the panels
 * are `apart` from each other. The tail of the last one becomes 0. */
static inline __attribute__((always_inline)) void pack_deal(float *to, int width, int64_t apart, const float *from,
                                                            int64_t n)
{
    for (; n >= width; n -= width, from += width, to += apart)
        for (int i = 0; i < width; i += 4) quad_store(to + i, quad_load(from + i));
    for (int i = 0; n > 0 && i < width; i++) to[i] = i < n ? from[i] : 0.0f;
}

/* Packs all panels of n lanes that are contiguous for each k. Eight steps of k come before the next
 * strip of panels: reads stay in eight rows, writes in one strip. */
static inline __attribute__((always_inline)) void pack_across(float *to, int width, const void *from, enum dtype t,
                                                              int64_t along, int64_t n, int64_t K)
{
    float strip[STRIP];
    for (int64_t k8 = 0; k8 < K; k8 += 8)
        for (int64_t i = 0; i < n; i += STRIP)
            for (int64_t k = k8; k < K && k < k8 + 8; k++) {
                int64_t in = min_i64(STRIP, n - i);
                const void *at = element(from, t, i + k * along);
                if (t != DT_F32) dtype_convert(strip, DT_F32, at, t, in);
                pack_deal(to + i * K + k * width, width, width * K, t == DT_F32 ? at : strip, in);
            }
}

/* Does as pack_across, with the widths in use unrolled. */
static void pack_across_any(float *to, int width, const void *from, enum dtype t, int64_t along, int64_t n, int64_t K)
{
    switch (width) {
    case 4: pack_across(to, 4, from, t, along, n, K); return;
    case 8: pack_across(to, 8, from, t, along, n, K); return;
    case 12: pack_across(to, 12, from, t, along, n, K); return;
    case 24: pack_across(to, 24, from, t, along, n, K); return;
    default: pack_across(to, width, from, t, along, n, K); return;
    }
}

/* Packs element by element: neither index is contiguous. */
static void pack_scattered(float *to, int width, const void *from, enum dtype t, int64_t across, int64_t along,
                           int64_t n, int64_t K)
{
    for (int64_t p = 0; p < n; p += width)
        for (int64_t k = 0; k < K; k++)
            for (int64_t i = p; i < p + width; i++)
                *to++ = i < n ? (float)dtype_load(from, t, i * across + k * along) : 0.0f;
}

void pack_panels(float *to, int width, const void *from, enum dtype t, int64_t across, int64_t along, int64_t n,
                 int64_t K)
{
    if (across == 1) {
        pack_across_any(to, width, from, t, along, n, K);
    } else if (along == 1) {
        for (int64_t i = 0; i < n; i += width)
            pack_along(to + i * K, width, element(from, t, i * across), t, across, min_i64(width, n - i), K);
    } else {
        pack_scattered(to, width, from, t, across, along, n, K);
    }
}

/* --- gathered operands ------------------------------------------------------------------- */

/* Packs lanes that are rows: the rows of a panel together, transposed strip by strip. */
static void gather_along(float *to, int width, const struct gather *g, int64_t i, int64_t k, int64_t n, int64_t K)
{
    static const float zeros[STRIP];
    float scratch[WIDTH_MAX][STRIP];
    const float *row[WIDTH_MAX];
    for (int64_t at = 0; at < K; at += STRIP, to += STRIP * width) {
        int64_t kn = min_i64(STRIP, K - at);
        g->strips(g, i, (int)n, k + at, kn, row, scratch);
        for (int64_t r = n; r < width; r++) row[r] = zeros;
        for (int r = 0; r < width; r += 4) pack_four(to + r, width, row + r, kn);
    }
}

/* Packs lanes that are columns: strips of eight rows at a time, distributed over the panels. */
static inline __attribute__((always_inline)) void gather_across(float *to, int width, const struct gather *g, int64_t i,
                                                                int64_t k, int64_t n, int64_t K)
{
    float scratch[8][STRIP];
    const float *row[8];
    for (int64_t k8 = 0; k8 < K; k8 += 8)
        for (int64_t at = 0; at < n; at += STRIP) {
            int64_t in = min_i64(STRIP, n - at);
            int count = (int)min_i64(8, K - k8);
            g->strips(g, k + k8, count, i + at, in, row, scratch);
            for (int r = 0; r < count; r++) pack_deal(to + at * K + (k8 + r) * width, width, width * K, row[r], in);
        }
}

void pack_gathered(float *to, int width, const struct gather *g, bool lanes_are_rows, int64_t i, int64_t k, int64_t n,
                   int64_t K)
{
    if (lanes_are_rows)
        for (int64_t p = 0; p < n; p += width) gather_along(to + p * K, width, g, i + p, k, min_i64(width, n - p), K);
    else if (width == 12) gather_across(to, 12, g, i, k, n, K);
    else if (width == 24) gather_across(to, 24, g, i, k, n, K);
    else gather_across(to, width, g, i, k, n, K);
}

void panel_to_rows(float *rows, int64_t ld, const float *panel, int width, int64_t n, int64_t K, const float *factor)
{
    for (int64_t i = 0; i < n; i += 4) {
        int64_t k = 0;
        for (; i + 4 <= n && k + 4 <= K; k += 4) {
            quad r[4];
            for (int j = 0; j < 4; j++) r[j] = quad_load(panel + (k + j) * width + i);
            quad_transpose(r);
            for (int j = 0; j < 4; j++)
                quad_store(rows + (i + j) * ld + k, factor ? r[j] * factor[i + j] : r[j]);
        }
        for (; k < K; k++)
            for (int64_t j = i; j < min_i64(n, i + 4); j++)
                rows[j * ld + k] = factor ? panel[k * width + j] * factor[j] : panel[k * width + j];
    }
}

void tile_transpose(float *to, const float *from, int64_t ld, int mr, int nr)
{
    for (int i = 0; i < mr; i += 4)
        for (int k = 0; k < nr; k += 4) {
            quad r[4];
            for (int j = 0; j < 4; j++) r[j] = quad_load(from + (i + j) * ld + k);
            quad_transpose(r);
            for (int j = 0; j < 4; j++) quad_store(to + (k + j) * mr + i, r[j]);
        }
}

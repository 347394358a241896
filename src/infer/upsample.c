/*
 * upsample.c: see upsample.h.
 *
 * Two bilinear interpolations, as in the reference implementation: logits to the whole square, of
 * which only the image's part is computed, and from there to the stored size.
 */
#include "infer/upsample.h"

/* The two of `n` source positions around output position `i` of `out`, and the weight of the second
 * (as align_corners=False in PyTorch). */
struct lerp {
    int64_t at, next;
    float weight;
};
static inline struct lerp lerp_at(int64_t i, int64_t n, int64_t out)
{
    float x = ((float)i + 0.5f) * ((float)n / (float)out) - 0.5f;
    if (x < 0) x = 0;
    int64_t at = min_i64((int64_t)x, n - 1);
    return (struct lerp){at, at + (at < n - 1), x - (float)at};
}

/* Bilinear interpolation of [rows][columns] floats in rows of `stride`; computes the first w
 * columns of result row y. */
static void resize_row(const float *from, int64_t rows, int64_t stride, const struct lerp *across, int64_t w, int64_t y,
                       int64_t of, float *to)
{
    const struct lerp down = lerp_at(y, rows, of);
    const float *a = from + down.at * stride, *b = from + down.next * stride;
    for (int64_t x = 0; x < w; x++) {
        const struct lerp u = across[x];
        float above = (1 - u.weight) * a[u.at] + u.weight * a[u.next],
              below = (1 - u.weight) * b[u.at] + u.weight * b[u.next];
        to[x] = (1 - down.weight) * above + down.weight * below;
    }
}

double mask_upsample(const struct mask_view *v, const float *logits, float *fitted, float offset, uint8_t *mask)
{
    const int64_t m = v->logits, side = v->side, fw = v->fit_w, fh = v->fit_h, w = v->w, h = v->h;
    struct lerp *fit = mem_alloc((size_t)fw * sizeof *fit), *whole = mem_alloc((size_t)w * sizeof *whole);
    uint64_t sure = 0, maybe = 0;
    for (int64_t x = 0; x < fw; x++) fit[x] = lerp_at(x, m, side);
    for (int64_t x = 0; x < w; x++) whole[x] = lerp_at(x, fw, w);
#pragma omp parallel for
    for (int64_t y = 0; y < fh; y++) resize_row(logits, m, m, fit, fw, y, side, fitted + y * fw);
#pragma omp parallel reduction(+ : sure, maybe)
    {
        float *row = mem_alloc((size_t)w * sizeof *row);
#pragma omp for
        for (int64_t y = 0; y < h; y++) {
            resize_row(fitted, fh, fw, whole, w, y, h, row);
            for (int64_t x = 0; x < w; x++) {
                mask[y * w + x] = row[x] > 0;
                sure += row[x] > offset;
                maybe += row[x] > -offset;
            }
        }
        mem_free(row);
    }
    mem_free(fit);
    mem_free(whole);
    return maybe ? (double)sure / (double)maybe : 0;
}

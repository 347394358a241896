/*
 * boundary.c: the boundary score F of the DAVIS challenges (score.h).
 *
 *     boundary      pixels that differ from the next one to the right, below, or both
 *     precision     share of the prediction's boundary within a distance of the target's
 *     recall        share of the target's boundary within that distance of the prediction's
 *
 * The distance is 0.008 of the image's diagonal, rounded up.
 */
#include "infer/score.h"

#include <math.h>

static const double REACH = 0.008;

/* Finds the boundary of a mask; returns its pixels. */
static uint64_t find_boundary(const uint8_t *mask, uint32_t w, uint32_t h, uint8_t *out)
{
    uint64_t n = 0;
    for (uint32_t y = 0; y < h; y++)
        for (uint32_t x = 0; x < w; x++) {
            /* beyond the last row and column are the same pixels again */
            const size_t at = (size_t)y * w + x, right = x + 1 < w, below = y + 1 < h ? w : 0;
            const bool own = mask[at];
            out[at] = own != (bool)mask[at + right] || own != (bool)mask[at + below] ||
                      own != (bool)mask[at + right + below];
            n += out[at];
        }
    return n;
}

/* Marks what is within `reach` of a boundary. */
static void spread(const uint8_t *boundary, uint32_t w, uint32_t h, int64_t reach, uint8_t *out)
{
    memset(out, 0, (size_t)w * h);
    for (int64_t y = 0; y < h; y++)
        for (int64_t x = 0; x < w; x++) {
            if (!boundary[y * w + x]) continue;
            for (int64_t v = max_i64(0, y - reach); v <= min_i64(h - 1, y + reach); v++) {
                const int64_t wide = (int64_t)sqrt((double)(reach * reach - (v - y) * (v - y))),
                              from = max_i64(0, x - wide), end = min_i64(w - 1, x + wide);
                memset(out + v * w + from, 1, (size_t)(end - from + 1));
            }
        }
}

static double share(const uint8_t *boundary, uint64_t n, const uint8_t *near, size_t pixels)
{
    uint64_t found = 0;
    for (size_t i = 0; i < pixels; i++) found += boundary[i] && near[i];
    return (double)found / (double)n;
}

double boundary_score(const uint8_t *predicted, const uint8_t *target, uint32_t w, uint32_t h, uint8_t *scratch)
{
    const size_t n = (size_t)w * h;
    const int64_t reach = (int64_t)ceil(REACH * sqrt((double)w * w + (double)h * h));
    uint8_t *of_predicted = scratch, *of_target = scratch + n, *near = scratch + 2 * n;
    const uint64_t p = find_boundary(predicted, w, h, of_predicted), t = find_boundary(target, w, h, of_target);
    if (!p || !t) return !p && !t; /* one of precision and recall is 0 */
    spread(of_target, w, h, reach, near);
    const double precision = share(of_predicted, p, near, n);
    spread(of_predicted, w, h, reach, near);
    const double recall = share(of_target, t, near, n);
    return precision + recall > 0 ? 2 * precision * recall / (precision + recall) : 0;
}

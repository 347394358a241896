/*
 * mask_terms.h: the arithmetic of the mask losses (formulas: graph/vjp.c), written once for the
 * host and for GPUs.
 *
 * Every term of a logit x is computed from e = exp(-|x|), which neither overflows nor cancels:
 * sigmoid(|x|) = 1/(1+e), sigmoid(-|x|) = e/(1+e), log(1 + e^-z) = max(-z, 0) + log(1+e). The
 * exponential and the logarithm are each device's own.
 */
#pragma once

#include "base/shared.h"

/* --- a pixel ---------------------------------------------------------------------------------- */

/* The values of a logit x that the losses need. */
struct mask_pixel {
    float p;         /* sigmoid(x) */
    float z, log1pe; /* x inside the mask, -x outside; log(1 + e) */
    float q, rest;   /* sigmoid(-z), 1 - q */
    float S;         /* log(1 + e^-z) */
    float slope;     /* p (1 - p) */
};

/* Fills the values of a logit; `large` is 1 / (1 + e), `log1pe` is log(1 + e). */
SHARED_INLINE struct mask_pixel mask_pixel_of(float x, int inside, float e, float large, float log1pe)
{
    const float small = e * large, z = inside ? x : -x;
    struct mask_pixel y;
    y.z = z;
    y.log1pe = log1pe;
    y.p = x > 0.0f ? large : small;
    y.q = z > 0.0f ? small : large;
    y.rest = z > 0.0f ? large : small;
    y.S = (z > 0.0f ? 0.0f : -z) + log1pe;
    y.slope = large * small;
    return y;
}

/* Returns -log q = log(1 + e^z). */
SHARED_INLINE float mask_minus_log_q(const struct mask_pixel *y) { return (y->z > 0.0f ? y->z : 0.0f) + y->log1pe; }

/* Returns the number of valid rows or columns, at most `most`; masks that only pad a chunk have a
 * negative value. */
SHARED int64_t mask_valid(int32_t valid, int64_t most) { return valid < 0 ? 0 : valid < most ? valid : most; }

/* --- a mask, from the sums over its pixels ---------------------------------------------------- */

/* The sums of MASK_LOSS and of STRUCTURE_LOSS. */
enum { MASK_FOCAL, MASK_P, MASK_PG, MASK_G, MASK_BOTH, MASK_ON, MASK_SUMS };
enum { STRUCTURE_BCE, STRUCTURE_WEIGHTS, STRUCTURE_SHARED, STRUCTURE_SUM, STRUCTURE_G, STRUCTURE_BOTH, STRUCTURE_ON,
       STRUCTURE_SUMS };

/* Returns the intersection over union of the pixels that are predicted and those of the target. */
SHARED double mask_iou(double both, double predicted, double target)
{
    const double either = target + predicted - both;
    return both / (either < 1 ? 1 : either);
}

/* Returns the loss of a candidate with this number of valid pixels, and dice's numerator A and
 * denominator B. */
SHARED double mask_candidate(const double *s, float focal, float dice, float smooth, double pixels, double *A,
                             double *B)
{
    *A = 2 * s[MASK_PG] + (double)smooth, *B = s[MASK_P] + s[MASK_G] + (double)smooth;
    return (double)focal * s[MASK_FOCAL] / pixels + (double)dice * (1 - *A / *B);
}

/* The factors that all pixels of a mask share: of the focal loss, and the derivative of dice by p,
 * outside and inside the mask. */
struct mask_slopes {
    float focal_off, focal_on, dice_off, dice_on;
};
SHARED struct mask_slopes mask_slopes_of(float focal, float dice, float off, float on, const float *stats,
                                         double pixels, double factor)
{
    const double A = (double)stats[1], B = (double)stats[2], f = (double)focal * factor / pixels,
                 d = (double)dice * factor / (B * B);
    struct mask_slopes s = {(float)(f * (double)off), (float)(f * (double)on), (float)(d * A),
                            (float)(d * (A - 2 * B))};
    return s;
}

/* Returns the structure loss of a mask; sets its statistics and the sum of its weights. */
SHARED double structure_finish(const double *s, float smooth, float *stats, float *weights)
{
    const double A = s[STRUCTURE_SHARED] + (double)smooth, B = s[STRUCTURE_SUM] - s[STRUCTURE_SHARED] + (double)smooth;
    stats[0] = 0, stats[1] = (float)A, stats[2] = (float)B;
    stats[3] = (float)mask_iou(s[STRUCTURE_BOTH], s[STRUCTURE_ON], s[STRUCTURE_G]);
    *weights = (float)s[STRUCTURE_WEIGHTS];
    return s[STRUCTURE_BCE] / s[STRUCTURE_WEIGHTS] + 1 - A / B;
}

/* The factor of the cross-entropy, and of the IoU outside and inside the mask. */
struct structure_slopes {
    float bce, outside, inside;
};
SHARED struct structure_slopes structure_slopes_of(const float *stats, float weights, double factor)
{
    const double A = (double)stats[1], B = (double)stats[2];
    struct structure_slopes s = {(float)(factor / (double)weights), (float)(factor * A / (B * B)),
                                 (float)(-factor / B)};
    return s;
}

/* --- edges ------------------------------------------------------------------------------------
 *
 * How near a pixel is to the edge of a mask of bits is the distance of its own value from the
 * mask's mean over the window around it. The mean's sum is a count of bits, so that it has no
 * order, and host and GPU get the same value.
 *
 *     row       0 0 1 1 1 0 0 1     bits, the lowest first, in 64-bit words
 *     x = 3, radius 2: 3 of 5
 */

/* Returns word i of a row of bits. */
SHARED uint64_t edge_word(const uint8_t *row, int64_t i)
{
#ifdef __CUDA_ARCH__
    return ((const uint64_t *)row)[i];
#else
    uint64_t word;
    memcpy(&word, row + 8 * i, sizeof word);
    return word;
#endif
}

SHARED int edge_ones(uint64_t word)
{
#ifdef __CUDA_ARCH__
    return __popcll(word);
#else
    return __builtin_popcountll(word);
#endif
}

/* Counts the bits that are set from column x - radius to x + radius, of those before `columns`. The
 * radius is at most 31. */
SHARED int edge_count(const uint8_t *row, int64_t x, int64_t columns, int radius)
{
    const int64_t first = x > radius ? x - radius : 0, end = x + radius + 1 < columns ? x + radius + 1 : columns;
    const int shift = (int)(first % 64), n = (int)(end - first);
    uint64_t bits = edge_word(row, first / 64) >> shift;
    if (shift + n > 64) bits |= edge_word(row, first / 64 + 1) << (64 - shift);
    return edge_ones(bits & (((uint64_t)1 << n) - 1));
}

/* Returns |mean - g|, where `count` of size * size pixels are set and g is 0 or 1. */
SHARED float edge_distance(int count, int size, float g)
{
    const float d = shared_sub(shared_div((float)count, (float)(size * size)), g);
    return d < 0.0f ? -d : d;
}

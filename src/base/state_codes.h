/*
 * state_codes.h: numbers between -1 and 1 as one byte: the dynamic quantisation maps of 8-bit
 * optimizer state.
 *
 * A code spends its bits according to the magnitude: far below 1 on the power of ten, near 1 on the
 * fraction. Decade i, 10^(i-7) to 10^(i-6), i = 0..6, has 2^i values (unsigned: 2^(i+1)), the
 * midpoints of equal intervals; 0 and 1 have codes as well.
 *
 *     signed     code  0 ... 126   127   128 ... 254   255
 *               value  -0.993 ... -5.5e-7   0   5.5e-7 ... 0.993   1
 *     unsigned   code  0     1   ...  254   255
 *               value  0  3.25e-7 ... 0.996  1
 *
 * -1 has no code. The values are computed from this rule; there is no table of constants.
 */
#pragma once

#include "base/shared.h"

/* Buckets by a float's exponent and seven bits of its fraction, from 2^-23 to 1. A bucket contains
 * at most one border between two codes. */
enum { CODE_LOW = (127 - 23) << 7, CODE_BUCKETS = (127 << 7) - CODE_LOW + 1 };

struct codes {
    float value[256];            /* indexed by code, ascending */
    float border[256];           /* indexed by magnitude k: above it the nearest is k + 1 */
    uint8_t bucket[CODE_BUCKETS]; /* the nearest magnitude at the bucket's low end */
    int zero;                    /* code of 0: codes below are negative */
    int last;                    /* the largest magnitude; for a negative number it is last - 1 */
};

/* Return a map, built on the first call; thread-safe. */
const struct codes *codes_signed(void);
const struct codes *codes_unsigned(void);

/* Returns the code of the value nearest to x in 0..1, in an unsigned map, or counted from the code
 * of 0. */
SHARED int code_magnitude(const struct codes *c, float x)
{
    int at = (int)(shared_bits(x) >> 16) - CODE_LOW;
    at = at < 0 ? 0 : at >= CODE_BUCKETS ? CODE_BUCKETS - 1 : at;
    int k = c->bucket[at];
    return k + (x > c->border[k]);
}

/* Returns the code of x in -1..1. A negative number never becomes 0: a moment keeps its sign. */
SHARED int code_signed(const struct codes *c, float x)
{
    int k = code_magnitude(c, x < 0 ? -x : x);
    if (!(x < 0)) return c->zero + k;
    k = k < 1 ? 1 : k >= c->last ? c->last - 1 : k;
    return c->zero - k;
}

/*
 * math.h: the exponential that the CPU kernels share, written so that a loop
 * over it vectorises on any ISA: no branch, no table, no call.
 *
 * exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln(2)/2. exp(r) is
 * 1 + r + r^2 q(r) with q of degree 4, interpolated at the Chebyshev nodes:
 * relative error 1.1e-8, far under half an ulp, so the rounding of the last
 * three operations dominates: under 1.1 ulp over all normal results.
 * Results below the smallest denormal are 0, above the largest float +inf,
 * and NaN stays NaN.
 */
#ifndef CPU_MATH_H
#define CPU_MATH_H

#include <stdint.h>

static inline float float_of_bits(uint32_t u)
{
    union { uint32_t u; float f; } v = {u};
    return v.f;
}
static inline uint32_t bits_of_float(float f)
{
    union { float f; uint32_t u; } v = {f};
    return v.u;
}

static inline float exp_fast(float x)
{
    /* |x| at most 104, beyond which the answer is 0 or inf; NaN passes. On the bits,
     * because a float comparison may trap and so keeps a loop from vectorising. */
    const int32_t limit = 0x42d00000, inf = 0x7f800000;
    int32_t size = (int32_t)(bits_of_float(x) & 0x7fffffffu);
    size = ((size > limit) & (size <= inf)) ? limit : size;
    x = float_of_bits((bits_of_float(x) & 0x80000000u) | (uint32_t)size);

    /* Adding 1.5 * 2^23 leaves round(x / ln 2) in the low bits of the sum. */
    const float shift = 12582912.0f;
    float sum = x * 1.44269504f + shift;
    float n = sum - shift;
    uint32_t k = bits_of_float(sum) - bits_of_float(shift);

    /* ln 2 in two parts; the first has 9 bits, so n times it is exact. */
    float r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;

    float q = 0.00139262131f;
    q = q * r + 0.00836320315f;
    q = q * r + 0.0416665561f;
    q = q * r + 0.166665763f;
    q = q * r + 0.5f;
    float p = 1.0f + (r + r * r * q);

    /* 2^n in two factors: n reaches -150 and 150, which no single float holds. */
    uint32_t half = (uint32_t)((int32_t)k >> 1);
    return p * float_of_bits((half + 127) << 23) * float_of_bits((k - half + 127) << 23);
}

/* 1 / (1 + e^-x). */
static inline float sigmoid_fast(float x) { return 1.0f / (1.0f + exp_fast(-x)); }

#endif

/*
 * math.h: the exponential and functions derived from it, shared by the CPU kernels. A loop over
 * them vectorises on any ISA: no branch, no table, no call.
 *
 * exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln(2)/2. exp(r) is 1 + r + r^2 q(r) with q of
 * degree 4, interpolated at the Chebyshev nodes: relative error 1.1e-8, far below half an ulp, so
 * the rounding of the last three operations dominates: under 1.1 ulp over all normal results.
 * Results below the smallest denormal are 0, above the largest float +inf, and NaN stays NaN.
 */
#pragma once

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

static inline float exp_fast(float in)
{
    /* Clamps to -104 .. 104, beyond which the result is 0 or inf. Clamping the bits takes one
     * instruction per bound: as signed integers they order positive floats, as unsigned integers
     * negative ones. NaN does not survive this and is restored at the end. */
    const int32_t most = 0x42d00000;
    const uint32_t least = 0xc2d00000u;
    int32_t above = (int32_t)bits_of_float(in);
    above = above < most ? above : most;
    uint32_t below = (uint32_t)above;
    below = below < least ? below : least;
    const float x = float_of_bits(below);

    /* Adding 1.5 * 2^23 leaves round(x / ln 2) in the low bits of the sum. */
    const float shift = 12582912.0f;
    float sum = x * 1.44269504f + shift;
    float n = sum - shift;

    /* ln 2 in two parts; the first has 9 bits, so n times it is exact. */
    float r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;

    float q = 0.00139262131f;
    q = q * r + 0.00836320315f;
    q = q * r + 0.0416665561f;
    q = q * r + 0.166665763f;
    q = q * r + 0.5f;
    float p = 1.0f + (r + r * r * q);

    /* 2^n in two factors: n reaches -150 and 150, which no single float represents. The bits of
     * `shift` itself are zeros below the tenth, and are shifted out when n moves to the
     * exponent. */
    uint32_t half = bits_of_float(sum) >> 1 << 23, rest = (bits_of_float(sum) << 23) - half;
    float y = p * float_of_bits(half + 0x3f800000u) * float_of_bits(rest + 0x3f800000u);
    return in == in ? y : in;
}

/*
 * e^x for x <= 0, including -0, and 0 below -87.68: simpler than exp_fast, because the other cases
 * cannot occur. The sum holds n + 127, which is the exponent of 2^n. NaN may become any number.
 */
static inline float exp_down(float in)
{
    const uint32_t least = 0xc2b00000u; /* -88; for negative floats the order is the reverse of that of their bits */
    uint32_t bits = bits_of_float(in);
    const float x = float_of_bits(bits < least ? bits : least), shift = 12582912.0f + 127.0f;
    float sum = x * 1.44269504f + shift;
    float n = sum - shift;
    float r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;

    float q = 0.00139262131f;
    q = q * r + 0.00836320315f;
    q = q * r + 0.0416665561f;
    q = q * r + 0.166665763f;
    q = q * r + 0.5f;
    return (1.0f + (r + r * r * q)) * float_of_bits(bits_of_float(sum) << 23);
}

/* Returns 1 / (1 + e^-x). */
static inline float sigmoid_fast(float x) { return 1.0f / (1.0f + exp_fast(-x)); }

/* Returns `magnitude`, which is not negative, with the sign of x. */
static inline float with_sign(float magnitude, float x)
{
    return float_of_bits(bits_of_float(magnitude) | (bits_of_float(x) & 0x80000000u));
}
/* Reports whether |x| < limit, both as bits: the order of floats that are not negative is that of
 * their bits. */
static inline int is_within(float x, uint32_t limit)
{
    return (int32_t)(bits_of_float(x) & 0x7fffffffu) < (int32_t)limit;
}

/*
 * tanh(x). Up to 0.6 it is x + x^3 p(x^2), p of degree 4, interpolated at the Chebyshev nodes
 * (relative error 1.1e-8); above, 1 - 2 / (e^2|x| + 1), which does not cancel there. Under 1.4 ulp
 * everywhere; odd; NaN stays NaN.
 */
static inline float tanh_fast(float x)
{
    const float a = float_of_bits(bits_of_float(x) & 0x7fffffffu), z = x * x;
    float p = -0.00626911973f;
    p = p * z + 0.0211109591f;
    p = p * z + -0.0538739489f;
    p = p * z + 0.133329154f;
    p = p * z + -0.333333303f;
    const float near = a + a * z * p, far = 1.0f - 2.0f / (exp_fast(2.0f * a) + 1.0f);
    return with_sign(is_within(x, 0x3f19999au) ? near : far, x); /* 0.6 */
}

/*
 * log(1 + x) for x from 0 to 1: 2 atanh(t) with t = x / (2 + x) <= 1/3, that is t (2 + t^2 p(t^2)),
 * p of degree 3 (relative error 1.6e-8). Under 2 ulp. With x = e^-|z| it computes the logarithm of
 * a sigmoid.
 */
static inline float log1p_unit(float x)
{
    const float t = x / (2.0f + x), z = t * t;
    float p = 0.268514991f;
    p = p * z + 0.282366186f;
    p = p * z + 0.400075614f;
    p = p * z + 0.666666389f;
    return 2.0f * t + t * z * p;
}

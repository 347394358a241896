/*
 * e4m3.h: numbers of 8 bits with a sign, 4 bits of exponent and 3 of mantissa (float8_e4m3fn), and
 * the power of two that a group of values shares: the same bits on every device.
 *
 *     code   s eeee mmm    e = 0: m 2^-9    else (1 + m / 8) 2^(e - 7)    s 1111 111: NaN
 *     value  code * scale  scale = 2^-k, k the largest number with max |x| 2^k <= 448
 *
 * There is no infinity, and values beyond 448, the largest, become 448. Multiplying by a power of
 * two is exact, so a value is rounded once; codes times scale are exact in f32 and in bf16.
 */
#pragma once

#include "base/shared.h"

SHARED float e4m3_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* k is at most this, so that codes times scale are no subnormal f32: smaller values lose bits. */
enum { E4M3_EXPONENT_MOST = 100 };

/* The scale of a group of values, whose largest magnitude has the bits `most` as f32, and the
 * factor 1 / scale that they are multiplied by before rounding. Zeros have scale 1. A group with a
 * value that is not finite has scale NaN: its results are not finite either. */
struct e4m3_scale {
    float scale, factor;
};
SHARED struct e4m3_scale e4m3_scale_of(uint32_t most)
{
    struct e4m3_scale s;
    int k = 8 - ((int)(most >> 23) - 127) - ((most & 0x7fffffu) > 0x600000u); /* 448 = 1.75 * 2^8 */
    if (k > E4M3_EXPONENT_MOST) k = E4M3_EXPONENT_MOST;
    if (most == 0) k = 0;
    s.scale = e4m3_float(most >= 0x7f800000u ? 0x7fc00000u : (uint32_t)(127 - k) << 23);
    s.factor = e4m3_float((uint32_t)(127 + k) << 23);
    return s;
}

/* Rounds to nearest even; |x| beyond 448 becomes 448, NaN the positive NaN. */
SHARED uint8_t e4m3_from_f32(float x)
{
    const uint32_t bits = shared_bits(x), magnitude = bits & 0x7fffffffu;
    const uint32_t cut = magnitude > 0x43e00000u ? 0x43e00000u : magnitude; /* 448 */
    /* below 2^-6 a unit in the last place is 2^-9, as it is in f32 from 2^14 on */
    const uint32_t small = shared_bits(e4m3_float(cut) + 16384.f) - 0x46800000u;
    const uint32_t normal = ((cut + 0x7ffffu + (cut >> 20 & 1)) >> 20) - (120u << 3);
    const uint32_t code = cut < 0x3c800000u ? small : normal;
    return magnitude > 0x7f800000u ? 0x7f : (uint8_t)(code | (bits >> 24 & 0x80u));
}

SHARED float e4m3_to_f32(uint8_t code)
{
    const uint32_t magnitude = code & 0x7fu, sign = (uint32_t)(code & 0x80u) << 24;
    const uint32_t normal = (magnitude << 20) + (120u << 23), small = shared_bits((float)(int)magnitude * 0x1p-9f);
    const uint32_t value = magnitude == 0x7f ? 0x7fc00000u : magnitude < 8 ? small : normal;
    return e4m3_float(value | sign);
}

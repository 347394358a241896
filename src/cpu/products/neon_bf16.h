/*
 * neon_bf16.h: Arm's bf16 instructions for single functions of a file that is built for any Arm
 * processor.
 *
 * gcc has intrinsics for them in functions with the target attribute. clang has these intrinsics
 * only in files that are built for such a processor throughout, so there the instructions are
 * written out. bf16 values are held as their bits.
 */
#pragma once

#include <arm_neon.h>

#if defined(__clang__)

#define WITH_BF16 __attribute__((target("bf16")))
#define BF16_INLINE WITH_BF16 static inline __attribute__((always_inline))

/* Returns sum [2 x 2] + a [2 x 4] b [2 x 4]^T. */
BF16_INLINE float32x4_t bf16_mmla(float32x4_t sum, uint16x8_t a, uint16x8_t b)
{
    __asm__("bfmmla %0.4s, %1.8h, %2.8h" : "+w"(sum) : "w"(a), "w"(b));
    return sum;
}

/* Rounds to nearest, ties to even. */
BF16_INLINE uint16x4_t bf16_narrow(float32x4_t x)
{
    uint16x4_t y;
    __asm__("bfcvtn %0.4h, %1.4s" : "=w"(y) : "w"(x));
    return y;
}

BF16_INLINE uint16x8_t bf16_narrow_two(float32x4_t low, float32x4_t high)
{
    uint16x8_t y;
    __asm__("bfcvtn %0.4h, %1.4s\n\tbfcvtn2 %0.8h, %2.4s" : "=&w"(y) : "w"(low), "w"(high));
    return y;
}

#else

#define WITH_BF16 __attribute__((target("arch=armv8.2-a+bf16")))
#define BF16_INLINE WITH_BF16 static inline __attribute__((always_inline))

BF16_INLINE float32x4_t bf16_mmla(float32x4_t sum, uint16x8_t a, uint16x8_t b)
{
    return vbfmmlaq_f32(sum, vreinterpretq_bf16_u16(a), vreinterpretq_bf16_u16(b));
}

BF16_INLINE uint16x4_t bf16_narrow(float32x4_t x) { return vreinterpret_u16_bf16(vcvt_bf16_f32(x)); }

BF16_INLINE uint16x8_t bf16_narrow_two(float32x4_t low, float32x4_t high)
{
    return vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(low), high));
}

#endif

/*
 * colour.c: see colour.h. Eight samples at a time by vectors, the rest one by one; both have the same
 * integers.
 */
#include "data/colour.h"

#include <string.h>

#if defined(__ARM_NEON) && defined(__aarch64__)
#include <arm_neon.h>
#endif

typedef uint8_t bytes16 __attribute__((vector_size(16)));
typedef int16_t shorts8 __attribute__((vector_size(16)));
typedef int32_t ints4 __attribute__((vector_size(16)));

__attribute__((unused)) static inline shorts8 eight_of(const uint8_t *p)
{
    bytes16 b = {0};
    memcpy(&b, p, 8);
    return (shorts8)__builtin_shufflevector(b, (bytes16){0}, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}

/* Twice as many samples: 9, 3, 3 and 1 parts of the four around, of 16. */
void colour_widen(uint8_t *to, const uint8_t *near, const uint8_t *far, uint32_t n)
{
    uint32_t x = 0;
    to[0] = (uint8_t)(((3 * near[0] + far[0]) * 4 + 8) >> 4);
    for (; x + 9 <= n; x += 8) {
#if defined(__ARM_NEON) && defined(__aarch64__)
        uint8x8_t three = vdup_n_u8(3);
        uint16x8_t left = vmlal_u8(vmovl_u8(vld1_u8(far + x)), vld1_u8(near + x), three);
        uint16x8_t right = vmlal_u8(vmovl_u8(vld1_u8(far + x + 1)), vld1_u8(near + x + 1), three);
        uint8x8x2_t both = {{vshrn_n_u16(left * 3 + right + 7, 4), vrshrn_n_u16(right * 3 + left, 4)}};
        vst2_u8(to + 2 * x + 1, both);
#else
        shorts8 left = eight_of(near + x) * 3 + eight_of(far + x), right = eight_of(near + x + 1) * 3 + eight_of(far + x + 1);
        bytes16 odd = (bytes16)((left * 3 + right + 7) >> 4), even = (bytes16)((right * 3 + left + 8) >> 4);
        bytes16 both = __builtin_shufflevector(odd, even, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);
        memcpy(to + 2 * x + 1, &both, sizeof both);
#endif
    }
    for (; x + 1 < n; x++) {
        int left = 3 * near[x] + far[x], right = 3 * near[x + 1] + far[x + 1];
        to[2 * x + 1] = (uint8_t)((3 * left + right + 7) >> 4);
        to[2 * x + 2] = (uint8_t)((3 * right + left + 8) >> 4);
    }
    to[2 * n - 1] = (uint8_t)(((3 * near[n - 1] + far[n - 1]) * 4 + 7) >> 4);
}

static inline uint8_t byte_of(int v) { return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v); }

__attribute__((unused)) static inline shorts8 limit(shorts8 v)
{
    shorts8 top = {255, 255, 255, 255, 255, 255, 255, 255};
    v &= ~(v >> 15);
    shorts8 above = (shorts8)(v > top);
    return (v & ~above) | (top & above);
}

__attribute__((unused)) static inline ints4 low_of(shorts8 v) { return (ints4)__builtin_shufflevector((shorts8){0}, v, 0, 8, 1, 9, 2, 10, 3, 11) >> 16; }
__attribute__((unused)) static inline ints4 high_of(shorts8 v) { return (ints4)__builtin_shufflevector((shorts8){0}, v, 4, 12, 5, 13, 6, 14, 7, 15) >> 16; }
/* The upper halves: a shift by 16, and narrow. */
__attribute__((unused)) static inline shorts8 tops(ints4 a, ints4 b) { return __builtin_shufflevector((shorts8)a, (shorts8)b, 1, 3, 5, 7, 9, 11, 13, 15); }

/* Eight pixels; 16-bit fractions, rounded, as libjpeg has them. */
#if defined(__ARM_NEON) && defined(__aarch64__)
/* Constants beyond 16 bits are written as a multiple of 65536 and a rest. */
static inline void colour_eight(uint8_t *rgb, const uint8_t *luma, const uint8_t *blue, const uint8_t *red)
{
    int16x8_t y = vreinterpretq_s16_u16(vmovl_u8(vld1_u8(luma))), half = vdupq_n_s16(128);
    int16x8_t cb = vreinterpretq_s16_u16(vmovl_u8(vld1_u8(blue))) - half, cr = vreinterpretq_s16_u16(vmovl_u8(vld1_u8(red))) - half;
    int16x4_t b0 = vget_low_s16(cb), r0 = vget_low_s16(cr);
    int16x8_t r = vrshrn_high_n_s32(vrshrn_n_s32(vmull_n_s16(r0, 26345), 16), vmull_high_n_s16(cr, 26345), 16);
    int16x8_t b = vrshrn_high_n_s32(vrshrn_n_s32(vmull_n_s16(b0, -14942), 16), vmull_high_n_s16(cb, -14942), 16);
    int32x4_t g0 = vmlal_n_s16(vmull_n_s16(b0, -22554), r0, 18734), g1 = vmlal_high_n_s16(vmull_high_n_s16(cb, -22554), cr, 18734);
    int16x8_t g = vrshrn_high_n_s32(vrshrn_n_s32(g0, 16), g1, 16);
    uint8x8x3_t out = {{vqmovun_s16(y + cr + r), vqmovun_s16(y - cr + g), vqmovun_s16(y + cb + cb + b)}};
    vst3_u8(rgb, out);
}
#else
static inline void colour_eight(uint8_t *rgb, const uint8_t *luma, const uint8_t *blue, const uint8_t *red)
{
    shorts8 y = eight_of(luma), cb = eight_of(blue) - 128, cr = eight_of(red) - 128;
    ints4 b0 = low_of(cb), b1 = high_of(cb), r0 = low_of(cr), r1 = high_of(cr);
    bytes16 r = (bytes16)limit(y + tops(r0 * 91881 + 32768, r1 * 91881 + 32768));
    bytes16 g = (bytes16)limit(y + tops(b0 * -22554 - r0 * 46802 + 32768, b1 * -22554 - r1 * 46802 + 32768));
    bytes16 b = (bytes16)limit(y + tops(b0 * 116130 + 32768, b1 * 116130 + 32768));
    bytes16 rg = r | (bytes16)((shorts8)g << 8); /* r g r g ... */
    bytes16 first = __builtin_shufflevector(rg, b, 0, 1, 16, 2, 3, 18, 4, 5, 20, 6, 7, 22, 8, 9, 24, 10);
    bytes16 rest = __builtin_shufflevector(rg, b, 11, 26, 12, 13, 28, 14, 15, 30, 0, 0, 0, 0, 0, 0, 0, 0);
    memcpy(rgb, &first, 16);
    memcpy(rgb + 16, &rest, 8);
}
#endif

void colour_row(uint8_t *rgb, const uint8_t *luma, const uint8_t *blue, const uint8_t *red, uint32_t n)
{
    uint32_t x = 0;
    for (; x + 8 <= n; x += 8) colour_eight(rgb + 3 * (size_t)x, luma + x, blue + x, red + x);
    for (; x < n; x++) {
        int y = luma[x], cb = blue[x] - 128, cr = red[x] - 128;
        rgb[3 * x] = byte_of(y + ((91881 * cr + 32768) >> 16));
        rgb[3 * x + 1] = byte_of(y + ((-22554 * cb - 46802 * cr + 32768) >> 16));
        rgb[3 * x + 2] = byte_of(y + ((116130 * cb + 32768) >> 16));
    }
}

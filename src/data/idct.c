/*
 * idct.c: see idct.h.
 *
 * A vector holds one row of 8 coefficients, so a pass down the columns is straight code over
 * vectors; the pass along rows is the same code between two transpositions. Products need 32
 * bits and take two vectors of 4; between passes everything fits 16.
 *
 * Loeffler, Ligtenberg and Moschytz, 12 multiplications for 8 points, constants scaled by
 * 2^13. The 4-point one leaves out frequency 4 (it adds nothing to the sum of two neighbours
 * there) and folds the mean into its constants.
 */
#include "data/idct.h"

#include <string.h>

typedef int16_t shorts8 __attribute__((vector_size(16)));
typedef int32_t ints4 __attribute__((vector_size(16)));
typedef uint8_t bytes16 __attribute__((vector_size(16)));
#define INLINE static inline __attribute__((always_inline))

enum { SCALE = 13, BETWEEN = 2 };

INLINE shorts8 row_of(const int16_t *p)
{
    shorts8 v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* 16 bits in the upper half of 32, shifted down with their sign. */
INLINE ints4 low_of(shorts8 v) { return (ints4)__builtin_shufflevector((shorts8){0}, v, 0, 8, 1, 9, 2, 10, 3, 11) >> 16; }
INLINE ints4 high_of(shorts8 v) { return (ints4)__builtin_shufflevector((shorts8){0}, v, 4, 12, 5, 13, 6, 14, 7, 15) >> 16; }
INLINE shorts8 narrow(ints4 a, ints4 b) { return __builtin_shufflevector((shorts8)a, (shorts8)b, 0, 2, 4, 6, 8, 10, 12, 14); }

INLINE void transpose(shorts8 v[8])
{
    shorts8 a[8], b[8];
    for (int i = 0; i < 4; i++) {
        a[2 * i] = __builtin_shufflevector(v[i], v[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
        a[2 * i + 1] = __builtin_shufflevector(v[i], v[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
    for (int i = 0; i < 4; i++) {
        b[2 * i] = __builtin_shufflevector(a[i], a[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
        b[2 * i + 1] = __builtin_shufflevector(a[i], a[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
    for (int i = 0; i < 4; i++) {
        v[2 * i] = __builtin_shufflevector(b[i], b[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
        v[2 * i + 1] = __builtin_shufflevector(b[i], b[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
}

/* Eight points, four of them side by side; the sums are rounded and shifted down. */
INLINE void eight(const ints4 in[8], ints4 out[8], int shift)
{
    ints4 round = {1 << (shift - 1), 1 << (shift - 1), 1 << (shift - 1), 1 << (shift - 1)};
    ints4 z = (in[2] + in[6]) * 4433, two = z - in[6] * 15137, three = z + in[2] * 6270;
    ints4 zero = (in[0] + in[4]) * (1 << SCALE) + round, one = (in[0] - in[4]) * (1 << SCALE) + round;
    ints4 e0 = zero + three, e3 = zero - three, e1 = one + two, e2 = one - two;
    ints4 z1 = (in[7] + in[1]) * -7373, z2 = (in[5] + in[3]) * -20995, z3 = in[7] + in[3], z4 = in[5] + in[1];
    ints4 z5 = (z3 + z4) * 9633;
    z3 = z3 * -16069 + z5;
    z4 = z4 * -3196 + z5;
    ints4 o0 = in[7] * 2446 + z1 + z3, o1 = in[5] * 16819 + z2 + z4, o2 = in[3] * 25172 + z2 + z3, o3 = in[1] * 12299 + z1 + z4;
    out[0] = (e0 + o3) >> shift, out[7] = (e0 - o3) >> shift;
    out[1] = (e1 + o2) >> shift, out[6] = (e1 - o2) >> shift;
    out[2] = (e2 + o1) >> shift, out[5] = (e2 - o1) >> shift;
    out[3] = (e3 + o0) >> shift, out[4] = (e3 - o0) >> shift;
}

/* Four points out of eight frequencies, of which in[4] is not looked at. */
INLINE void four(const ints4 in[8], ints4 out[4], int shift)
{
    ints4 round = {1 << (shift - 1), 1 << (shift - 1), 1 << (shift - 1), 1 << (shift - 1)};
    ints4 first = in[0] * (1 << (SCALE + 1)) + round, second = in[2] * 15137 - in[6] * 6270;
    ints4 e0 = first + second, e1 = first - second;
    ints4 o1 = in[7] * -1730 + in[5] * 11893 - in[3] * 17799 + in[1] * 8697;
    ints4 o0 = in[7] * -4176 - in[5] * 4926 + in[3] * 7373 + in[1] * 20995;
    out[0] = (e0 + o0) >> shift, out[3] = (e0 - o0) >> shift;
    out[1] = (e1 + o1) >> shift, out[2] = (e1 - o1) >> shift;
}

/* Samples are around 0 so far; bytes are around 128. */
INLINE shorts8 to_bytes(shorts8 v)
{
    shorts8 top = {255, 255, 255, 255, 255, 255, 255, 255};
    v += 128;
    v &= ~(v >> 15);
    shorts8 above = (shorts8)(v > top);
    return (v & ~above) | (top & above);
}

INLINE bytes16 pack(shorts8 a, shorts8 b)
{
    return __builtin_shufflevector((bytes16)a, (bytes16)b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
}

INLINE void pass_eight(shorts8 v[8], int shift)
{
    ints4 low[8], high[8], l[8], h[8];
    for (int i = 0; i < 8; i++) low[i] = low_of(v[i]), high[i] = high_of(v[i]);
    eight(low, l, shift);
    eight(high, h, shift);
    for (int i = 0; i < 8; i++) v[i] = narrow(l[i], h[i]);
}

void idct_8x8(const int16_t *coef, const int16_t *quant, uint8_t *to, size_t stride)
{
    shorts8 v[8];
    for (int i = 0; i < 8; i++) v[i] = row_of(coef + 8 * i) * row_of(quant + 8 * i);
    pass_eight(v, SCALE - BETWEEN);
    transpose(v);
    pass_eight(v, SCALE + BETWEEN + 3);
    transpose(v);
    for (int i = 0; i < 8; i += 2) {
        bytes16 rows = pack(to_bytes(v[i]), to_bytes(v[i + 1]));
        memcpy(to + (size_t)i * stride, &rows, 8);
        memcpy(to + (size_t)(i + 1) * stride, (char *)&rows + 8, 8);
    }
}

void idct_4x4(const int16_t *coef, const int16_t *quant, uint8_t *to, size_t stride)
{
    shorts8 v[8];
    ints4 low[8], high[8], l[4], h[4];
    for (int i = 0; i < 8; i++) {
        v[i] = row_of(coef + 8 * i) * row_of(quant + 8 * i);
        low[i] = low_of(v[i]), high[i] = high_of(v[i]);
    }
    four(low, l, SCALE - BETWEEN + 1);
    four(high, h, SCALE - BETWEEN + 1);
    /* Transposed: the 4 rows of each of 8 columns. */
    for (int i = 0; i < 4; i++) v[i] = narrow(l[i], h[i]), v[i + 4] = (shorts8){0};
    transpose(v);
    for (int i = 0; i < 8; i++) low[i] = low_of(v[i]);
    four(low, l, SCALE + BETWEEN + 3 + 1);
    shorts8 a = to_bytes(narrow(l[0], l[1])), b = to_bytes(narrow(l[2], l[3]));
    bytes16 columns = pack(a, b);
    bytes16 rows = __builtin_shufflevector(columns, columns, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    for (int i = 0; i < 4; i++) memcpy(to + (size_t)i * stride, (char *)&rows + 4 * i, 4);
}

uint8_t idct_flat(int16_t coef, int16_t quant)
{
    int v = ((int16_t)(coef * quant) * (1 << BETWEEN) + (1 << (BETWEEN + 2))) >> (BETWEEN + 3);
    v += 128;
    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

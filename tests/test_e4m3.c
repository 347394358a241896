/*
 * test_e4m3.c: numbers of 8 bits (base/e4m3.h):
 *
 *     nearest    every bf16 has the code of the nearest number, ties to the even code
 *     torch      PyTorch's cast gives the same codes (tests/golden/fp8/e4m3.txt)
 *     scales     largest magnitudes and the scales of their rows, from PyTorch (rows.txt)
 *     groups     no number of a group saturates, and none could have a larger factor
 *     twice      quantizing decoded numbers by another scale keeps them, but for small ones
 */
#include "base/e4m3.h"

#include "base/dtype.h"
#include "harness.h"

#define GOLDEN "tests/golden/fp8/"

static float from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* The definition: the sign, 4 bits of exponent and 3 of mantissa. */
static double value_of(int code)
{
    const int e = code >> 3 & 15, m = code & 7;
    const double x = e ? (1 + m / 8.0) * exp2(e - 7) : m * exp2(-9);
    return code & 0x80 ? -x : x;
}

TEST(test_nearest)
{
    for (int code = 0; code < 256; code++) {
        if ((code & 0x7f) == 0x7f) assert_true(isnan(e4m3_to_f32((uint8_t)code)));
        else assert_true((double)e4m3_to_f32((uint8_t)code) == value_of(code));
    }
    for (uint32_t b = 0; b < 65536; b++) {
        const float x = bf16_to_f32((uint16_t)b);
        const int got = e4m3_from_f32(x);
        if (isnan(x)) {
            assert_int_equal(got, 0x7f);
            continue;
        }
        int best = isinf(x) ? 0x7e : 0;
        for (int code = 0; code < 0x7f && !isinf(x); code++) {
            const double d = fabs((double)fabsf(x) - value_of(code)), least = fabs((double)fabsf(x) - value_of(best));
            if (d < least || (d == least && !(code & 1))) best = code;
        }
        if (got != (best | (signbit(x) ? 0x80 : 0))) fail_msg("%g has the code %d, the nearest is %d", x, got, best);
    }
    /* between two bf16 and halfway between two codes: the f32 next to it decides */
    assert_int_equal(e4m3_from_f32(1.0625f), 0x38);
    assert_int_equal(e4m3_from_f32(nextafterf(1.0625f, 2)), 0x39);
    assert_int_equal(e4m3_from_f32(nextafterf(1.1875f, 1)), 0x39);
    assert_int_equal(e4m3_from_f32(1.1875f), 0x3a);
    assert_int_equal(e4m3_from_f32(1e30f), 0x7e);
}

TEST(test_torch)
{
    uint64_t hash = 0xcbf29ce484222325ull, want;
    FILE *f = fopen(GOLDEN "e4m3.txt", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%" SCNx64, &want), 1);
    fclose(f);
    for (uint32_t b = 0; b < 65536; b++)
        if (isfinite(bf16_to_f32((uint16_t)b)))
            hash = (hash ^ e4m3_from_f32(bf16_to_f32((uint16_t)b))) * 0x100000001b3ull;
    assert_true(hash == want);
}

TEST(test_scales)
{
    FILE *f = fopen(GOLDEN "rows.txt", "r");
    uint32_t bits;
    int exponent, n = 0;
    assert_non_null(f);
    for (; fscanf(f, "%" SCNx32 " %d", &bits, &exponent) == 2; n++) {
        const struct e4m3_scale s = e4m3_scale_of(bits);
        if (s.scale != ldexpf(1, exponent) || s.factor != ldexpf(1, -exponent))
            fail_msg("rows up to %g have the scale %g, expected 2^%d", from_bits(bits), s.scale, exponent);
    }
    fclose(f);
    assert_true(n > 10);
    assert_true(isnan(e4m3_scale_of(0x7f800000u).scale) && isnan(e4m3_scale_of(0x7fc00001u).scale));
}

TEST(test_groups)
{
    for (uint32_t bits = 0x00800000u; bits < 0x7f800000u; bits += 0x1235u) {
        const struct e4m3_scale s = e4m3_scale_of(bits);
        const double most = (double)from_bits(bits);
        assert_true(most * (double)s.factor <= 448 && (double)s.factor * (double)s.scale == 1);
        if (s.factor != 0x1p100f) assert_true(most * 2 * (double)s.factor > 448);
    }
}

TEST(test_twice)
{
    for (uint32_t b = 0; b < 0x7f80; b++) {
        const float x = bf16_to_f32((uint16_t)b);
        for (int k = -2; k <= 2; k++) {
            const float once = e4m3_to_f32(e4m3_from_f32(x)), by = ldexpf(1, 4 * k);
            const float twice = e4m3_to_f32(e4m3_from_f32(once * by)) / by;
            const float scaled = once * by;
            if (scaled <= 448 && (scaled >= 0x1p-6f || once == 0)) assert_true(twice == once);
        }
    }
}

MAIN(NULL, NULL)

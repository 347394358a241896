/*
 * dtype.c: the traits rows, and conversion between element types.
 *
 * Invariant: every conversion rounds once, to nearest even. A double that goes to
 * bf16 or f16 passes through an f32 rounded to odd. That keeps the sticky bit, so
 * the second rounding knows whether the first one dropped bits.
 *
 * Floats convert to integers by truncation, like a C cast, but saturate, and NaN becomes 0;
 * integers convert to integers exactly, or saturate.
 */
#include <float.h>
#include <limits.h>
#include <math.h>

#include "base/dtype.h"
#include "base/e4m3.h"

const struct dtype_traits dtype_table[DT_COUNT] = {
    [DT_NONE] = {"none", "", 0, false, 0},
    [DT_F64] = {"f64", "F64", 8, true, DBL_EPSILON},
    [DT_F32] = {"f32", "F32", 4, true, FLT_EPSILON},
    [DT_BF16] = {"bf16", "BF16", 2, true, 0x1p-7},
    [DT_F16] = {"f16", "F16", 2, true, 0x1p-10},
    [DT_I64] = {"i64", "I64", 8, false, 0},
    [DT_I32] = {"i32", "I32", 4, false, 0},
    [DT_U8] = {"u8", "U8", 1, false, 0},
    [DT_E4M3] = {"e4m3", "", 1, false, 0}, /* a file has the scales in another tensor */
};

enum dtype dtype_by_safetensors_name(const char *name)
{
    for (int t = DT_NONE + 1; t < DT_COUNT; t++)
        if (*name && !strcmp(dtype_table[t].safetensors, name)) return (enum dtype)t;
    return DT_NONE;
}

/* ---- f16 ---- */

union bits32 {
    float f;
    uint32_t u;
};

/* Selects by mask. With a plain ?: the compiler could move the float operation of one side into
 * a branch, and a loop with branches is not vectorised. */
static inline uint32_t pick(bool which, uint32_t yes, uint32_t no)
{
    uint32_t mask = -(uint32_t)which;
    return (yes & mask) | (no & ~mask);
}

/* Widens an f16: 112 = 127 - 15 moves the exponent; a subnormal is its mantissa times 2^-24. */
static inline float f16_widen(uint16_t x)
{
    uint32_t magnitude = x & 0x7fffu, sign = (uint32_t)(x & 0x8000u) << 16;
    union bits32 normal = {.u = (magnitude << 13) + (112u << 23)};
    union bits32 subnormal = {.f = (float)(int32_t)magnitude * 0x1p-24f};
    uint32_t u = pick(magnitude < 0x0400u, subnormal.u, normal.u);
    u = pick(magnitude >= 0x7c00u, normal.u + (112u << 23), u); /* inf, NaN: exponent 255 */
    return (union bits32){.u = u | sign}.f;
}

/* Rounds to f16, to nearest even. Normal results: add half a unit (less one if even) below the cut,
 * then cut. A carry may run into the exponent, which is a correct round up; past the largest
 * exponent it is infinity. Subnormal results: 0.5f has a unit of exactly 2^-24, so adding it makes
 * the hardware round at the right bit. */
static inline uint16_t f16_narrow(float x)
{
    union bits32 v = {.f = x};
    uint32_t sign = v.u >> 16 & 0x8000u, a = v.u & 0x7fffffffu;
    union bits32 shifted = {.f = (union bits32){.u = a}.f + 0.5f};
    uint32_t small = shifted.u - 0x3f000000u;
    uint32_t normal = (a + 0xfffu + (a >> 13 & 1) - (112u << 23)) >> 13;
    normal = pick(normal > 0x7c00u, 0x7c00u, normal);
    uint32_t h = pick(a < 0x38800000u, small, normal);
    h = pick(a > 0x7f800000u, 0x7e00u | (a >> 13 & 0x3ffu), h);
    return (uint16_t)(h | sign);
}

float f16_to_f32(uint16_t x)
{
    return f16_widen(x);
}

uint16_t f32_to_f16(float x)
{
    return f16_narrow(x);
}

/* ---- one element ---- */

/* Returns the f32 next to x towards zero, with its last bit set when anything was lost. */
static float round_to_odd(double x)
{
    union bits32 v = {.f = (float)x};
    if (isnan(x) || (double)v.f == x) return v.f;
    if (fabs((double)v.f) > fabs(x)) v.u--;
    v.u |= 1;
    return v.f;
}

/* Saturates; the upper bounds are the first doubles that do not fit. */
static int64_t integer_from_double(double x, int64_t lowest, int64_t highest)
{
    if (isnan(x)) return 0;
    if (x <= (double)lowest) return lowest;
    if (x >= (double)highest) return highest;
    return (int64_t)x;
}

double dtype_load_any(const void *p, enum dtype t, int64_t i)
{
    switch (t) {
    case DT_F64: return ((const double *)p)[i];
    case DT_F32: return ((const float *)p)[i];
    case DT_BF16: return bf16_to_f32(((const uint16_t *)p)[i]);
    case DT_F16: return f16_widen(((const uint16_t *)p)[i]);
    case DT_I64: return (double)((const int64_t *)p)[i];
    case DT_I32: return ((const int32_t *)p)[i];
    case DT_U8: return ((const uint8_t *)p)[i];
    case DT_E4M3: return (double)e4m3_to_f32(((const uint8_t *)p)[i]);
    default: CHECK(0, "cannot load dtype %d", (int)t);
    }
    return 0;
}

void dtype_store(void *p, enum dtype t, int64_t i, double x)
{
    switch (t) {
    case DT_F64: ((double *)p)[i] = x; return;
    case DT_F32: ((float *)p)[i] = (float)x; return;
    case DT_BF16: ((uint16_t *)p)[i] = f32_to_bf16(round_to_odd(x)); return;
    case DT_F16: ((uint16_t *)p)[i] = f16_narrow(round_to_odd(x)); return;
    case DT_I64: ((int64_t *)p)[i] = integer_from_double(x, INT64_MIN, INT64_MAX); return;
    case DT_I32: ((int32_t *)p)[i] = (int32_t)integer_from_double(x, INT32_MIN, INT32_MAX); return;
    case DT_U8: ((uint8_t *)p)[i] = (uint8_t)integer_from_double(x, 0, UINT8_MAX); return;
    case DT_E4M3: ((uint8_t *)p)[i] = e4m3_from_f32(round_to_odd(x)); return;
    default: CHECK(0, "cannot store dtype %d", (int)t);
    }
}

/* ---- many elements ---- */

static void f32_from_bf16(float *restrict to, const uint16_t *restrict from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] = bf16_to_f32(from[i]);
}

static void bf16_from_f32(uint16_t *restrict to, const float *restrict from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] = f32_to_bf16(from[i]);
}

static void f32_from_f16(float *restrict to, const uint16_t *restrict from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] = f16_widen(from[i]);
}

static void f16_from_f32(uint16_t *restrict to, const float *restrict from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] = f16_narrow(from[i]);
}

/* Loads an integer without a double, which holds integers exactly only up to 2^53. */
static int64_t integer_load(const void *p, enum dtype t, int64_t i)
{
    if (t == DT_I64) return ((const int64_t *)p)[i];
    if (t == DT_I32) return ((const int32_t *)p)[i];
    return ((const uint8_t *)p)[i];
}

static void integer_store(void *p, enum dtype t, int64_t i, int64_t x)
{
    if (t == DT_I64) ((int64_t *)p)[i] = x;
    else if (t == DT_I32) ((int32_t *)p)[i] = (int32_t)max_i64(INT32_MIN, min_i64(INT32_MAX, x));
    else ((uint8_t *)p)[i] = (uint8_t)max_i64(0, min_i64(UINT8_MAX, x));
}

static bool is_integer(enum dtype t) { return t == DT_I64 || t == DT_I32 || t == DT_U8; }

/* Converts n elements. The two ranges must not overlap unless the types are equal. */
void dtype_convert(void *to, enum dtype t_to, const void *from, enum dtype t_from, int64_t n)
{
    CHECK(t_to > DT_NONE && t_to < DT_COUNT && t_from > DT_NONE && t_from < DT_COUNT,
          "cannot convert dtype %d to %d", (int)t_from, (int)t_to);
    if (n <= 0) return;
    if (t_to == t_from) {
        memmove(to, from, (size_t)n * dtype_size(t_to));
    } else if (t_to == DT_F32 && t_from == DT_BF16) {
        f32_from_bf16(to, from, n);
    } else if (t_to == DT_BF16 && t_from == DT_F32) {
        bf16_from_f32(to, from, n);
    } else if (t_to == DT_F32 && t_from == DT_F16) {
        f32_from_f16(to, from, n);
    } else if (t_to == DT_F16 && t_from == DT_F32) {
        f16_from_f32(to, from, n);
    } else if (is_integer(t_to) && is_integer(t_from)) {
        for (int64_t i = 0; i < n; i++) integer_store(to, t_to, i, integer_load(from, t_from, i));
    } else {
        for (int64_t i = 0; i < n; i++) dtype_store(to, t_to, i, dtype_load(from, t_from, i));
    }
}

/*
 * dtype.h: the element types, one traits row each.
 */
#pragma once

#include "base/base.h"

enum dtype { DT_NONE, DT_F64, DT_F32, DT_BF16, DT_F16, DT_I64, DT_I32, DT_U8, DT_E4M3, DT_COUNT };

struct dtype_traits {
    const char *name;        /* Plimsoll's name: "f32" */
    const char *safetensors; /* the name in safetensors: "F32" */
    uint32_t size;
    bool is_float;           /* ops compute with it; DT_E4M3 is only a form in which values are stored (e4m3.h) */
    double epsilon;          /* distance from 1 to the next value; 0 for integers */
};
extern const struct dtype_traits dtype_table[DT_COUNT];

static inline uint32_t dtype_size(enum dtype t) { return dtype_table[t].size; }
static inline const char *dtype_name(enum dtype t) { return dtype_table[t].name; }
static inline bool dtype_is_float(enum dtype t) { return dtype_table[t].is_float; }
enum dtype dtype_by_safetensors_name(const char *name); /* DT_NONE when unknown */

/* Widens a bf16, which is the upper half of an f32. The other way, rounding is to nearest even, and
 * NaN stays NaN. */
static inline float bf16_to_f32(uint16_t x)
{
    union { uint32_t u; float f; } v = {(uint32_t)x << 16};
    return v.f;
}
static inline uint16_t f32_to_bf16(float x)
{
    union { float f; uint32_t u; } v = {x};
    if ((v.u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((v.u >> 16) | 0x40);
    return (uint16_t)((v.u + 0x7fffu + ((v.u >> 16) & 1)) >> 16);
}
float f16_to_f32(uint16_t x);
uint16_t f32_to_f16(float x);

/* Loads and stores one element as a double: slow and exact, for reference computations. */
double dtype_load_any(const void *p, enum dtype t, int64_t i);
static inline double dtype_load(const void *p, enum dtype t, int64_t i)
{
    return t == DT_F64 ? ((const double *)p)[i] : t == DT_F32 ? (double)((const float *)p)[i] : dtype_load_any(p, t, i);
}
void dtype_store(void *p, enum dtype t, int64_t i, double x);
/* Converts n contiguous elements. Equal types are a memmove. */
void dtype_convert(void *to, enum dtype t_to, const void *from, enum dtype t_from, int64_t n);

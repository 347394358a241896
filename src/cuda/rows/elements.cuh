/*
 * elements.cuh: elementwise functions, loads and stores of any dtype, and offsets in strided
 * operands, shared by elementwise.cu, strided.cu, sums.cu and maps.cu.
 */
#pragma once

#include "cuda/rows/launch_elementwise.h"
#include "cuda/device/device.cuh"

/* --- functions ------------------------------------------------------------------ */

constexpr float ROOT_HALF = 0.70710678118654752440f, ROOT_TWO_OVER_PI = 0.79788456080286535588f,
                LOG2_E = 1.44269504088896340736f;

/* Computes 1/x in one instruction, accurate to 22 bits or more, like those below. */
__device__ inline float quick_inverse(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ inline float quick_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Functions of elements that are stored as T. They are exact where T has 24 bits of mantissa. Where
 * T has 8 or 11 bits, they have about 20, at a third of the instructions: beyond about 25
 * instructions per element they take longer than the memory traffic. */
template <typename T> struct maths {
    static __device__ float logistic(float x) { return quick_inverse(1.0f + quick_exp2(-LOG2_E * x)); }
    static __device__ float hyperbolic(float x) { return 2.0f * logistic(2.0f * x) - 1.0f; } /* absolute error 1e-7 */
    /* The normal distribution function at x, and e^(-x^2/2) as `density`, by Abramowitz and Stegun
     * 7.1.26: the tail is a polynomial in t times the density. */
    static __device__ float normal(float x, float &density)
    {
        const float t = quick_inverse(1.0f + 0.3275911f * ROOT_HALF * fabsf(x));
        density = quick_exp2(x * (-0.5f * LOG2_E * x));
        const float tail =
            density * t *
            (0.127414796f + t * (-0.142248368f + t * (0.7107068705f + t * (-0.7265760135f + t * 0.5307027145f))));
        return x > 0.0f ? 1.0f - tail : tail;
    }
};
template <> struct maths<float> {
    static __device__ float logistic(float x) { return 1.0f / (1.0f + expf(-x)); }
    static __device__ float hyperbolic(float x) { return tanhf(x); }
    static __device__ float normal(float x, float &density)
    {
        density = expf(-0.5f * x * x);
        return 0.5f * (1.0f + erff(x * ROOT_HALF));
    }
};

__device__ inline float gelu_u(float x) { return ROOT_TWO_OVER_PI * (x + 0.044715f * x * x * x); }

/* `kind` is a value of enum act_kind. */
template <typename T> __device__ inline float act_value(int kind, float x)
{
    using m = maths<T>;
    float density;
    switch (kind) {
    case 0: return x * m::normal(x, density);
    case 1: return 0.5f * x * (1.0f + m::hyperbolic(gelu_u(x)));
    case 2: return x * m::logistic(1.702f * x);
    case 3: return x < 0.0f ? 0.0f : x;
    case 4: return m::logistic(x);
    case 5: return x * m::logistic(x);
    case 6: return tanhf(x);
    default: return expf(x);
    }
}

/* The derivative, and y, the value of act_value. Where two products are added, fmaf fixes which one
 * is not rounded: a compiler would choose by context, and all kernels must give the same bits. */
template <typename T> __device__ inline float act_slope(int kind, float x, float &y)
{
    using m = maths<T>;
    float s, t;
    switch (kind) {
    case 0: s = m::normal(x, t); y = x * s; return fmaf(x * (0.5f * ROOT_TWO_OVER_PI), t, s);
    case 1:
        t = m::hyperbolic(gelu_u(x));
        y = 0.5f * x * (1.0f + t);
        return fmaf(0.5f * x * (1.0f - t * t) * ROOT_TWO_OVER_PI, fmaf(3.0f * 0.044715f * x, x, 1.0f),
                    0.5f * (1.0f + t));
    case 2: s = m::logistic(1.702f * x); y = x * s; return fmaf(1.702f * x * s, 1.0f - s, s);
    case 3: y = x < 0.0f ? 0.0f : x; return x > 0.0f ? 1.0f : 0.0f;
    case 4: y = s = m::logistic(x); return s * (1.0f - s);
    case 5: s = m::logistic(x); y = x * s; return fmaf(x * s, 1.0f - s, s);
    case 6: y = t = tanhf(x); return fmaf(-t, t, 1.0f);
    default: y = expf(x); return y;
    }
}
template <typename T> __device__ inline float act_slope(int kind, float x)
{
    float y;
    return act_slope<T>(kind, x, y);
}

struct f_add {
    template <typename T> static __device__ float of(float a, float b) { return a + b; }
};
struct f_mul {
    template <typename T> static __device__ float of(float a, float b) { return a * b; }
};
struct f_silu_gate {
    template <typename T> static __device__ float of(float gate, float up)
    {
        return gate * maths<T>::logistic(gate) * up;
    }
};
/* The result is rounded as it is stored, also where it is summed. */
template <int KIND> struct f_slope {
    template <typename T> static __device__ float of(float dy, float x, float &y)
    {
        return __fmul_rn(dy, act_slope<T>(KIND, x, y));
    }
    template <typename T> static __device__ float of(float dy, float x) { return __fmul_rn(dy, act_slope<T>(KIND, x)); }
};
template <int KIND> struct f_act {
    template <typename T> __device__ float of(float x) const { return act_value<T>(KIND, x); }
};
struct f_scale {
    float value;
    template <typename T> __device__ float of(float x) const { return x * value; }
};

/* --- any dtype ------------------------------------------------------------------------ */

__device__ inline double any_load(const void *p, enum any type, int64_t i)
{
    switch (type) {
    case ANY_F64: return static_cast<const double *>(p)[i];
    case ANY_F32: return static_cast<const float *>(p)[i];
    case ANY_BF16: return __bfloat162float(static_cast<const __nv_bfloat16 *>(p)[i]);
    case ANY_F16: return __half2float(static_cast<const __half *>(p)[i]);
    case ANY_I64: return (double)static_cast<const int64_t *>(p)[i];
    case ANY_I32: return static_cast<const int32_t *>(p)[i];
    default: return static_cast<const uint8_t *>(p)[i];
    }
}

/* Truncates towards 0 and saturates; NaN becomes 0. */
__device__ inline int64_t any_integer(double x, double lowest, double highest, int64_t low, int64_t high)
{
    if (isnan(x)) return 0;
    return x <= lowest ? low : x >= highest ? high : (int64_t)x;
}

__device__ inline void any_store(void *p, enum any type, int64_t i, double x)
{
    switch (type) {
    case ANY_F64: static_cast<double *>(p)[i] = x; return;
    case ANY_F32: static_cast<float *>(p)[i] = (float)x; return;
    case ANY_BF16: static_cast<__nv_bfloat16 *>(p)[i] = __float2bfloat16_rn((float)x); return;
    case ANY_F16: static_cast<__half *>(p)[i] = __float2half_rn((float)x); return;
    case ANY_I64:
        static_cast<int64_t *>(p)[i] =
            any_integer(x, -9223372036854775808.0, 9223372036854775808.0, INT64_MIN, INT64_MAX);
        return;
    case ANY_I32:
        static_cast<int32_t *>(p)[i] = (int32_t)any_integer(x, -2147483648.0, 2147483647.0, INT32_MIN, INT32_MAX);
        return;
    default: static_cast<uint8_t *>(p)[i] = (uint8_t)any_integer(x, 0, 255, 0, 255); return;
    }
}

/* --- offsets ----------------------------------------------------------------------------- */

/* Computes a / b of non-negative numbers: few of them need 64-bit division. */
__device__ inline int64_t quotient(int64_t a, int64_t b)
{
    return (a | b) >> 32 ? a / b : (int64_t)((uint32_t)a / (uint32_t)b);
}

struct offsets {
    int64_t y, a, b;
};

/* Returns the offsets of element `in` of row `row`: `in` is the index in the innermost loop, `row`
 * the index in all other loops together. */
__device__ inline offsets offsets_of(const loop_nest &f, int64_t row, int64_t in)
{
    offsets p = {in * f.y[0], in * f.a[0], in * f.b[0]};
    for (int k = 1; k < f.loops; k++) {
        const int64_t next = k + 1 < f.loops ? quotient(row, f.size[k]) : 0, here = row - next * f.size[k];
        p.y += here * f.y[k];
        p.a += here * f.a[k];
        p.b += here * f.b[k];
        row = next;
    }
    return p;
}

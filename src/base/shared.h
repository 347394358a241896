/*
 * shared.h: functions that are written once for the host and for GPUs, so that both get the same
 * bits. keyed.h has the integer arithmetic of random numbers, optimizers.h the update of an
 * element; mask_terms.h the losses of masks, state_codes.h 8-bit
 * optimizer state; graph/step.h uses this macro too.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* SHARED_INLINE is for loops that a host's compiler vectorises only without a call. */
#ifdef __CUDACC__
#define SHARED static __host__ __device__ inline
#define SHARED_INLINE static __host__ __device__ __forceinline__
#else
#define SHARED static inline
#define SHARED_INLINE static inline __attribute__((always_inline))
#endif

/* Returns which of three coordinates pair i of a rotary position turns by (ROPE of graph/ops.def).
 * Interleaved, the pairs of a section lie three apart. */
SHARED int shared_coordinate(int64_t i, const int64_t sections[3], bool interleaved)
{
    const int each = (int)(i % 3);
    if (interleaved) return i < 3 * sections[each] ? each : 0;
    return (i >= sections[0]) + (i >= sections[0] + sections[1]);
}

/* Returns the bits of a float. */
SHARED uint32_t shared_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

/* Compute one operation each, rounded: a GPU's compiler does not contract them into an fma. */
#ifdef __CUDA_ARCH__
SHARED float shared_mul(float a, float b) { return __fmul_rn(a, b); }
SHARED float shared_add(float a, float b) { return __fadd_rn(a, b); }
SHARED float shared_sub(float a, float b) { return __fsub_rn(a, b); }
SHARED float shared_div(float a, float b) { return __fdiv_rn(a, b); }
SHARED float shared_sqrt(float x) { return __fsqrt_rn(x); }
SHARED double shared_mul_double(double a, double b) { return __dmul_rn(a, b); }
SHARED double shared_sub_double(double a, double b) { return __dsub_rn(a, b); }
#else
SHARED float shared_mul(float a, float b) { return a * b; }
SHARED float shared_add(float a, float b) { return a + b; }
SHARED float shared_sub(float a, float b) { return a - b; }
SHARED float shared_div(float a, float b) { return a / b; }
SHARED float shared_sqrt(float x) { return __builtin_sqrtf(x); }
SHARED double shared_mul_double(double a, double b) { return a * b; }
SHARED double shared_sub_double(double a, double b) { return a - b; }
#endif

/* Returns x^n, n >= 0, by squares. pow differs in its last bit from library to library. */
SHARED double shared_power(double x, uint32_t n)
{
    double power = 1;
    for (; n; n >>= 1, x = shared_mul_double(x, x))
        if (n & 1) power = shared_mul_double(power, x);
    return power;
}

/* Rows in blocks of `rows`, but for the first `first` blocks, which have `first_rows`. */
struct feature_blocks {
    int64_t rows, first, first_rows;
};
/* Returns the block of a row. */
SHARED int64_t shared_block_of(struct feature_blocks b, int64_t row)
{
    const int64_t begins = b.first * b.first_rows;
    return row < begins ? row / b.first_rows : b.first + (row - begins) / b.rows;
}

SHARED int shared_is_finite(float x) { return (shared_bits(x) & 0x7f800000u) != 0x7f800000u; }
/* Rounds a finite number to bf16, up or down at random (cpu/update/update.h): `bits` has 16 random
 * bits. */
SHARED uint16_t shared_round_at_random(float x, uint32_t bits)
{
    return (uint16_t)((shared_bits(x) + (bits & 0xffffu)) >> 16);
}

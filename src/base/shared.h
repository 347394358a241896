/*
 * shared.h: functions that are written once for the host and for GPUs, so that both get the same
 * bits. keyed.h has the integer arithmetic of random numbers, optimizers.h the update of an
 * element; codes.h and step.h use this macro too.
 */
#ifndef SHARED_H
#define SHARED_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define SHARED static __host__ __device__ inline
#else
#define SHARED static inline
#endif

/* The bits of a float. */
SHARED uint32_t shared_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

/* One operation each, rounded: a GPU's compiler does not contract them into an fma. */
#ifdef __CUDA_ARCH__
SHARED float shared_mul(float a, float b) { return __fmul_rn(a, b); }
SHARED float shared_add(float a, float b) { return __fadd_rn(a, b); }
SHARED float shared_sub(float a, float b) { return __fsub_rn(a, b); }
SHARED float shared_div(float a, float b) { return __fdiv_rn(a, b); }
SHARED float shared_sqrt(float x) { return __fsqrt_rn(x); }
#else
SHARED float shared_mul(float a, float b) { return a * b; }
SHARED float shared_add(float a, float b) { return a + b; }
SHARED float shared_sub(float a, float b) { return a - b; }
SHARED float shared_div(float a, float b) { return a / b; }
SHARED float shared_sqrt(float x) { return __builtin_sqrtf(x); }
#endif

/* Rows in blocks of `rows`, but for the first `first` of them, which have `first_rows`: the block
 * of a row. */
struct feature_blocks {
    int64_t rows, first, first_rows;
};
SHARED int64_t shared_block_of(struct feature_blocks b, int64_t row)
{
    const int64_t begins = b.first * b.first_rows;
    return row < begins ? row / b.first_rows : b.first + (row - begins) / b.rows;
}

/* Stochastic rounding to bf16 (cpu/update/round.h): `bits` has 16 random bits. For finite numbers. */
SHARED int shared_is_finite(float x) { return (shared_bits(x) & 0x7f800000u) != 0x7f800000u; }
SHARED uint16_t shared_round_at_random(float x, uint32_t bits)
{
    return (uint16_t)((shared_bits(x) + (bits & 0xffffu)) >> 16);
}

#endif

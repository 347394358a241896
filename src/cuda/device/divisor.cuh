/*
 * divisor.cuh: division by a number known to the host: a multiplication and a shift.
 */
#ifndef DIVISOR_CUH
#define DIVISOR_CUH

#include <stdint.h>

/* n / by for n < 2^31: by <= 2^shift < 2 by, and n + n (2^shift - by) / by = n 2^shift / by. `more`
 * is the fraction (2^shift - by) / by in 32 bits, rounded up. */
struct divisor {
    uint32_t by, more, shift;
};

static inline divisor divisor_of(int64_t by)
{
    uint32_t shift = 0;
    while (((int64_t)1 << shift) < by) shift++;
    return {(uint32_t)by, (uint32_t)((((uint64_t)1 << shift) - (uint64_t)by) * ((uint64_t)1 << 32) / (uint64_t)by + 1),
            shift};
}

__device__ static inline uint32_t operator/(uint32_t n, const divisor &d)
{
    return (__umulhi(n, d.more) + n) >> d.shift;
}

#endif

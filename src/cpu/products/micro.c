/*
 * micro.c: the sets of inner loops, and the choice among them.
 *
 * On x86-64 one binary contains three sets and detects at run time which the processor supports;
 * elsewhere there is one set of 128-bit vectors, which reaches the peak of NEON. The tile of each
 * set fills its register file:
 *
 *     set       registers    tile     accumulators   b    a
 *     vector128 32 x 128     8 x 12   24             3    2     (elements of a)
 *     avx512    32 x 512     12 x 32  24             2    broadcast from memory
 *     avx2      16 x 256     4 x 24   12             3    1
 *     sse       16 x 128     4 x 8     8             2    1
 *
 * A multiplication and an addition are contracted to one FMA here, rounded once: the pragma enables
 * it because ISO C mode disables it. So bits differ between sets, but not between runs on one
 * machine.
 */
#pragma GCC optimize("fp-contract=fast")

#include "cpu/products/micro.h"

#include "base/processor.h"

/* static inline functions of a wider ISA pass vectors in registers only if they are inlined; they
 * always are. */
#pragma GCC diagnostic ignored "-Wpsabi"

#if defined(__x86_64__)

/* clang has another pragma for it. */
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"))), \
                             apply_to = function)
#endif
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")
#define ISA avx512
#define LANES 16
#define MR 12
#define NV 2
#include "cpu/products/micro.inc"
#pragma GCC pop_options
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#endif

#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define ISA avx2
#define LANES 8
#define MR 4
#define NV 3
#include "cpu/products/micro.inc"
#pragma GCC pop_options
#if defined(__clang__)
#pragma clang attribute pop
#endif

#define ISA sse
#define LANES 4
#define MR 4
#define NV 2
#include "cpu/products/micro.inc"

/* Returns the i-th of all sets that this processor supports, fastest first: for tests. NULL after
 * the last. */
static const struct micro *micro_at(int i)
{
    const struct micro *runs[4] = {NULL};
    int n = 0;
    if (cpu_has(CPU_AVX512)) runs[n++] = &micro_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) runs[n++] = &micro_avx2;
    runs[n++] = &micro_sse;
    return i < n ? runs[i] : NULL;
}

#else

#define ISA vector128
#define LANES 4
#define MR 8
#define NV 3
#include "cpu/products/micro.inc"

const struct micro *micro_at(int i)
{
    return i == 0 ? &micro_vector128 : NULL;
}

#endif

const struct micro *micro_best(void)
{
    return micro_at(0);
}

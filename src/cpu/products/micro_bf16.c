/*
 * micro_bf16.c: matrix products with bf16 multiply instructions (see micro_bf16.h).
 *
 *     set         instruction   computes                        tile     group
 *     bfmmla      BFMMLA        2 x 2 += [2 x 4] [4 x 2]        8 x 12   4
 *     avx512bf16  VDPBF16PS     16 lanes += pair . pair         12 x 32  2
 *     amx         TDPBF16PS     16 x 16 += [16 x 32] [32 x 16]  32 x 32  32    (micro_amx.c)
 *
 * The binary runs on any processor of its architecture; the instructions are detected once, at run
 * time.
 *
 * The loops use the whole register file: 24 accumulators and the operands. They are written in an
 * order that needs no more registers, and the compiler must not hoist loads, which would spill
 * accumulators.
 */
#pragma GCC optimize("no-schedule-insns")

#include "cpu/products/micro_bf16.h"

#include "base/dtype.h"
#include "base/processor.h"
#include "run/device.h"

#define UNROLL _Pragma("GCC unroll 16")

#if defined(__aarch64__) && defined(__linux__)

#include "cpu/products/neon_bf16.h"

enum { PAIRS_A = 4, PAIRS_B = 6 }; /* of rows and of columns */

/* Stores two neighbouring 2 x 2 blocks as four columns of two rows, or adds them to what is
 * there. */
BF16_INLINE void store_blocks(float *c, int64_t ldc, float32x4_t left, float32x4_t right, bool add)
{
    float64x2_t l = vreinterpretq_f64_f32(left), r = vreinterpretq_f64_f32(right);
    float32x4_t upper = vreinterpretq_f32_f64(vzip1q_f64(l, r)), lower = vreinterpretq_f32_f64(vzip2q_f64(l, r));
    if (add) {
        upper = vaddq_f32(upper, vld1q_f32(c));
        lower = vaddq_f32(lower, vld1q_f32(c + ldc));
    }
    vst1q_f32(c, upper);
    vst1q_f32(c + ldc, lower);
}

WITH_BF16 static void product_bfmmla(int64_t groups, const uint16_t *a, const uint16_t *b, float *c, int64_t ldc,
                                     bool add)
{
    float32x4_t acc[PAIRS_A][PAIRS_B];
    UNROLL for (int i = 0; i < PAIRS_A; i++)
        UNROLL for (int j = 0; j < PAIRS_B; j++) acc[i][j] = vdupq_n_f32(0);
    /* c is needed only at the end: the prefetch has completed by then. */
    for (int i = 0; i < 2 * PAIRS_A; i++) {
        __builtin_prefetch(c + i * ldc, 1);
        __builtin_prefetch(c + i * ldc + 2 * PAIRS_B - 1, 1);
    }
    /* Half of the columns at a time: a is loaded twice, which is hidden behind the products, and
     * the products wait for fewer loads. */
    for (; groups > 0; groups--, a += 8 * PAIRS_A, b += 8 * PAIRS_B)
        UNROLL for (int half = 0; half < PAIRS_B; half += PAIRS_B / 2) {
            uint16x8_t bk[PAIRS_B / 2];
            UNROLL for (int j = 0; j < PAIRS_B / 2; j++) bk[j] = vld1q_u16(b + 8 * (half + j));
            UNROLL for (int i = 0; i < PAIRS_A; i++) {
                uint16x8_t ak = vld1q_u16(a + 8 * i);
                UNROLL for (int j = 0; j < PAIRS_B / 2; j++) acc[i][half + j] = bf16_mmla(acc[i][half + j], ak, bk[j]);
            }
        }
    UNROLL for (int i = 0; i < PAIRS_A; i++)
        UNROLL for (int j = 0; j < PAIRS_B; j += 2)
            store_blocks(c + 2 * i * ldc + 2 * j, ldc, acc[i][j], acc[i][j + 1], add);
}

WITH_BF16 static void narrow_bfmmla(uint16_t *c, int64_t ldc, const float *from, int64_t ld)
{
    for (int i = 0; i < 2 * PAIRS_A; i++, c += ldc, from += ld)
        UNROLL for (int j = 0; j < 2 * PAIRS_B; j += 4) vst1_u16(c + j, bf16_narrow(vld1q_f32(from + j)));
}

/* Stores four lanes of four rows as bf16, with the rows of each lane adjacent. */
BF16_INLINE void pack_four(uint16_t *to, float32x4_t r0, float32x4_t r1, float32x4_t r2, float32x4_t r3)
{
    uint16x8_t even = bf16_narrow_two(r0, r2), odd = bf16_narrow_two(r1, r3);
    uint32x4_t upper = vreinterpretq_u32_u16(vzip1q_u16(even, odd)),
               lower = vreinterpretq_u32_u16(vzip2q_u16(even, odd));
    vst1q_u16(to, vreinterpretq_u16_u32(vzip1q_u32(upper, lower)));
    vst1q_u16(to + 8, vreinterpretq_u16_u32(vzip2q_u32(upper, lower)));
}

WITH_BF16 static void pack_rows_bfmmla(uint16_t *to, const float *from, int64_t n)
{
    enum { NR = 2 * PAIRS_B };
    int64_t k = 0;
    for (; k + 4 <= n; k += 4, from += 4 * NR)
        UNROLL for (int j = 0; j < NR; j += 4, to += 16)
            pack_four(to, vld1q_f32(from + j), vld1q_f32(from + NR + j), vld1q_f32(from + 2 * NR + j),
                      vld1q_f32(from + 3 * NR + j));
    if (k == n) return;
    for (int j = 0; j < NR; j += 4, to += 16) {
        float32x4_t zero = vdupq_n_f32(0);
        pack_four(to, vld1q_f32(from + j), k + 1 < n ? vld1q_f32(from + NR + j) : zero,
                  k + 2 < n ? vld1q_f32(from + 2 * NR + j) : zero, zero);
    }
}

WITH_BF16 static void pack_columns_bfmmla(uint16_t *to, const float *from)
{
    for (int i = 0; i < 2 * PAIRS_A; i++, from += 2 * PAIRS_B)
        UNROLL for (int j = 0; j < 2 * PAIRS_B; j += 4)
            vst1_u16(to + j * 2 * PAIRS_A + i * 4, bf16_narrow(vld1q_f32(from + j)));
}

static const struct micro_bf16 micro_bfmmla = {
    .name = "bfmmla", .mr = 2 * PAIRS_A, .nr = 2 * PAIRS_B, .group = 4, .group_b = 4, .product = product_bfmmla,
    .narrow = narrow_bfmmla, .pack_rows = pack_rows_bfmmla, .pack_columns = pack_columns_bfmmla,
};

const struct micro_bf16 *micro_bf16_vectors(void)
{
    return cpu_has(CPU_BF16) ? &micro_bfmmla : NULL;
}

#elif defined(__x86_64__)

#include <immintrin.h>

#define WITH_BF16 __attribute__((target("avx512bf16,avx512f,avx512bw,avx512vl")))

enum { ROWS = 12, VECTORS = 2 };

/* Broadcasts a pair of k of one row of a to every lane. */
WITH_BF16 static inline __attribute__((always_inline)) __m512bh pair_bf16(const uint16_t *p)
{
    int32_t pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

WITH_BF16 static void product_avx512bf16(int64_t groups, const uint16_t *a, const uint16_t *b, float *c, int64_t ldc,
                                         bool add)
{
    __m512 acc[ROWS][VECTORS];
    UNROLL for (int i = 0; i < ROWS; i++)
        UNROLL for (int j = 0; j < VECTORS; j++) acc[i][j] = _mm512_setzero_ps();
    for (; groups > 0; groups--, a += 2 * ROWS, b += 32 * VECTORS) {
        __m512bh bk[VECTORS];
        UNROLL for (int j = 0; j < VECTORS; j++) bk[j] = (__m512bh)_mm512_loadu_si512(b + 32 * j);
        UNROLL for (int i = 0; i < ROWS; i++) {
            __m512bh ak = pair_bf16(a + 2 * i);
            UNROLL for (int j = 0; j < VECTORS; j++) acc[i][j] = _mm512_dpbf16_ps(acc[i][j], ak, bk[j]);
        }
    }
    UNROLL for (int i = 0; i < ROWS; i++)
        UNROLL for (int j = 0; j < VECTORS; j++) {
            float *to = c + i * ldc + 16 * j;
            _mm512_storeu_ps(to, add ? _mm512_add_ps(acc[i][j], _mm512_loadu_ps(to)) : acc[i][j]);
        }
}

/* Rounds sums to bf16 with integer instructions: the processor's conversion flushes denormals to
 * 0. */
WITH_BF16 static void narrow_avx512bf16(uint16_t *c, int64_t ldc, const float *from, int64_t ld)
{
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < 16 * VECTORS; j++) c[i * ldc + j] = f32_to_bf16(from[i * ld + j]);
}

WITH_BF16 static void pack_rows_avx512bf16(uint16_t *to, const float *from, int64_t n)
{
    for (int64_t k = 0; k < n; k += 2, from += 32 * VECTORS, to += 32 * VECTORS)
        for (int j = 0; j < 16 * VECTORS; j++) {
            to[2 * j] = f32_to_bf16(from[j]);
            to[2 * j + 1] = k + 1 < n ? f32_to_bf16(from[16 * VECTORS + j]) : 0;
        }
}

WITH_BF16 static void pack_columns_avx512bf16(uint16_t *to, const float *from)
{
    for (int i = 0; i < ROWS; i++, from += 16 * VECTORS)
        for (int j = 0; j < 16 * VECTORS; j++) to[j / 2 * 2 * ROWS + 2 * i + j % 2] = f32_to_bf16(from[j]);
}

static const struct micro_bf16 micro_avx512bf16 = {
    .name = "avx512bf16", .mr = ROWS, .nr = 16 * VECTORS, .group = 2, .group_b = 2, .product = product_avx512bf16,
    .narrow = narrow_avx512bf16, .pack_rows = pack_rows_avx512bf16, .pack_columns = pack_columns_avx512bf16,
};

const struct micro_bf16 *micro_bf16_vectors(void)
{
    return cpu_has(CPU_BF16) && cpu_has(CPU_AVX512) && __builtin_cpu_supports("avx512bf16") ? &micro_avx512bf16 : NULL;
}

#else

const struct micro_bf16 *micro_bf16_vectors(void) { return NULL; }

#endif

const struct micro_bf16 *micro_bf16_best(void)
{
    const struct micro_bf16 *tiles = micro_bf16_tiles();
    return tiles ? tiles : micro_bf16_vectors();
}

bool cpu_multiplies_bf16(void) { return micro_bf16_best() != NULL; }

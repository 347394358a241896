/*
 * micro_amx.c: bf16 products with AMX tiles (see micro_bf16.h).
 *
 * AMX has eight tile registers of 16 rows of 64 bytes. One instruction multiplies two of them: 16
 * rows of 32 bf16 times 16 pairs of k of 16 columns, added to 16 x 16 f32. Four tiles of sums, two
 * of A and two of B compute 32 x 32 x 32 per step, in which each loaded tile is used twice:
 *
 *                        B  [16 pairs][32 columns]     tile 6 | tile 7
 *                                                     --------+--------
 *     A  [32 rows][32 of k]     tile 4                 tile 0 | tile 1
 *                               tile 5                 tile 2 | tile 3
 *
 * So A's panel keeps 32 neighbours of k of a row together, which is a row of its tile, and B's
 * panel two. Products are exact and sums f32, rounded after each pair; denormals count as 0. A sum
 * starts at 0 and the previous value of C is added at the end, as in the other sets: an element's
 * bits depend only on its row, its column and K.
 *
 * The tile registers are large, so Linux enables them only for a process that requests them. A
 * thread must configure them before use and should release them.
 *
 * The instructions are inline assembly: the compiler's intrinsics do not declare that a tile load
 * reads memory.
 */
#include "cpu/products/micro_bf16.h"

#include <stddef.h>

#if defined(__x86_64__) && defined(__linux__)

#include <immintrin.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/processor.h"

#define WITH_AVX512 __attribute__((target("avx512f,avx512bw")))
#define UNROLL _Pragma("GCC unroll 16")

/* gemm.c sizes workspaces by TILE_ROWS and TILE_DEPTH. */
enum { SIDE = 16, ROWS = TILE_ROWS, COLUMNS = 2 * SIDE, DEPTH = TILE_DEPTH };
_Static_assert(TILE_ROWS == 32 && TILE_DEPTH == 32, "two tiles of 16 rows, rows of 64 bytes");

/* --- support by the processor and the system ------------------------------------------ */

/* arch_prctl's request for a large register state, and the component number of the tiles. */
enum { REQUEST_STATE = 0x1023, STATE_TILES = 18 };

static bool processor_has_tiles(void) { return cpu_has(CPU_AMX) && cpu_has(CPU_BF16) && cpu_has(CPU_AVX512); }

/* Reports whether the process may use tiles. They are requested once; concurrent threads get the
 * same answer. */
static bool tiles_allowed(void)
{
    static atomic_int known; /* 0: unknown, 1: no, 2: yes */
    int answer = atomic_load_explicit(&known, memory_order_relaxed);
    if (!answer) {
        answer = processor_has_tiles() && syscall(SYS_arch_prctl, REQUEST_STATE, STATE_TILES) == 0 ? 2 : 1;
        atomic_store_explicit(&known, answer, memory_order_relaxed);
    }
    return answer == 2;
}

/* --- the loop ------------------------------------------------------------------------------ */

#define TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::: "memory")
#define TILE_LOAD(t, p, stride) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(p), "r"((int64_t)(stride)) : "memory")
#define TILE_STORE(t, p, stride) \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(p), "r"((int64_t)(stride)) : "memory")
/* sum += a b */
#define TILE_PRODUCT(sum, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #sum ::: "memory")

/* The operand of LDTILECFG. */
struct tiles {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static void begin_amx(void)
{
    static const struct tiles all_whole = {
        .palette = 1,
        .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
        .rows = {SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE},
    };
    __asm__ volatile("ldtilecfg %0" ::"m"(all_whole));
}

static void end_amx(void) { __asm__ volatile("tilerelease"); }

static void store_tiles(float *c, int64_t ldc)
{
    int64_t stride = ldc * (int64_t)sizeof *c;
    TILE_STORE(0, c, stride);
    TILE_STORE(1, c + SIDE, stride);
    TILE_STORE(2, c + SIDE * ldc, stride);
    TILE_STORE(3, c + SIDE * ldc + SIDE, stride);
}

/* Adds the sums to C through memory: vector instructions cannot read tiles. */
WITH_AVX512 static void add_tiles(float *c, int64_t ldc)
{
    float sum[ROWS * COLUMNS] __attribute__((aligned(64)));
    store_tiles(sum, COLUMNS);
    for (int i = 0; i < ROWS; i++)
        UNROLL for (int j = 0; j < COLUMNS; j += 16) {
            float *to = c + i * ldc + j;
            _mm512_storeu_ps(to, _mm512_add_ps(_mm512_load_ps(sum + i * COLUMNS + j), _mm512_loadu_ps(to)));
        }
}

static void product_amx(int64_t groups, const uint16_t *a, const uint16_t *b, float *c, int64_t ldc, bool add)
{
    enum { STRIDE_A = DEPTH * 2, STRIDE_B = COLUMNS * 2 * 2 }; /* bytes */
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    for (; groups > 0; groups--, a += ROWS * DEPTH, b += COLUMNS * DEPTH) {
        TILE_LOAD(6, b, STRIDE_B);
        TILE_LOAD(4, a, STRIDE_A);
        TILE_PRODUCT(0, 4, 6);
        TILE_LOAD(7, b + 2 * SIDE, STRIDE_B);
        TILE_PRODUCT(1, 4, 7);
        TILE_LOAD(5, a + SIDE * DEPTH, STRIDE_A);
        TILE_PRODUCT(2, 5, 6);
        TILE_PRODUCT(3, 5, 7);
    }
    if (add) add_tiles(c, ldc);
    else store_tiles(c, ldc);
}

/* Rounds sums to bf16 with integer instructions: the processor's conversion flushes denormals to
 * 0. */
WITH_AVX512 static void narrow_amx(uint16_t *c, int64_t ldc, const float *from, int64_t ld)
{
    const __m512i one = _mm512_set1_epi32(1), half = _mm512_set1_epi32(0x7fff), quiet = _mm512_set1_epi32(0x400000);
    const __m512i size = _mm512_set1_epi32(0x7fffffff), infinite = _mm512_set1_epi32(0x7f800000);
    for (int i = 0; i < ROWS; i++, c += ldc, from += ld)
        UNROLL for (int j = 0; j < COLUMNS; j += 16) {
            __m512i u = _mm512_loadu_si512(from + j), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), one);
            __mmask16 nan = _mm512_cmpgt_epi32_mask(_mm512_and_si512(u, size), infinite);
            __m512i rounded = _mm512_add_epi32(u, _mm512_add_epi32(half, odd));
            rounded = _mm512_mask_or_epi32(rounded, nan, u, quiet);
            _mm256_storeu_si256((__m256i *)(c + j), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
        }
}

static const struct micro_bf16 micro_amx = {
    .name = "amx", .mr = ROWS, .nr = COLUMNS, .group = DEPTH, .group_b = 2,
    .begin = begin_amx, .end = end_amx, .product = product_amx, .narrow = narrow_amx,
};

const struct micro_bf16 *micro_bf16_tiles(void) { return tiles_allowed() ? &micro_amx : NULL; }

#else

const struct micro_bf16 *micro_bf16_tiles(void) { return NULL; }

#endif

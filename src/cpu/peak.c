/*
 * peak.c: this machine's peak rates: fused multiply-adds in registers, bf16 products, and bytes
 * through memory and through its caches.
 *
 * Each is the best of many short trials, because load on a shared machine only ever adds time. They
 * are used only to compare measurements with them and to calibrate.
 */
#pragma GCC optimize("fp-contract=fast")

#include "cpu/cpu.h"

#include <sys/mman.h>
#include <sys/utsname.h>

#include "base/processor.h"
#include "cpu/products/micro.h"
#include "cpu/products/micro_bf16.h"
#include "run/device.h"

/* Trials are short, and there are as many as fit: one then falls between two time slices of other
 * processes. */
#define TRY_SECONDS 0.4

/* 12 accumulators of two registers each: more than latency times pipes on any processor. They are
 * initialised by a product, because some processors bind a chain of sums to the pipe that began it.
 * Returns flops. */
#define PEAK(name, lanes, attribute)                                                      \
    attribute static double name(int64_t n, float seed, float *out)                       \
    {                                                                                     \
        typedef float vec __attribute__((vector_size(lanes * 4)));                        \
        vec x = (vec){0} + seed, y = (vec){0} + 0.999f, a[12];                            \
        _Pragma("GCC unroll 16") for (int j = 0; j < 12; j++) a[j] = x * (float)(j + 1);  \
        for (int64_t i = 0; i < n; i++)                                                   \
            _Pragma("GCC unroll 16") for (int j = 0; j < 12; j++) a[j] = a[j] * y + x;    \
        vec sum = a[0];                                                                   \
        _Pragma("GCC unroll 16") for (int j = 1; j < 12; j++) sum += a[j];                \
        *out = sum[0];                                                                    \
        return (double)n * 12 * lanes * 2;                                                \
    }
#if defined(__x86_64__)
PEAK(peak_avx512, 16, __attribute__((target("avx512f"))))
PEAK(peak_avx2, 8, __attribute__((target("avx2,fma"))))
PEAK(peak_sse, 4, )
static double peak_loop(int64_t n, float seed, float *out)
{
    if (cpu_has(CPU_AVX512)) return peak_avx512(n, seed, out);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return peak_avx2(n, seed, out);
    return peak_sse(n, seed, out);
}
#elif defined(__aarch64__)
/* Multiplies and adds n times in each of 20 chains, and returns the operations. The accumulator of
 * fmla is the sum, not the product: chains as in a matrix product. */
static double peak_loop(int64_t n, float seed, float *out)
{
    typedef float vec __attribute__((vector_size(16)));
    vec x = (vec){0} + seed, y = (vec){0} + 0.999f, a[20];
    _Pragma("GCC unroll 20") for (int j = 0; j < 20; j++) a[j] = x * (float)(j + 1);
    for (int64_t i = 0; i < n; i++)
        _Pragma("GCC unroll 20") for (int j = 0; j < 20; j++)
            __asm__("fmla %0.4s, %1.4s, %2.4s" : "+w"(a[j]) : "w"(x), "w"(y));
    vec sum = a[0];
    _Pragma("GCC unroll 20") for (int j = 1; j < 20; j++) sum += a[j];
    *out = sum[0];
    return (double)n * 20 * 4 * 2;
}
#else
PEAK(peak_loop, 4, )
#endif

/* The same for the processor's bf16 instruction; 0 if there is none. */
#if defined(__aarch64__)
#include "cpu/products/neon_bf16.h"
WITH_BF16 static double peak_loop_bf16(int64_t n, float seed, float *out)
{
    if (!micro_bf16_best()) return 0;
    uint16x8_t x = vreinterpretq_u16_f32(vdupq_n_f32(seed));
    float32x4_t a[16], sum = vdupq_n_f32(0);
    _Pragma("GCC unroll 16") for (int j = 0; j < 16; j++) a[j] = vdupq_n_f32((float)j);
    for (int64_t i = 0; i < n; i++)
        _Pragma("GCC unroll 16") for (int j = 0; j < 16; j++) a[j] = bf16_mmla(a[j], x, x);
    _Pragma("GCC unroll 16") for (int j = 0; j < 16; j++) sum = vaddq_f32(sum, a[j]);
    *out = sum[0];
    return (double)n * 16 * 16 * 2;
}
#elif defined(__x86_64__)
#include <immintrin.h>
/* Multiplies tiles n / 8 times with four tiles of sums, as in the inner loop, and returns the
 * operations; the tiles hold zeros. */
static double peak_loop_tiles(int64_t n)
{
    micro_bf16_tiles()->begin();
    for (int64_t i = 0; i < n / 8; i++)
        __asm__ volatile("tdpbf16ps %tmm6, %tmm4, %tmm0\n\ttdpbf16ps %tmm7, %tmm4, %tmm1\n\t"
                         "tdpbf16ps %tmm6, %tmm5, %tmm2\n\ttdpbf16ps %tmm7, %tmm5, %tmm3");
    micro_bf16_tiles()->end();
    return (double)(n / 8) * 4 * 16 * 16 * 32 * 2;
}

__attribute__((target("avx512bf16,avx512f"))) static double peak_loop_bf16(int64_t n, float seed, float *out)
{
    *out = seed;
    if (micro_bf16_tiles()) return peak_loop_tiles(n);
    if (!micro_bf16_vectors()) return 0;
    __m512bh x = (__m512bh)_mm512_set1_ps(seed);
    __m512 a[16], sum = _mm512_setzero_ps();
    _Pragma("GCC unroll 16") for (int j = 0; j < 16; j++) a[j] = _mm512_set1_ps((float)j);
    for (int64_t i = 0; i < n; i++)
        _Pragma("GCC unroll 16") for (int j = 0; j < 16; j++) a[j] = _mm512_dpbf16_ps(a[j], x, x);
    _Pragma("GCC unroll 16") for (int j = 0; j < 16; j++) sum = _mm512_add_ps(sum, a[j]);
    *out = sum[0];
    return (double)n * 16 * 32 * 2;
}
#else
static double peak_loop_bf16(int64_t n, float seed, float *out)
{
    (void)n, *out = seed;
    return 0;
}
#endif

double peak_measure(enum dtype t, int threads)
{
    double best = 0;
    for (double begun = clock_seconds(); clock_seconds() - begun < TRY_SECONDS;) {
        double flops = 0, start = clock_seconds();
#pragma omp parallel num_threads(threads) reduction(+ : flops)
        {
            volatile float keep;
            float value;
            flops += t == DT_BF16 ? peak_loop_bf16(100000, 1e-3f, &value) : peak_loop(100000, 1e-3f, &value);
            keep = value;
            (void)keep;
        }
        double rate = flops / (clock_seconds() - start);
        if (rate > best) best = rate;
    }
    return best > 0 ? best : peak_measure(DT_F32, threads);
}

/* --- bytes -------------------------------------------------------------------------- */

/* Computes a = b + c over n elements, `times` times, and returns the bytes per second. */
static double stream_once(float *a, const float *b, const float *c, int64_t n, int times, int threads)
{
    double start = clock_seconds();
#pragma omp parallel num_threads(threads)
    for (int r = 0; r < times; r++) {
#pragma omp for simd schedule(static)
        for (int64_t i = 0; i < n; i++) a[i] = b[i] + c[i];
    }
    return (double)n * 12 * times / (clock_seconds() - start);
}

double peak_stream(uint64_t bytes, int threads)
{
    int64_t n = (int64_t)(bytes / 12) / 64 * 64;
    int times = (int)max_i64(1, (int64_t)((32u << 20) / bytes));
    uint64_t whole = align_up(3 * (uint64_t)n * 4, 2u << 20);
    float *at = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return 0;
    madvise(at, whole, MADV_HUGEPAGE); /* as for the arena */
    memset(at, 0, whole);
    double best = 0;
    for (double begun = clock_seconds(); clock_seconds() - begun < TRY_SECONDS;) {
        double rate = stream_once(at, at + n, at + 2 * n, n, times, threads);
        if (rate > best) best = rate;
    }
    munmap(at, whole);
    return best;
}

/* --- names ------------------------------------------------------------------------------ */

/* Writes the value of a key of the first processor in /proc/cpuinfo to `out`; "" if it has none. */
static void cpuinfo(const char *key, char *out, size_t room)
{
    char line[512];
    FILE *f = fopen("/proc/cpuinfo", "r");
    out[0] = '\0';
    while (f && !out[0] && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (!colon || strncmp(line, key, strlen(key))) continue;
        colon += 1 + strspn(colon + 1, " \t");
        snprintf(out, room, "%.*s", (int)strcspn(colon, "\r\n"), colon);
    }
    if (f) fclose(f);
}

void cpu_identity(struct cpu_identity *c)
{
    char hidden[64];
    struct utsname u = {0};
    char maker[32], part[32];
    uname(&u);
    cpuinfo("model name", c->name, sizeof c->name);
    if (!c->name[0]) { /* Arm gives implementer and part as numbers */
        cpuinfo("CPU implementer", maker, sizeof maker);
        cpuinfo("CPU part", part, sizeof part);
        snprintf(c->name, sizeof c->name, "%.16s%s%.16s%s%.16s", u.machine, maker[0] ? " " : "", maker,
                 part[0] ? " " : "", part);
    }
    const struct micro_bf16 *h = micro_bf16_best();
    snprintf(c->isa, sizeof c->isa, "%.16s %.16s%s%.16s%s", u.machine, micro_best()->name, h ? " " : "",
             h ? h->name : "", cpu_hidden_print(" no-", hidden));
}

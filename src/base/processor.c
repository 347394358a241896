/*
 * processor.c: see processor.h. The list of hidden features is read once; the processor's
 * features are queried at each call, which is cheap.
 */
#include "base/processor.h"

#include <pthread.h>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#endif

static const char *const names[CPU_FEATURES] = {"bf16", "amx", "avx512", "sve"};
#define VARIABLE "PLIMSOLL_HIDE_CPU"

static bool hidden[CPU_FEATURES];
static char unknown[64]; /* the first name that is not a feature */

static void hide(const char *name, size_t n)
{
    for (int f = 0; f < CPU_FEATURES; f++)
        if (strlen(names[f]) == n && !memcmp(names[f], name, n)) {
            hidden[f] = true;
            return;
        }
    if (!unknown[0]) snprintf(unknown, sizeof unknown, "%.*s", (int)(n < 60 ? n : 60), name);
}

static void read_variable(void)
{
    const char *at = getenv(VARIABLE);
    for (; at && *at; at += strspn(at, ", ")) {
        size_t n = strcspn(at, ", ");
        if (n) hide(at, n);
        at += n;
    }
}

bool cpu_hides(enum cpu_feature f)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_variable);
    return hidden[f];
}

#if defined(__aarch64__) && defined(__linux__)

/* HWCAP2_BF16 and HWCAP_SVE are missing in old headers. */
enum { HAS_BF16 = 1 << 14, HAS_SVE = 1 << 22 };

static bool processor_has(enum cpu_feature f)
{
    if (f == CPU_BF16) return getauxval(AT_HWCAP2) & HAS_BF16;
    return f == CPU_SVE && getauxval(AT_HWCAP) & HAS_SVE;
}

#elif defined(__x86_64__)

/* Reports whether the processor has the instructions, and the operating system saves the tile
 * registers. */
static bool has_tiles(void)
{
    enum { AMX_BF16 = 1u << 22, AMX_TILE = 1u << 24, OSXSAVE = 1u << 27, STATE_CONFIG = 17, STATE_TILES = 18 };
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & OSXSAVE)) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & AMX_BF16) || !(d & AMX_TILE)) return false;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low >> STATE_CONFIG & 1) && (low >> STATE_TILES & 1);
}

static bool processor_has(enum cpu_feature f)
{
    switch (f) {
    case CPU_BF16: return __builtin_cpu_supports("avx512bf16") || has_tiles();
    case CPU_AMX: return has_tiles();
    case CPU_AVX512:
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    default: return false;
    }
}

#else

static bool processor_has(enum cpu_feature f)
{
    (void)f;
    return false;
}

#endif

bool cpu_has(enum cpu_feature f) { return !cpu_hides(f) && processor_has(f); }

int cpu_features_check(struct error *e)
{
    char known[64] = "";
    cpu_hides(CPU_BF16);
    if (!unknown[0]) return PL_OK;
    for (int f = 0, n = 0; f < CPU_FEATURES; f++)
        n += snprintf(known + n, sizeof known - (size_t)n, "%s%s", f ? ", " : "", names[f]);
    return error_set(e, PL_USAGE, VARIABLE ": there is no feature \"%s\" to hide; the features are %s", unknown, known);
}

const char *cpu_hidden_print(const char *before, char out[64])
{
    int n = 0;
    out[0] = '\0';
    for (int f = 0; f < CPU_FEATURES; f++)
        if (cpu_hides(f)) n += snprintf(out + n, 64 - (size_t)n, "%s%s", before, names[f]);
    return out;
}

/*
 * random.c: counter-based random numbers (see random.h; the integer arithmetic is in keyed.h).
 *
 * Normal numbers come in pairs (Box-Muller): pair k of uniform bits gives elements 2k
 * and 2k + 1. A pair always uses bits 2k and 2k + 1, even if only one half is needed.
 */
#include "base/random.h"

#include <math.h>

#include "base/base.h"
#include "base/keyed.h"

static const double two_pi = 6.283185307179586476925286766559;

uint64_t random_key(uint64_t seed, const char *name)
{
    return keyed_mix(hash_bytes(name, strlen(name), keyed_mix(seed + KEYED_GOLDEN)));
}

uint64_t random_bits(uint64_t key, uint64_t index) { return keyed_bits(key, index); }

void random_words(uint32_t *to, uint64_t key, uint64_t first, int64_t n)
{
    int64_t i = 0;
    if (n > 0 && first % 2) to[i++] = (uint32_t)(random_bits(key, first / 2) >> 32);
    for (; i + 1 < n; i += 2) {
        uint64_t bits = random_bits(key, (first + (uint64_t)i) / 2);
        to[i] = (uint32_t)bits;
        to[i + 1] = (uint32_t)(bits >> 32);
    }
    if (i < n) to[i] = (uint32_t)random_bits(key, (first + (uint64_t)i) / 2);
}

/* Draws two normal numbers. u is in (0, 1], so that its logarithm is finite; v is in [0, 1). */
static inline void normal_pair(uint64_t key, uint64_t k, double pair[2])
{
    double u = ((double)(random_bits(key, 2 * k) >> 11) + 1) * 0x1p-53;
    double v = (double)(random_bits(key, 2 * k + 1) >> 11) * 0x1p-53;
    double radius = sqrt(-2 * log(u));
    pair[0] = radius * cos(two_pi * v);
    pair[1] = radius * sin(two_pi * v);
}

/* Stores pair k of the stream. An odd start or end uses only one half. */
static inline void put_pair(float *to, uint64_t key, uint64_t first, int64_t n, float std, int64_t k)
{
    double pair[2];
    normal_pair(key, first / 2 + (uint64_t)k, pair);
    int64_t at = (int64_t)(2 * (first / 2 + (uint64_t)k) - first);
    if (at >= 0) to[at] = (float)(std * pair[0]);
    if (at + 1 < n) to[at + 1] = (float)(std * pair[1]);
}

/* Fills short ranges in this thread: a parallel region costs an allocation and a system call even
 * with one thread. */
void random_normal(float *to, uint64_t key, uint64_t first, int64_t n, float std)
{
    if (n <= 0) return;
    int64_t pairs = (int64_t)((first + (uint64_t)n - 1) / 2 - first / 2) + 1;
    if (pairs <= 4096) {
        for (int64_t k = 0; k < pairs; k++) put_pair(to, key, first, n, std, k);
        return;
    }
#pragma omp parallel for schedule(static)
    for (int64_t k = 0; k < pairs; k++) put_pair(to, key, first, n, std, k);
}

void random_uniform(float *to, uint64_t key, uint64_t first, int64_t n, float bound)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = (float)(bound * (2 * ((double)(random_bits(key, first + (uint64_t)i) >> 11) * 0x1p-53) - 1));
}

/*
 * random.h: counter-based random numbers.
 *
 * A number is a pure function of a key and an index. There is no state: any thread
 * may compute any element at any time, and the result depends neither on the order nor on the
 * chunking. A key identifies one stream, usually (seed, name of the tensor that is filled).
 */
#pragma once

#include <stdint.h>

/* Returns the key of a named stream under a run's seed. */
uint64_t random_key(uint64_t seed, const char *name);

/* Returns 64 uniform bits. */
uint64_t random_bits(uint64_t key, uint64_t index);

/* Fills elements [first, first + n) of the stream of uniform 32-bit words: word 2k and 2k + 1 are
 * the low and the high half of random_bits(key, k). */
void random_words(uint32_t *to, uint64_t key, uint64_t first, int64_t n);

/* Fills elements [first, first + n) of the stream of normal numbers with mean 0 and the given
 * standard deviation. One call over a range equals several calls over its parts. The arithmetic is
 * in double and rounded once. No value is beyond 8.6 deviations. */
void random_normal(float *to, uint64_t key, uint64_t first, int64_t n, float std);

/* Does as random_normal, but for uniform numbers between -bound and bound. */
void random_uniform(float *to, uint64_t key, uint64_t first, int64_t n, float bound);

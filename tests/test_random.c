/*
 * test_random.c: random numbers by index: independent of order and chunking, and with the right
 * distribution.
 */
#include "base/base.h"
#include "base/random.h"

#include "harness.h"

/* Any division of a range gives the same numbers, and the moments are those of a normal
 * distribution. */
TEST(test_random)
{
    enum { N = 100000 };
    float *whole = mem_alloc(N * sizeof *whole), part[257];
    uint64_t key = random_key(11, "w");
    double power[5] = {0};
    random_normal(whole, key, 5, N, 1);
    for (int64_t at = 0, n; at < 3000; at += n) {
        n = 1 + (int64_t)(random_bits(9, (uint64_t)at) % 257);
        random_normal(part, key, 5 + (uint64_t)at, n, 1);
        assert_memory_equal(part, whole + at, (size_t)n * sizeof *part);
    }
    for (int i = 0; i < N; i++)
        for (int k = 1; k < 5; k++) power[k] += pow(whole[i], k) / N;
    /* Standard deviation of the k-th sample moment: sqrt((E x^2k - (E x^k)^2) / N); five of
     * them. */
    assert_true(fabs(power[1]) < 5 * sqrt(1.0 / N));
    assert_true(fabs(power[2] - 1) < 5 * sqrt(2.0 / N));
    assert_true(fabs(power[3]) < 5 * sqrt(15.0 / N));
    assert_true(fabs(power[4] - 3) < 5 * sqrt(96.0 / N));
    assert_true(random_key(11, "w") != random_key(12, "w") && random_key(11, "w") != random_key(11, "v"));
    mem_free(whole);
}

/* Each output bit is set half of the time, and flips half of the time when one bit of the index or
 * of the key does; five deviations of a fair coin. */
TEST(test_bits)
{
    enum { N = 4096 };
    int set[64] = {0}, by_index[64] = {0}, by_key[64] = {0};
    for (uint64_t i = 0; i < N; i++) {
        uint64_t x = random_bits(7, i), y = x ^ random_bits(7, i ^ 1ull << i % 64),
                 z = x ^ random_bits(7 ^ 1ull << i % 64, i);
        for (int k = 0; k < 64; k++) set[k] += x >> k & 1, by_index[k] += y >> k & 1, by_key[k] += z >> k & 1;
    }
    for (int k = 0; k < 64; k++) {
        assert_true(abs(set[k] - N / 2) < 5 * sqrt(N) / 2);
        assert_true(abs(by_index[k] - N / 2) < 5 * sqrt(N) / 2);
        assert_true(abs(by_key[k] - N / 2) < 5 * sqrt(N) / 2);
    }
}

/* Any division of a range gives the same words, and their mean is that of a uniform word. */
TEST(test_words)
{
    enum { N = 20000 };
    uint32_t *whole = mem_alloc(N * sizeof *whole), part[257];
    uint64_t key = random_key(5, "words");
    double mean = 0;
    random_words(whole, key, 3, N);
    for (int64_t at = 0, n; at < 3000; at += n) {
        n = (int64_t)(random_bits(9, (uint64_t)at) % 257) + 1;
        random_words(part, key, 3 + (uint64_t)at, n);
        assert_memory_equal(part, whole + at, (size_t)n * sizeof *part);
    }
    assert_int_equal(whole[1], (uint32_t)random_bits(key, 2));
    for (int i = 0; i < N; i++) mean += whole[i] * 0x1p-32 / N;
    assert_true(fabs(mean - 0.5) < 5 * sqrt(1.0 / 12 / N));
    mem_free(whole);
}

MAIN(NULL, NULL)

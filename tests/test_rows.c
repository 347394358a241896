/*
 * test_rows.c: packing puts every sample into exactly one row, within its length, and fills rows.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "base/random.h"
#include "data/rows.h"

/* Every sample once, no row over T, rows in the order of their first samples. Returns the fill. */
static double check_rows(const struct rows *r, const uint32_t *lengths, uint32_t n, uint32_t T)
{
    uint64_t sum = 0;
    unsigned char *seen = mem_alloc(n + 1);
    assert_int_equal(r->first[0], 0);
    assert_int_equal(r->first[r->n], n);
    for (uint32_t row = 0; row < r->n; row++) {
        uint64_t used = 0;
        assert_true(r->first[row] < r->first[row + 1]);
        if (row) assert_true(r->samples[r->first[row - 1]] < r->samples[r->first[row]]);
        for (uint32_t k = r->first[row]; k < r->first[row + 1]; k++) {
            assert_true(r->samples[k] < n && !seen[r->samples[k]]++);
            if (k > r->first[row]) assert_true(r->samples[k - 1] < r->samples[k]);
            used += lengths[r->samples[k]];
        }
        assert_true(used <= T);
        sum += used;
    }
    mem_free(seen);
    return (double)sum / ((double)r->n * T);
}

/* Lengths as those of chat datasets: log-normal, cut at T. */
static void fill_lengths(uint32_t *lengths, uint32_t n, uint32_t T, double median, double sigma)
{
    float *x = mem_alloc(n * sizeof *x);
    random_normal(x, random_key(1, "lengths"), 0, n, (float)sigma);
    for (uint32_t i = 0; i < n; i++) lengths[i] = (uint32_t)fmin(T, fmax(1, median * exp((double)x[i])));
    mem_free(x);
}

static void test_fills_rows(void **state)
{
    (void)state;
    static const struct { uint32_t T; double median, sigma; } cases[] = {{2048, 400, 0.8}, {4096, 900, 1.0}, {1024, 150, 0.7}, {512, 300, 0.5}};
    enum { N = 20000 };
    uint32_t *lengths = mem_alloc(N * sizeof *lengths);
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct rows r;
        fill_lengths(lengths, N, cases[i].T, cases[i].median, cases[i].sigma);
        rows_pack(&r, lengths, N, cases[i].T, true);
        double fill = check_rows(&r, lengths, N, cases[i].T);
        if (i < 3 && fill < 0.99) fail_msg("case %zu: %.3f of the rows is filled", i, fill);
        assert_true(fill > 0.85); /* lengths above half a row cannot share one */
        rows_free(&r);
    }
    mem_free(lengths);
}

static void test_any_size(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 2, 63, 64, 65, 4095, 4096, 4097, 1 << 20};
    uint32_t lengths[300];
    for (size_t i = 0; i < COUNT(sizes); i++)
        for (uint32_t n = 1; n <= 300; n += 23) {
            struct rows r, again;
            for (uint32_t k = 0; k < n; k++) lengths[k] = 1 + (uint32_t)(random_bits(i, k) % sizes[i]);
            rows_pack(&r, lengths, n, sizes[i], true);
            rows_pack(&again, lengths, n, sizes[i], true);
            check_rows(&r, lengths, n, sizes[i]);
            assert_int_equal(r.n, again.n);
            assert_memory_equal(r.samples, again.samples, n * sizeof *r.samples);
            rows_free(&r);
            rows_free(&again);
        }
}

static void test_best_fit(void **state)
{
    (void)state;
    const uint32_t lengths[] = {4, 6, 3, 7, 5, 5}; /* 7+3, 6+4, 5+5 */
    struct rows r;
    rows_pack(&r, lengths, COUNT(lengths), 10, true);
    assert_int_equal(r.n, 3);
    const uint32_t want[] = {0, 1, 2, 3, 4, 5};
    assert_memory_equal(r.samples, want, sizeof want);
    rows_free(&r);
    rows_pack(&r, lengths, COUNT(lengths), 10, false);
    assert_int_equal(r.n, 6);
    check_rows(&r, lengths, COUNT(lengths), 10);
    rows_free(&r);
    rows_pack(&r, lengths, 0, 10, true);
    assert_int_equal(r.n, 0);
    rows_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fills_rows), cmocka_unit_test(test_any_size), cmocka_unit_test(test_best_fit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

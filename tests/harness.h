/*
 * harness.h: what every unit test shares. It includes no header of the project, so that the tests
 * of the library can use it. Each test is a program of its own, so the functions are static inline.
 *
 *     TEST(test_name) { assert_true(...); }
 *
 *     MAIN(NULL, NULL)       at the end: runs the tests of the file in their order
 *
 * A machine without cmocka builds the tests of the GPU: they define HARNESS_ALONE and the few
 * macros of cmocka that they use.
 */
#pragma once

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Most tests do not need the state that cmocka passes to them. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#ifndef HARNESS_ALONE
#include <cmocka.h>

static __attribute__((unused)) struct CMUnitTest harness_tests[64];
static __attribute__((unused)) size_t harness_count;

/* TEST adds itself before main runs. TEST_WITH has functions to call before and after it. */
#define TEST(NAME) TEST_WITH(NAME, NULL, NULL)
#define TEST_WITH(NAME, SET_UP, TEAR_DOWN)                                                           \
    static void NAME(void **state);                                                                  \
    __attribute__((constructor)) static void NAME##_add(void)                                        \
    {                                                                                                \
        assert_true(harness_count < sizeof harness_tests / sizeof *harness_tests);                   \
        harness_tests[harness_count++] = (struct CMUnitTest){#NAME, NAME, SET_UP, TEAR_DOWN, NULL};  \
    }                                                                                                \
    static void NAME(void **state)

/* SET_UP and TEAR_DOWN are called before and after all tests; NULL: none. */
#define MAIN(SET_UP, TEAR_DOWN)                                                                      \
    int main(void)                                                                                   \
    {                                                                                                \
        seed_begin();                                                                                \
        return _cmocka_run_group_tests("tests", harness_tests, harness_count, SET_UP, TEAR_DOWN);    \
    }
#endif

/* Fails with the message unless the call returns 0. */
#define must(CALL, E)                                                                                \
    do {                                                                                             \
        if (CALL) fail_msg("%s (seed %" PRIu64 "): %s", #CALL, seed, (E)->text);                     \
    } while (0)

/* Fails unless the message contains `PART`. */
#define assert_says(E, PART)                                                                         \
    do {                                                                                             \
        if (!strstr((E)->text, PART)) fail_msg("expected \"%s\" in the message: %s", PART, (E)->text); \
    } while (0)

/* The dimensions of a shape, as arguments: their number and an array. */
#define DIM(...) (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__}

/* --- random values ------------------------------------------------------------------------- */

static uint64_t seed, rng;

/* Starts the random values. SEED in the environment repeats a run; failures print it. */
static inline void seed_begin(void)
{
    seed = getenv("SEED") ? strtoull(getenv("SEED"), NULL, 0) : 20240607;
    rng = seed * 0x9E3779B97F4A7C15u + 1;
}

/* Returns a number in [0, 1). */
static inline double uniform(void)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (double)(rng >> 11) * 0x1p-53;
}

static inline double normal(void)
{
    double a = uniform(), b = uniform();
    return sqrt(-2 * log(1 - a)) * cos(6.283185307179586 * b);
}

/* --- a folder ------------------------------------------------------------------------------ */

/* The folder of a program's tests: MAIN(make_folder, remove_folder). */
static char folder[100];

static inline int make_folder(void **state)
{
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/plimsoll-test-XXXXXX", base ? base : "/tmp");
    return mkdtemp(folder) ? 0 : -1;
}

static inline int remove_folder(void **state)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

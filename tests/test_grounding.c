/*
 * test_grounding.c: what the queries of an image are matched with (models/grounding.h).
 */
#include "models/grounding.h"

#include "harness.h"

enum { M = 4, Q = 3, W = M + Q };

/* "xx..|..." : a row of candidates; x is one, . is none. */
static void assert_row(const float *row, const char *expect)
{
    for (int i = 0; i < W; i++) {
        const char c = expect[i + (i >= M)];
        if ((row[i] == 0) != (c == 'x')) fail_msg("candidate %d of %s is %g", i, expect, (double)row[i]);
        if (c == '.') assert_true(row[i] == GROUND_NOT);
    }
}

static void check(const bool is_mask[M], const int32_t target[Q], const char *const rows[2 * Q],
                  const int32_t expect[2 * Q])
{
    float candidates[2 * Q * W];
    int32_t answers[2 * Q];
    ground_candidates(is_mask, M, target, Q, candidates, answers);
    for (int r = 0; r < 2 * Q; r++) {
        assert_row(candidates + r * W, rows[r]);
        assert_int_equal(answers[r], expect[r]);
    }
}

static const bool three[M] = {true, true, true, false};

TEST(test_several)
{
    check(three, (int32_t[]){1, 0, 2},
          (const char *const[]){"xxx.|...", "xxx.|...", "xxx.|...", "....|xxx", "....|xxx", "....|xxx"},
          (int32_t[]){1, 0, 2, M, M + 1, M + 2});
}

/* Queries with the same target are no wrong answers for each other. */
TEST(test_same_target)
{
    check(three, (int32_t[]){1, 1, 2},
          (const char *const[]){"xxx.|...", "xxx.|...", "xxx.|...", "....|x.x", "....|.xx", "....|xxx"},
          (int32_t[]){1, 1, 2, M, M + 1, M + 2});
    check(three, (int32_t[]){1, 1, -1},
          (const char *const[]){"xxx.|...", "xxx.|...", "xxx.|...", "xxx.|...", "xxx.|...", "xxx.|..."},
          (int32_t[]){1, 1, -100, 1, 1, -100});
}

/* One query: the second row is the first again. An image without queries has no answers, and rows
 * without inf. */
TEST(test_few)
{
    check(three, (int32_t[]){-100, 2, -1},
          (const char *const[]){"xxx.|...", "xxx.|...", "xxx.|...", "xxx.|...", "xxx.|...", "xxx.|..."},
          (int32_t[]){-100, 2, -100, -100, 2, -100});
    check((bool[M]){false}, (int32_t[]){-1, -1, -1},
          (const char *const[]){"....|...", "....|...", "....|...", "....|...", "....|...", "....|..."},
          (int32_t[]){-100, -100, -100, -100, -100, -100});
}

MAIN(NULL, NULL)

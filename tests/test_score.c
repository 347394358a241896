/*
 * test_score.c: compares IoU and Dice with counting by hand, sums by prompt and category, the worst
 * samples with sorting all, and checks the tables.
 */
#include "base/random.h"
#include "infer/score.h"

#include "harness.h"

static const char *const prompts[] = {"point", "box"};

TEST(test_overlap)
{
    const uint8_t predicted[] = {0, 0, 7, 7, 7, 7, 7, 7, 0, 0, 1, 0}, target[] = {1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 9, 0};
    struct overlap a = overlap_masks(predicted, target, sizeof target);
    assert_int_equal(a.both, 3);
    assert_int_equal(a.either, 9);
    assert_int_equal(a.predicted, 7);
    assert_int_equal(a.target, 5);
    assert_true(overlap_iou(&a) == 3.0 / 9 && overlap_dice(&a) == 6.0 / 12);
    assert_true(fabs(dice_of_iou(overlap_iou(&a)) - overlap_dice(&a)) < 1e-12);
    struct overlap none = {0};
    assert_true(overlap_iou(&none) == 1 && overlap_dice(&none) == 1);
}

static const char *name_of(const void *of, int32_t category)
{
    (void)of;
    return category == 7 ? "dog, \"big\"" : category == 3 ? "katze" : NULL;
}

TEST(test_rows)
{
    struct scores s;
    struct text table = {0}, csv = {0};
    scores_open(&s, prompts, 2, 3, 2);
    scores_names(&s, name_of, NULL);
    uint64_t before = mem_allocations();
    scores_add(&s, 0, 3, 0.8, 0.9, &(struct worst){.sample = 0, .mask = 0});
    scores_add(&s, 0, 7, 0.5, 0.6, &(struct worst){.sample = 1, .mask = 0});
    scores_add(&s, 0, 5, 0.6, 0.7, &(struct worst){.sample = 1, .mask = 1});
    scores_add(&s, 1, 99, 0.2, 0.3, &(struct worst){.sample = 2, .mask = 0});
    assert_int_equal(mem_allocations(), before);
    struct score point = scores_of(&s, 0), all = scores_of(&s, 2);
    assert_int_equal(point.masks, 3);
    assert_true(fabs(score_iou(&point) - 1.9 / 3) < 1e-12 && fabs(score_dice(&all) - 2.5 / 4) < 1e-12);
    scores_csv(&s, &csv);
    assert_string_equal(csv.at, "prompt,category,masks,mean_iou,mean_dice,above_50,above_75\n"
                                "point,all,3,0.633333,0.733333,0.666667,0.333333\n"
                                "point,katze,1,0.800000,0.900000,1.000000,1.000000\n"
                                "point,5,1,0.600000,0.700000,1.000000,0.000000\n"
                                "point,\"dog, \"\"big\"\"\",1,0.500000,0.600000,0.000000,0.000000\n"
                                "box,all,1,0.200000,0.300000,0.000000,0.000000\n"
                                "box,other,1,0.200000,0.300000,0.000000,0.000000\n");
    scores_print(&s, &table);
    print_message("%s", table.at);
    assert_non_null(strstr(table.at, "point   all"));
    assert_non_null(strstr(table.at, "0.6333     0.7333      66.7 %      33.3 %\n"));
    scores_reset(&s);
    assert_int_equal(scores_of(&s, 2).masks, 0);
    assert_true(score_iou(&(struct score){0}) == 0);
    scores_close(&s);
    text_free(&table);
    text_free(&csv);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Independent of the order of adding; equal ones are ordered by their numbers. */
TEST(test_worst)
{
    enum { N = 500, KEEP = 17 };
    double all[N];
    struct scores s, other;
    scores_open(&s, prompts, 1, 0, KEEP);
    scores_open(&other, prompts, 1, 0, KEEP);
    for (uint64_t i = 0; i < N; i++) all[i] = (double)(random_bits(11, i) % 64) / 64;
    for (uint64_t i = 0; i < N; i++) {
        scores_add(&s, 0, 0, all[i], 0, &(struct worst){.sample = i, .mask = 0});
        scores_add(&other, 0, 0, all[N - 1 - i], 0, &(struct worst){.sample = N - 1 - i});
    }
    qsort(all, N, sizeof *all, ascending);
    assert_int_equal(s.n_worst, KEEP);
    for (int k = 0; k < KEEP; k++) {
        assert_true(s.worst[k].iou == all[k]);
        assert_true(s.worst[k].sample == other.worst[k].sample);
    }
    scores_close(&s);
    scores_close(&other);
    scores_open(&s, prompts, 1, 0, 0);
    scores_add(&s, 0, 0, 0.1, 0.1, &(struct worst){.sample = 0, .mask = 0});
    assert_int_equal(s.n_worst, 0);
    scores_close(&s);
}

MAIN(NULL, NULL)

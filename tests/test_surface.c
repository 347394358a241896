/*
 * test_surface.c: compares Dice, IoU, HD95 and NSD with MONAI's and NumPy's of 50 pairs of masks
 * (tests/golden/make_surface.py), and the distance transform with a search over all cells.
 */
#include "base/random.h"
#include "infer/score.h"
#include "infer/own_size.h"
#include "data/volumes/volume.h"

#include "harness.h"

enum { CELLS_MOST = 1 << 14, PAIRS = 50 };

static void read_bits(const char *hex, uint8_t *to, size_t n)
{
    assert_int_equal(strlen(hex), (n + 7) / 8 * 2);
    for (size_t i = 0; i < n; i++) {
        unsigned byte;
        assert_int_equal(sscanf(hex + i / 8 * 2, "%2x", &byte), 1);
        to[i] = byte >> i % 8 & 1;
    }
}

static void assert_near(double got, double want)
{
    if (isnan(want)) assert_true(isnan(got));
    else assert_true(fabs(got - want) <= 1e-6 * fmax(1, fabs(want)));
}

static void compare(const char *line)
{
    static char hex[2][CELLS_MOST];
    static uint8_t masks[2][CELLS_MOST];
    struct cell_box b;
    double tolerance, want[4];
    assert_int_equal(sscanf(line, "%u %u %u %lf %lf %lf %lf %lf %lf %lf %lf %16383s %16383s", &b.w, &b.h, &b.d,
                            &b.spacing[0], &b.spacing[1], &b.spacing[2], &tolerance, &want[0], &want[1], &want[2],
                            &want[3], hex[0], hex[1]),
                     13);
    const size_t n = box_cells(&b);
    for (int k = 0; k < 2; k++) read_bits(hex[k], masks[k], n);
    const struct overlap o = overlap_masks(masks[0], masks[1], n);
    const struct surface_scores s = surface_compare(&b, masks[0], masks[1], tolerance);
    assert_near(overlap_dice(&o), want[0]);
    assert_near(overlap_iou(&o), want[1]);
    assert_near(s.hd95, want[2]);
    assert_near(s.nsd, want[3]);
}

TEST(test_golden)
{
    FILE *f = fopen("tests/golden/surface.txt", "r");
    char *line = NULL;
    size_t room = 0;
    int n = 0;
    assert_non_null(f);
    for (; getline(&line, &room, f) > 0; n++) compare(line);
    assert_int_equal(n, PAIRS);
    free(line);
    fclose(f);
}

/* Against the nearest of all features. */
TEST(test_distance)
{
    for (uint64_t trial = 0; trial < 60; trial++) {
        const uint64_t key = random_key(trial, "distance");
        struct cell_box b = {1 + (uint32_t)(random_bits(key, 0) % 12),
                             1 + (uint32_t)(random_bits(key, 1) % 12),
                             1 + (uint32_t)(random_bits(key, 2) % 5),
                             {1, 0.7, 2.5}};
        const size_t n = box_cells(&b);
        double *to = mem_alloc(n * sizeof *to), *features = mem_alloc(n * sizeof *features);
        void *scratch = mem_alloc(distance_scratch(&b));
        for (size_t i = 0; i < n; i++) features[i] = to[i] = random_bits(key, 10 + i) % 100 < trial ? 0 : INFINITY;
        distance_squared(&b, to, scratch);
        for (size_t i = 0; i < n; i++) {
            double least = INFINITY;
            for (size_t k = 0; k < n; k++) {
                if (features[k] > 0) continue;
                const double x = ((double)(i % b.w) - (double)(k % b.w)) * b.spacing[0],
                             y = ((double)(i / b.w % b.h) - (double)(k / b.w % b.h)) * b.spacing[1];
                const double z = ((double)(i / b.w / b.h) - (double)(k / b.w / b.h)) * b.spacing[2];
                least = fmin(least, x * x + y * y + z * z);
            }
            assert_true(isinf(least) ? isinf(to[i]) : fabs(to[i] - least) <= 1e-12 * fmax(1, least));
        }
        mem_free(scratch);
        mem_free(features);
        mem_free(to);
    }
}

/* A volume that is scored slice by slice, in any order and one slice twice, has the scores of its
 * masks as one body; a slice of another volume ends it. */
TEST(test_volumes)
{
    enum { W = 5, H = 4, D = 3, CELLS = W * H * D };
    static const char *const prompts[] = {"mask"};
    const struct volume a = {.w = W, .h = H, .slices = D, .spacing = {1, 2, 3}}, b = a;
    const struct cell_box box = {W, H, D, {1, 2, 3}};
    struct volume_scores v;
    uint8_t predicted[CELLS], target[CELLS], wrong[W * H] = {0};
    double expected[METRICS];
    for (uint64_t i = 0; i < CELLS; i++) predicted[i] = random_bits(1, i) % 3 > 0, target[i] = random_bits(2, i) % 2;
    masks_compare(&box, predicted, target, 1.5, expected);
    volume_scores_open(&v, NULL, prompts, 1.5);
    volume_scores_add(&v, &(struct body_slice){.volume = &a, .mask = 7, .slice = 2}, wrong, wrong);
    for (uint32_t z = D; z-- > 0;)
        volume_scores_add(&v, &(struct body_slice){.volume = &a, .mask = 7, .slice = z}, predicted + z * W * H,
                          target + z * W * H);
    assert_int_equal(v.table.rows.n, 0);
    volume_scores_add(&v, &(struct body_slice){.volume = &b, .mask = 7}, wrong, wrong);
    assert_int_equal(v.table.rows.n, 1);
    assert_memory_equal(v.table.rows.at[0].value[SIZE_OWN], expected, sizeof expected);
    volume_scores_end(&v);
    assert_int_equal(v.table.rows.n, 2);
    assert_true(v.table.rows.at[1].value[SIZE_OWN][METRIC_DICE] == 1); /* both are empty */
    volume_scores_close(&v);
}

MAIN(NULL, NULL)

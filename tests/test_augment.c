/*
 * test_augment.c: turns and flips against permutations by hand, masks against images that show
 * them, intensities against their definitions. That a sample depends only on its position is
 * tested in test_loader.c.
 */
#include "base/random.h"
#include "data/loader.h"
#include "data/masks/grid.h"

#include "harness.h"

enum { SIDE = 64, CELLS = 32, ROWS = 40, COLUMNS = 64, BYTES = SIDE * SIDE * 3 };

static uint8_t image[BYTES], before[BYTES], scratch[BYTES];

static void fill_image(void)
{
    memset(image, 0, sizeof image);
    for (int y = 0; y < ROWS; y++)
        for (int x = 0; x < COLUMNS; x++)
            for (int k = 0; k < 3; k++)
                image[(y * SIDE + x) * 3 + k] = (uint8_t)random_bits(5, (uint64_t)((y * SIDE + x) * 3 + k));
    memcpy(before, image, sizeof image);
}

/* Every turn, with and without a vertical flip, is a permutation of the pixels: the flip after the
 * turn. */
TEST(test_turns)
{
    int seen[8] = {0};
    for (uint64_t key = 0; key < 200; key++) {
        const struct augment a = augment_draw(&(struct loader_augment){.flip_vertical = 0.5, .turn = 0.75},
                                              random_key(key, "t"), ROWS, COLUMNS);
        fill_image();
        augment_image(&a, SIDE, image, scratch);
        int found = -1;
        for (int which = 0; which < 8 && found < 0; which++) {
            const int turn = which % 4, flip = which / 4, rows = turn % 2 ? COLUMNS : ROWS,
                      columns = turn % 2 ? ROWS : COLUMNS;
            bool same = rows == (int)a.rows && columns == (int)a.columns;
            for (int y = 0; y < rows && same; y++)
                for (int x = 0; x < columns && same; x++) {
                    const int v = flip ? rows - 1 - y : y;
                    const int from_x[] = {x, COLUMNS - 1 - v, COLUMNS - 1 - x, v},
                              from_y[] = {v, x, ROWS - 1 - v, ROWS - 1 - x};
                    same = !memcmp(image + (y * SIDE + x) * 3, before + (from_y[turn] * SIDE + from_x[turn]) * 3, 3);
                }
            if (same) found = which;
        }
        assert_true(found >= 0);
        seen[found]++;
    }
    for (int i = 0; i < 8; i++) assert_true(seen[i] > 5);
}

static bool bit(const uint8_t *bits, uint32_t x, uint32_t y)
{
    return bits[y * grid_stride(CELLS) + x / 8] >> x % 8 & 1;
}

/* The image is white where the mask is: it stays so under any map, but for cells at the mask's
 * edge. */
TEST(test_masks_follow)
{
    uint64_t bits[CELLS], more[CELLS];
    for (uint64_t key = 0; key < 40; key++) {
        const struct loader_augment how = {.flip_vertical = 0.5, .turn = 0.5, .rotate = 30};
        const struct augment a = augment_draw(&how, random_key(key, "m"), ROWS, COLUMNS);
        const bool turned = a.rows != ROWS;
        int wrong = 0, set = 0;
        memset(bits, 0, sizeof bits);
        memset(image, 0, sizeof image);
        for (int y = 4; y < 15; y++)
            for (int x = 5; x < 20; x++) {
                bits[y] |= 1ull << x;
                for (int k = 0; k < 4; k++) memset(image + ((2 * y + k / 2) * SIDE + 2 * x + k % 2) * 3, 255, 3);
            }
        augment_bits(&a, SIDE, CELLS, turned ? COLUMNS / 2 : ROWS / 2, turned ? ROWS / 2 : COLUMNS / 2, bits, more);
        augment_image(&a, SIDE, image, scratch);
        for (uint32_t y = 0; y < a.rows / 2; y++)
            for (uint32_t x = 0; x < a.columns / 2; x++) {
                int sum = 0;
                for (uint32_t k = 0; k < 4; k++) sum += image[((2 * y + k / 2) * SIDE + 2 * x + k % 2) * 3];
                wrong += (sum > 510) != bit((const uint8_t *)bits, x, y);
                set += bit((const uint8_t *)bits, x, y);
            }
        assert_true(set > 130 && wrong <= (a.map[0][0] * a.map[0][1] == 0 ? 0 : 12));
    }
}

TEST(test_intensities)
{
    const struct augment none = augment_draw(&(struct loader_augment){0}, 1, ROWS, COLUMNS);
    assert_true(!none.moves && !none.tones && none.gamma == 1 && none.contrast == 1 && none.brightness == 0);
    double least[3] = {9, 9, 9}, most[3] = {-9, -9, -9};
    for (uint64_t key = 0; key < 500; key++) {
        const struct augment a =
            augment_draw(&(struct loader_augment){.brightness = 0.2, .contrast = 0.3, .gamma = 0.5},
                         random_key(key, "i"), ROWS, COLUMNS);
        const double x[3] = {a.brightness, a.contrast, a.gamma};
        for (int i = 0; i < 3; i++) least[i] = fmin(least[i], x[i]), most[i] = fmax(most[i], x[i]);
    }
    assert_true(least[0] >= -0.2 && least[0] < -0.18 && most[0] <= 0.2 && most[0] > 0.18);
    assert_true(least[1] >= 0.7 && least[1] < 0.72 && most[1] <= 1.3 && most[1] > 1.28);
    assert_true(least[2] >= 1 / 1.5 && least[2] < 0.68 && most[2] <= 1.5 && most[2] > 1.47);
    fill_image();
    struct augment a = {.tones = true, .rows = ROWS, .columns = COLUMNS, .brightness = 0.1, .contrast = 1, .gamma = 2};
    augment_image(&a, SIDE, image, NULL);
    for (int i = 0; i < COLUMNS * 3; i++)
        assert_true(abs(image[i] - (int)fmin(255, 255 * pow(before[i] / 255.0, 2) + 25.5 + 0.5)) <= 1);
    assert_true(!memcmp(image + ROWS * SIDE * 3, before + ROWS * SIDE * 3, 3)); /* padding stays */
}

TEST(test_noise)
{
    struct augment a =
        {.tones = true, .rows = SIDE, .columns = SIDE, .contrast = 1, .gamma = 1, .noise = 0.05, .noise_key = 77};
    double sum = 0, squares = 0;
    memset(image, 128, sizeof image);
    augment_image(&a, SIDE, image, NULL);
    for (int i = 0; i < SIDE * SIDE; i++) {
        assert_true(image[3 * i] == image[3 * i + 1] && image[3 * i] == image[3 * i + 2]);
        sum += image[3 * i] - 128, squares += (image[3 * i] - 128) * (image[3 * i] - 128);
    }
    const double n = SIDE * SIDE, std = sqrt(squares / n);
    assert_true(fabs(sum / n) < 1 && fabs(std - 12.75) < 0.6);
    memcpy(before, image, sizeof image);
    memset(image, 128, sizeof image);
    augment_image(&a, SIDE, image, NULL);
    assert_memory_equal(image, before, sizeof image);
}

MAIN(NULL, NULL)

/*
 * test_prompts.c: the first prompt of a mask (batch/first_prompts.h): points lie on it, uniformly
 * distributed over its cells; boxes are its own, or moved by noise and still in the image; the
 * random numbers depend on seed, position and mask by itself.
 */
#include "base/random.h"
#include "data/masks/grid.h"
#include "models/model.h"
#include "batch/first_prompts.h"

#include "harness.h"

enum { SIDE = 256, CELLS = 64, MASKS = 2, DRAWS = 4000 };

/* An image of 256 x 192 on the canvas. Mask 0 is an L of 12 cells, 1 a rectangle at the lower
 * edge. */
struct scene {
    _Alignas(64) uint8_t bits[MASKS * 64 * CELLS];
    struct loader_mask masks[MASKS];
    struct loader_sample sample;
};

static bool on(const struct scene *s, int k, uint32_t x, uint32_t y)
{
    const uint8_t *bits = s->bits + (size_t)k * grid_mask_bytes(CELLS, CELLS);
    return bits[y * grid_stride(CELLS) + x / 8] >> x % 8 & 1;
}

static void set(struct scene *s, int k, uint32_t x, uint32_t y)
{
    struct loader_mask *m = &s->masks[k];
    uint32_t x1 = m->area ? m->x + m->w : x + 1, y1 = m->area ? m->y + m->h : y + 1;
    s->bits[(size_t)k * grid_mask_bytes(CELLS, CELLS) + y * grid_stride(CELLS) + x / 8] |= (uint8_t)(1 << x % 8);
    if (!m->area || x < m->x) m->x = x;
    if (!m->area || y < m->y) m->y = y;
    m->w = (x1 > x + 1 ? x1 : x + 1) - m->x;
    m->h = (y1 > y + 1 ? y1 : y + 1) - m->y;
    m->area++;
}

static void make(struct scene *s)
{
    memset(s, 0, sizeof *s);
    assert_true(grid_mask_bytes(CELLS, CELLS) * MASKS <= sizeof s->bits);
    for (uint32_t i = 0; i < 8; i++) set(s, 0, 10, 20 + i);
    for (uint32_t i = 1; i < 5; i++) set(s, 0, 10 + i, 27);
    for (uint32_t y = 40; y < 48; y++)
        for (uint32_t x = 50; x < 64; x++) set(s, 1, x, y);
    s->masks[0].interior[0] = 10, s->masks[0].interior[1] = 24;
    s->sample = (struct loader_sample){.n = MASKS, .rows = 192, .columns = 256, .mask_rows = 48, .mask_columns = 64,
                                       .bits = s->bits, .masks = s->masks};
}

static struct first_prompts prompts_with(double box, double jitter)
{
    return (struct first_prompts){.side = SIDE, .cells = CELLS, .masks = MASKS, .key = random_key(3, "first prompts"),
                                  .box = box, .jitter = jitter};
}

TEST(test_points)
{
    struct scene s;
    struct first_prompts p = prompts_with(0, 0);
    uint32_t hits[CELLS][CELLS] = {{0}};
    make(&s);
    for (uint32_t i = 0; i < DRAWS; i++) {
        float at[4];
        int32_t kinds[2];
        s.sample.position = i;
        prompt_random(&p, &s.sample, 0, at, kinds);
        assert_true(kinds[0] == POINT_FOREGROUND && kinds[1] == POINT_FILLER && at[2] == 0 && at[3] == 0);
        /* the exact middle of a cell: the number of cells is a power of two */
        uint32_t x = (uint32_t)(at[0] * CELLS), y = (uint32_t)(at[1] * CELLS);
        assert_true(at[0] * CELLS == (float)x + 0.5f && at[1] * CELLS == (float)y + 0.5f);
        if (!on(&s, 0, x, y)) fail_msg("draw %u: cell %u, %u is not of the mask", i, x, y);
        hits[y][x]++;
    }
    /* 12 cells, 333 draws each on average: 6 deviations are 105 */
    for (uint32_t y = 0; y < CELLS; y++)
        for (uint32_t x = 0; x < CELLS; x++)
            if (on(&s, 0, x, y) && (hits[y][x] < 228 || hits[y][x] > 438))
                fail_msg("cell %u, %u was drawn %u times", x, y, hits[y][x]);
}

/* Corners are the middles of the outermost pixels: a cell is four of them wide. */
TEST(test_boxes)
{
    struct scene s;
    struct first_prompts p = prompts_with(1, 0);
    const float want[MASKS][4] = {{40.5f, 80.5f, 59.5f, 111.5f}, {200.5f, 160.5f, 255.5f, 191.5f}};
    make(&s);
    for (uint32_t k = 0; k < MASKS; k++) {
        float exact[4], drawn[4];
        int32_t kinds[2];
        prompt_box(&p, &s.sample, k, exact, kinds);
        assert_true(kinds[0] == POINT_FIRST && kinds[1] == POINT_LAST);
        for (int i = 0; i < 4; i++) assert_true(fabsf(exact[i] * SIDE - want[k][i]) < 1e-4f);
        prompt_random(&p, &s.sample, k, drawn, kinds);
        assert_memory_equal(drawn, exact, sizeof exact); /* no jitter */
    }
    float at[4];
    int32_t kinds[2];
    prompt_interior(&p, &s.sample, 0, at, kinds);
    assert_true(at[0] * CELLS == 10.5f && at[1] * CELLS == 24.5f && kinds[0] == POINT_FOREGROUND &&
                kinds[1] == POINT_FILLER);
}

/* Noise of a tenth of the box's side, 20 pixels of 1024 at most (5 here), and never out of the
 * image. */
TEST(test_jitter)
{
    struct scene s;
    struct first_prompts p = prompts_with(1, 0.1);
    double sum = 0, squares = 0;
    make(&s);
    for (uint32_t i = 0; i < DRAWS; i++)
        for (uint32_t k = 0; k < MASKS; k++) {
            float at[4], exact[4];
            int32_t kinds[2];
            s.sample.position = i;
            prompt_random(&p, &s.sample, k, at, kinds);
            prompt_box(&p, &s.sample, k, exact, kinds);
            if (!(at[0] <= at[2] && at[1] <= at[3])) fail_msg("draw %u: a box inside out", i);
            if (at[0] < 0.5f / SIDE || at[1] < 0.5f / SIDE || at[2] > 255.5f / SIDE || at[3] > 191.5f / SIDE)
                fail_msg("draw %u: out of the image", i);
            for (int c = 0; c < 4; c++)
                if (fabsf(at[c] - exact[c]) * SIDE > 5.001f)
                    fail_msg("draw %u: corner %d moved by %g pixels", i, c, (at[c] - exact[c]) * SIDE);
            if (k) continue;
            /* of a box 20 pixels wide: deviation 2, truncated at 2.5 deviations */
            double move = (at[0] - exact[0]) * SIDE;
            sum += move;
            squares += move * move;
        }
    double mean = sum / DRAWS, deviation = sqrt(squares / DRAWS - mean * mean);
    if (fabs(mean) > 6 * 2 / sqrt(DRAWS) || deviation < 1.85 || deviation > 2.05)
        fail_msg("mean %g, deviation %g", mean, deviation);
}

TEST(test_draws)
{
    struct scene s;
    struct first_prompts p = prompts_with(0.5, 0.1), other = p;
    uint32_t boxes = 0, moved = 0;
    other.key = random_key(4, "first prompts");
    make(&s);
    for (uint32_t i = 0; i < DRAWS; i++) {
        float at[4], again[4], elsewhere[4];
        int32_t kinds[2], same[2];
        s.sample.position = i;
        prompt_random(&p, &s.sample, 1, at, kinds);
        prompt_random(&p, &s.sample, 1, again, same);
        assert_memory_equal(at, again, sizeof at);
        assert_memory_equal(kinds, same, sizeof kinds);
        prompt_random(&other, &s.sample, 1, elsewhere, same);
        moved += memcmp(at, elsewhere, sizeof at) != 0;
        boxes += kinds[0] == POINT_FIRST;
    }
    assert_true(boxes > DRAWS / 2 - 190 && boxes < DRAWS / 2 + 190); /* 6 deviations of 32 */
    assert_true(moved > DRAWS * 9 / 10);
}

MAIN(NULL, NULL)

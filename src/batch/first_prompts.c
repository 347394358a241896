/*
 * first_prompts.c: see first_prompts.h.
 */
#include "batch/first_prompts.h"

#include "base/random.h"
#include "data/masks/grid.h"

enum { JITTER_MOST = 20, JITTER_OF = 1024 }; /* largest noise on corners: 20 pixels of a canvas of 1024 */

/* Finds the coordinates of the mask's set cell number `at`, counted row by row. */
static void find_cell(const uint8_t *bits, uint32_t cells, uint64_t at, uint32_t to[2])
{
    uint32_t words = (uint32_t)grid_stride(cells) / 8;
    for (uint32_t k = 0; k < words * cells; k++) {
        uint64_t w;
        memcpy(&w, bits + (size_t)k * 8, sizeof w);
        uint64_t n = (uint64_t)__builtin_popcountll(w);
        if (at >= n) {
            at -= n;
            continue;
        }
        for (; at; at--) w &= w - 1;
        to[0] = k % words * 64 + (uint32_t)__builtin_ctzll(w);
        to[1] = k / words;
        return;
    }
    CHECK(false, "a mask has fewer cells than its area");
}

/* Returns a coordinate of a box with noise proportional to the box's side, clamped to the image. */
static float corner(double at, double noise, double side, double jitter, double pixel, double end)
{
    double most = (double)JITTER_MOST / JITTER_OF, move = noise * jitter * side;
    move = move > most ? most : move < -most ? -most : move;
    at += move;
    return (float)(at < pixel / 2 ? pixel / 2 : at > end - pixel / 2 ? end - pixel / 2 : at);
}

/* Writes a box, whose corners are pixel centres: those of the outermost pixels of the box's cells,
 * half a pixel inside. */
static void put_box(const struct first_prompts *p, const struct loader_sample *s, uint32_t k, uint64_t key,
                    double jitter, float *coords, int32_t *kinds)
{
    const struct loader_mask *x = &s->masks[k];
    double pixel = 1.0 / p->side, cell = 1.0 / p->cells, right = s->columns * pixel, bottom = s->rows * pixel;
    double w = x->w * cell, h = x->h * cell;
    float noise[4] = {0};
    if (jitter > 0) random_normal(noise, key, 0, 4, 1);
    float x0 = corner(x->x * cell + pixel / 2, noise[0], w, jitter, pixel, right),
          y0 = corner(x->y * cell + pixel / 2, noise[1], h, jitter, pixel, bottom);
    float x1 = corner((x->x + x->w) * cell - pixel / 2, noise[2], w, jitter, pixel, right);
    float y1 = corner((x->y + x->h) * cell - pixel / 2, noise[3], h, jitter, pixel, bottom);
    coords[0] = x0 < x1 ? x0 : x1;
    coords[1] = y0 < y1 ? y0 : y1;
    coords[2] = x0 < x1 ? x1 : x0;
    coords[3] = y0 < y1 ? y1 : y0;
    kinds[0] = POINT_FIRST;
    kinds[1] = POINT_LAST;
}

static void put_point(const struct first_prompts *p, const uint32_t cell[2], float *coords, int32_t *kinds)
{
    coords[0] = ((float)cell[0] + 0.5f) / (float)p->cells;
    coords[1] = ((float)cell[1] + 0.5f) / (float)p->cells;
    coords[2] = coords[3] = 0;
    kinds[0] = POINT_FOREGROUND;
    kinds[1] = POINT_FILLER;
}

void prompt_box(const struct first_prompts *p, const struct loader_sample *s, uint32_t k, float *coords, int32_t *kinds)
{
    put_box(p, s, k, 0, 0, coords, kinds);
}

void prompt_interior(const struct first_prompts *p, const struct loader_sample *s, uint32_t k, float *coords,
                     int32_t *kinds)
{
    put_point(p, s->masks[k].interior, coords, kinds);
}

/* Draws a prompt. Each mask has a random key: number 0 selects point or box, 1 the cell, 2 is the
 * key of the box's noise. */
void prompt_random(const struct first_prompts *p, const struct loader_sample *s, uint32_t k, float *coords,
                   int32_t *kinds)
{
    uint64_t key = random_bits(p->key, s->position * p->masks + k);
    uint32_t cell[2];
    if ((double)(random_bits(key, 0) >> 11) * 0x1p-53 < p->box) {
        put_box(p, s, k, random_bits(key, 2), p->jitter, coords, kinds);
        return;
    }
    find_cell(s->bits + (size_t)k * grid_mask_bytes(p->cells, p->cells), p->cells,
              random_bits(key, 1) % s->masks[k].area, cell);
    put_point(p, cell, coords, kinds);
}

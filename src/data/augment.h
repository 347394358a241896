/*
 * augment.h: augmentation of a sample on the canvas: mirrored rows, turns of 90 degrees, a small
 * rotation, and intensities. Crop, scale and horizontal flip come before, while the image is
 * resized (fill.c).
 *
 *     canvas with the image at its upper left ─ one affine map: image bilinear, masks nearest ─ the
 *     same canvas
 *                                             ─ one table of 256 values, then noise
 *
 * Everything is drawn from the sample's position, so that threads, ranks and a resume change
 * nothing.
 */
#pragma once

#include "base/base.h"

/* Drawn for each position. All zeros: none. */
struct loader_augment {
    double flip;           /* probability of a horizontal flip */
    double scale;          /* below 1: the longer side is between this share of the canvas and all */
    double crop;           /* below 1: a window at a random position; each of its sides is between
                              this share of the image's side and all of it */
    double flip_vertical;  /* probability */
    double turn;           /* probability of a turn by 90, 180 or 270 degrees, each as likely */
    double rotate;         /* degrees: a rotation between this and its negative */
    double brightness;     /* adds between this and its negative, as a fraction of white */
    double contrast;       /* factor on the distance from the mean: between 1 - this and 1 + this */
    double gamma;          /* exponent: between 1 / (1 + this) and 1 + this */
    double noise;          /* standard deviation of Gaussian noise, as a fraction of white */
};
/* Reports whether augment_bits and augment_image need scratch. */
static inline bool augment_moves(const struct loader_augment *a)
{
    return a->flip_vertical > 0 || a->turn > 0 || a->rotate > 0;
}

/* What was drawn for a sample whose image covers rows x columns of the canvas. */
struct augment {
    bool moves, tones;
    double map[2][3];        /* position in the canvas, in pixels, of a position of the result: x and y from x, y, 1 */
    uint32_t rows, columns;  /* of the result */
    uint32_t from_rows, from_columns;
    double brightness, contrast, gamma, noise;
    uint64_t noise_key;
};
struct augment augment_draw(const struct loader_augment *a, uint64_t key, uint32_t rows, uint32_t columns);

/* Moves a mask of `cells` x `cells` bits over a canvas of `side` pixels (masks/grid.h), of which
 * `rows` x `columns` cells are valid in the result; scratch is as large as the mask. */
void augment_bits(const struct augment *a, uint32_t side, uint32_t cells, uint32_t rows, uint32_t columns, void *bits,
                  void *scratch);
/* Moves the canvas [side][side][3]; scratch is as large, and unused without moves. What the map
 * leaves empty is black. */
void augment_image(const struct augment *a, uint32_t side, uint8_t *image, uint8_t *scratch);

/*
 * moves.h: the forms of the kernels that move elements (shuffle.cu): for the planning half, which
 * chooses, and the launchers, which check. Functions of shapes and strides alone.
 */
#ifndef MOVES_H
#define MOVES_H

#include "cuda/rows/loop_nest.h"

/* Strided copies: along the rows of y, or through tiles in shared memory. */
enum move_form { MOVE_ROWS, MOVE_TRANSPOSED };

/* The loop along which a is contiguous, if y is contiguous along another one and tiles pay off;
 * else 0. */
static inline int transposed_loop(const struct loop_nest *f)
{
    if (f->y[0] != 1 || f->a[0] == 1 || f->size[0] < 8) return 0;
    for (int k = 1; k < f->loops; k++)
        if (f->a[k] == 1 && f->size[k] >= 8) return k;
    return 0;
}

/* The bytes that a copy along rows moves at a time: `size`, an element, unless rows are contiguous
 * on both sides; then the widest unit that divides all rows and strides, and the addresses, whose
 * bits are given. */
static inline int move_unit(const struct loop_nest *f, uint64_t addresses, int size)
{
    uint64_t bits = addresses | (uint64_t)(f->size[0] * size) | 16;
    if (f->y[0] != 1 || f->a[0] != 1) return size;
    for (int k = 1; k < f->loops; k++) bits |= (uint64_t)(f->y[k] * size) | (uint64_t)(f->a[k] * size);
    const int unit = (int)(bits & -bits);
    return unit > size ? unit : size;
}

/* Windows of a map: a thread for each unit, or a warp for each pixel. */
enum window_form { WINDOW_UNITS, WINDOW_PIXELS };

static inline enum window_form window_form(int64_t units_of_pixel)
{
    return units_of_pixel >= 32 ? WINDOW_PIXELS : WINDOW_UNITS;
}

#endif

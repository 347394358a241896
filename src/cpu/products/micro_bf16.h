/*
 * micro_bf16.h: the inner loop of matrix products on processors with bf16 multiply instructions:
 * four times the f32 rate with vector instructions, more with matrix instructions.
 *
 * These instructions sum small groups of products at once, so a panel of width w keeps `group`
 * neighbours of k together:
 *
 *     k 0..3 of row 0 | k 0..3 of row 1 | .. row w-1 | k 4..7 of row 0 | ..      (group 4)
 *
 * K is padded with zeros to whole groups (pack.h). B's groups may be smaller than A's: then B's
 * panel is padded to A's length. Products are exact and sums are f32, but the rounding of sums is
 * defined by the instruction: the bits differ from the f32 loops (micro.h) on the same values, by
 * about as much as another order of summation would. Denormals count as 0.
 *
 * As in micro.h, an element's bits depend only on its row, its column and K.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* The largest group of the vector instruction sets; mr and the group of the matrix instruction set,
 * which are larger. */
enum { GROUP_MAX = 4, TILE_ROWS = 32, TILE_DEPTH = 32 };

struct micro_bf16 {
    const char *name;
    int mr, nr;         /* as in micro.h; mr divides PANEL_A or is TILE_ROWS */
    int group, group_b; /* group sizes in a panel of A and in a panel of B; group_b divides group */

    /* A thread calls begin before and end after its products; NULL: nothing to do. */
    void (*begin)(void);
    void (*end)(void);

    /* c [mr][nr], rows ldc apart = (add ? c : 0) + the sum over `groups` groups of k. */
    void (*product)(int64_t groups, const uint16_t *a, const uint16_t *b, float *c, int64_t ldc, bool add);

    /* Converts f32 [mr][nr], rows ld apart, to c [mr][nr], rows ldc apart: bit-identical to
     * f32_to_bf16. */
    void (*narrow)(uint16_t *c, int64_t ldc, const float *from, int64_t ld);

    /* Pack panels from f32 tiles [.][nr], with the same rounding: a B panel with the n rows as k,
     * padded with 0; and a tile of an A panel with mr of the rows as rows and the columns as k.
     * Vector instructions only. */
    void (*pack_rows)(uint16_t *to, const float *from, int64_t n);
    void (*pack_columns)(uint16_t *to, const float *from);
};

/* Returns the fastest set that this processor supports; NULL: it has no such instructions. */
const struct micro_bf16 *micro_bf16_best(void);
/* The set of vector instructions, which have the tile of the f32 set (micro.h), and the set of
 * matrix instructions; NULL: none. */
const struct micro_bf16 *micro_bf16_vectors(void);
const struct micro_bf16 *micro_bf16_tiles(void);

/*
 * micro_bf16.h: the inner loop of matrix products where the processor multiplies bf16
 * itself: four times the f32 rate with vector instructions, more with matrix ones.
 *
 * They add up small groups of products at once, so a panel of width w keeps `group`
 * neighbours of k together:
 *
 *     k 0..3 of row 0 | k 0..3 of row 1 | .. row w-1 | k 4..7 of row 0 | ..      (group 4)
 *
 * K is filled up with zeros to whole groups (pack.h). B's groups may be smaller than A's: then
 * B's panel is filled up to A's. Products are exact and sums are f32,
 * but their roundings are the instruction's own: the bits differ from the f32 loops'
 * (micro.h) on the same values, by about as much as another order of summation would.
 * Denormals count as 0.
 *
 * As there: an element's bits depend on its row, its column and K alone.
 */
#ifndef CPU_MICRO_BF16_H
#define CPU_MICRO_BF16_H

#include <stdbool.h>
#include <stdint.h>

/* The largest group of the sets of vector instructions; what the set of matrix instructions
 * has for mr and for its group, which are larger. */
enum { GROUP_MAX = 4, TILE_ROWS = 32, TILE_DEPTH = 32 };

struct micro_bf16 {
    const char *name;
    int mr, nr;         /* as in micro.h; mr divides PANEL_A or is TILE_ROWS */
    int group, group_b; /* neighbours in a panel of A and in one of B; group_b divides group */

    /* A thread calls products and what follows between these two; NULL: nothing to do. */
    void (*begin)(void);
    void (*end)(void);

    /* c [mr][nr], rows ldc apart = (add ? c : 0) + the sum over `groups` groups of k. */
    void (*product)(int64_t groups, const uint16_t *a, const uint16_t *b, float *c, int64_t ldc, bool add);

    /* c [mr][nr], rows ldc apart, from f32 [mr][nr], rows ld apart: the bits of f32_to_bf16. */
    void (*narrow)(uint16_t *c, int64_t ldc, const float *from, int64_t ld);

    /* Panels from f32 tiles [.][nr], rounded likewise: a B panel whose k are the n rows, filled
     * up with 0; and a piece of an A panel whose rows are mr of them and whose k the columns.
     * Vector instructions only. */
    void (*pack_rows)(uint16_t *to, const float *from, int64_t n);
    void (*pack_columns)(uint16_t *to, const float *from);
};

/* The fastest set of this processor; NULL: it has no such instructions. */
const struct micro_bf16 *micro_bf16_best(void);
/* The set of vector instructions, which share the tile of the f32 set (micro.h), and that of
 * matrix instructions; NULL: none. */
const struct micro_bf16 *micro_bf16_vectors(void);
const struct micro_bf16 *micro_bf16_tiles(void);

#endif

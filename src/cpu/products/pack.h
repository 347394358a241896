/*
 * pack.h: packs operands of any float dtype into the panels that the inner loops read (micro.h,
 * micro_bf16.h), and unpacks panels into rows.
 */
#pragma once

#include "base/dtype.h"

enum { GATHER_STRIP = 96, GATHER_ROWS = 32 };

/* Packs panels of `width` (a multiple of 4) from the elements (i,k), i < n, k < K, at from + i *
 * across + k * along. Panel i / width holds, for each k in order, its `width` elements; lanes from
 * n on are 0. Writes panel_floats. */
void pack_panels(float *to, int width, const void *from, enum dtype t, int64_t across, int64_t along, int64_t n,
                 int64_t K);
static inline int64_t panel_floats(int width, int64_t n, int64_t K)
{
    return (n + width - 1) / width * width * K;
}

/* The same from bf16 to bf16, in groups of `group` neighbours of k (2, 4 or 32, micro_bf16.h). K is
 * padded with 0 to a multiple of `whole`, which is a multiple of group. Writes panel_bf16
 * elements. */
void pack_panels_bf16(uint16_t *to, int width, int group, int whole, const uint16_t *from, int64_t across,
                      int64_t along, int64_t n, int64_t K);
static inline int64_t panel_bf16(int width, int64_t n, int64_t K, int whole)
{
    return (n + width - 1) / width * width * ((K + whole - 1) / whole * whole);
}

/* A matrix with rows that are assembled as they are read, such as the patches of a map. Embed it as
 * the first member of the struct that implements it. */
struct gather {
    /* Reads columns at .. at+n (n <= GATHER_STRIP) of rows i .. i+count (count <= GATHER_ROWS) as
     * f32: sets row[r] to the elements of row i+r, in memory or in scratch[r]. */
    void (*strips)(const struct gather *g, int64_t i, int count, int64_t at, int64_t n, const float *row[],
                   float scratch[][GATHER_STRIP]);
};

/* Does as pack_panels for a gathered matrix: lanes i .. i+n and steps k .. k+K, where lanes are the
 * matrix's rows and steps its columns (`lanes_are_rows`), or vice versa. */
void pack_gathered(float *to, int width, const struct gather *g, bool lanes_are_rows, int64_t i, int64_t k, int64_t n,
                   int64_t K);

/* Computes rows[i][k] = factor[i] * panel[k][i] for i < n, k < K; rows ld apart. A NULL factor is
 * 1. */
void panel_to_rows(float *rows, int64_t ld, const float *panel, int width, int64_t n, int64_t K, const float *factor);

/* Transposes the tile [m][k] (m < mr, k < nr, rows ld apart) to [k][mr]: a tile of an A panel from
 * one of a B panel. Both counts are multiples of 4. */
void tile_transpose(float *to, const float *from, int64_t ld, int mr, int nr);

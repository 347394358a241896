/*
 * image_grid.h: images and videos of any size in a vision-language model: each is a grid of
 * patches, and how many tokens it takes is data of the sample.
 *
 * The tower reads one row of patches, in which images are packed as documents are packed into a row
 * of tokens: the ranges of its attention say who sees whom. merge x merge neighbouring patches
 * become one feature, which takes the place of one token.
 *
 *     grids            1 x 4 x 6        1 x 2 x 4    padding
 *     patches          24               8            ...        planned: P
 *     features         6                2            ...        P / merge^2
 *     tokens     a b   x x x x x x   c  x x  d e
 *
 * A tower with windows attends within windows of an image in most layers. Its patches lie window by
 * window, so that a window is a range; the index of features (image_index) undoes this.
 *
 * A token has three positions, by time, row and column: those of a text are equal and go up by one;
 * those of an image are its feature's in the grid, and the text goes on behind the largest.
 *
 * The inputs of the graph (batch/inputs.def), where P patches have K = channels * temporal *
 * patch^2 values, and rows are samples; or one row of all images, where a batch says how many
 * patches there are (batch.size['P']; `step`):
 *
 *     pixel_values      u8 (contents.pixels) or f32 [rows,P,K]
 *     patch_ranges      i32 [rows,P,2]   the patches that a patch sees: those of its image or frame
 *     window_ranges     i32 [rows,P,2]   those of its window
 *     patch_positions   i32 [rows,P,3]   its row and column
 *     patch_corners     i32 [rows,P,4]   the entries of the table of learned positions around it,
 *     corner_weights    f32 [rows,P,4]   and their weights
 *     image_index       i32 [B,T]
 *     position_ids      i32 [B,T,3]
 */
#pragma once

#include "models/contents.h"

/* Patches of the batch. */
#define OPEN_PATCHES OPEN('P')
#define OPEN_VIDEO_PATCHES OPEN('V')

/* What a model says about its grids (image_model.grids). */
struct grid_model {
    int64_t patch, temporal, channels; /* pixels along a patch, frames in it */
    int64_t merge;                     /* patches along a feature */
    int64_t window;                    /* features along a window; 0: there are none */
    int64_t table;                     /* entries along the table of learned positions; 0: none */
    int64_t per_second;                /* positions in a second of video; 0: grids of a video are 1 apart */
    bool apart;                        /* a token of text is between the grids of a video */
    int32_t image, video;              /* placeholder token ids */
    int64_t tokens;                    /* of every image, which the token allocator (allocator.h) shares... */
    int64_t most;                      /* ...among this many features at most; 0: a feature is a token */
};

static inline int64_t grid_features(const struct grid_model *m, const struct image_grid *x)
{
    return grid_patches(x) / (m->merge * m->merge);
}
static inline int64_t grid_values(const struct grid_model *m)
{
    return m->channels * m->temporal * m->patch * m->patch;
}

/* A row of P patches. Each array may be NULL. */
struct grid_row {
    int32_t *order;          /* [P]: which patch, in the order of the processors, lies here; -1: padding */
    int32_t (*ranges)[2], (*windows)[2]; /* [P] */
    int32_t (*positions)[3]; /* [P] */
    int32_t (*corners)[4];   /* [P] */
    float (*weights)[4];     /* [P] */
    int32_t *feature;        /* [P / merge^2]: where the features lie, in the order of the processors */
};
/* Lays grids out in a row that has room for them. */
void grid_lay_out(const struct grid_model *m, const struct image_grid *grids, int64_t n, int64_t P,
                  const struct grid_row *out);

/* Where texts have come to among the images and videos of a batch or a row. */
struct grid_walk {
    const struct grid_model *model;
    const struct image_grid *grids;
    int64_t n;
    const int32_t *feature; /* of grid_row */
    int64_t next[2];        /* image, video */
    int64_t part;           /* grids of that video that were seen, where they are apart */
    int64_t position;       /* of the document's next token; 0 begins another document */
};
/* Finds the three positions and the feature (below 0: none) of each of the document's next T
 * tokens, which cut no image. Either may be NULL. Returns false if image tokens and grids do not
 * match. With the token allocator it is the token's slot, and the positions are the image's
 * corner. */
bool grid_tokens(struct grid_walk *w, const int32_t *ids, int64_t T, int32_t (*positions)[3], int32_t *index);
/* Does the same for a whole document. */
bool grid_document(struct grid_walk *w, const int32_t *ids, int64_t T, int32_t (*positions)[3], int32_t *index);

/*
 * allocator.h: LLaVA that hands the text model k of an image's tokens: ARR-COC's token allocator
 * (model_type arr_coc_allocator).
 *
 *     texture [cells,13] ─┬─ information, perspectival ───────────┐
 *     question ── mean ───┴─ scorer ─ participatory ── scores [cells,3] ─ balancer ─ one score a
 *     cell
 *                                                                                       │ averaged
 *                                                                                       over the
 *                                                                                       patches
 *     pixel_values ─ tower ─ projector ─ tokens [P,C] ── the k with the highest scores ─ times
 *     their scores ─ text model
 *
 * The inputs of the graph, besides those of models/images.h; every sample has one image:
 *
 *     texture         f32 [B,cells,13]   what the pixels of each of 32 x 32 cells look like
 *     information     f32 [B,cells]      its entropy
 *     query_weights   f32 [B,T]          1/n at the n tokens of the question, 0 elsewhere
 *
 * With token_selection "random" it has instead, for comparison, no weights of its own and
 *
 *     random_scores   f32 [B,P]          the k highest are kept, unscaled
 */
#pragma once

#include "models/image_grid.h"
#include "models/parts.h"

enum { TEXTURE_SIDE = 32, TEXTURE_CELLS = TEXTURE_SIDE * TEXTURE_SIDE, TEXTURE_CHANNELS = 13 };
enum { TEXTURE_EDGES = 7 }; /* the channel that is the perspectival score */

/* --- images of any size: levels of detail (allocator_levels.c) ----------------------------------
 *
 * arr_coc_qwen2_vl and its kin have rows of several images, and every image has as many tokens
 * (grid_model.tokens). They are shared among its features, of which at most grid_model.most are
 * kept: by their scores a feature gets none, one, or at the finer level as many as it has patches.
 *
 *     texture_adapter.up(gelu(texture_adapter.down([what the tower saw, texture])))
 *
 * is added to a token before the score multiplies it: at the finer level of its own patch, else the
 * mean over the feature's patches. The inputs of the graph besides those of image_grid.h; rows as
 * there, I images in each:
 *
 *     texture         f32 [rows,I*cells,13]
 *     information     f32 [rows,I*cells]
 *     query_weights   f32 [rows,I,T]      with one row for all samples [1,I,B*T]
 *     patch_cells     i32 [rows,P,4]      the four cells of the row around the centre of each patch,
 *     cell_weights    f32 [rows,P,4]      and their weights
 *
 * image_index counts slots: that of token i of image m is m tokens + i. position_ids has the corner
 * of the image at all of its tokens: row and column are added where they are chosen.
 */
struct level_tower {
    const struct grid_model *grid;
    int64_t images; /* I */
    bool any;       /* the batch has images; else only the parameters are declared */
    bool shared;    /* one row, of all samples */
    id patches;     /* [rows,P,W]: what the tower saw, normed */
    id features;    /* [rows,F,C] */
    id ranges, places; /* patch_ranges, patch_positions */
    id embeddings;  /* [B,T,C] of the text */
    int64_t inner;  /* width of the adapter */
    double std;     /* of its initial weights; those of `up` are zeros */
};
/* Returns the tokens [rows,I*tokens,C]. *rows gets the positions of its tokens; its features, which
 * belong to those of the tower, become those of the tokens. */
id allocator_levels(struct graph *g, const struct level_tower *t, struct token_rows *rows);
/* Finds, for each of the patches of a row that grid_lay_out has laid out, the cells around it.
 * There are no videos. */
void allocator_cells(const struct image_grid *grids, int64_t n, const struct grid_row *row, int64_t P,
                     int32_t (*cells)[4], float (*weights)[4]);

/* Returns the pixels that an image must have, so that there are patches for all of its tokens; 0:
 * any. Smaller images are enlarged to these. */
int64_t allocator_least_pixels(const struct grid_model *m);
/* Returns PL_USAGE if the image has too few features for its tokens. */
int allocator_check(const struct grid_model *m, const struct image_grid *x, struct error *e);

/* Returns one score of each cell, [n,cells,1], of the images with these textures [n,cells,13],
 * information [n,cells] and questions [n,1,D]. */
id allocator_scores(struct graph *g, id texture, id information, id query);

/* Writes, into a batch, the weights of the tokens of the question, of a row with its labels and
 * its image_index. The question is the text of the conversation with the image whose first slot is
 * `slot`, before its first answer. A row without the image has none: zeros. `labels` NULL: no token
 * has one. */
void question_weights(const int32_t *positions, const int32_t *labels, const int32_t *index, int64_t T, int32_t slot,
                      float *weights);
/* Computes, for a batch, the texture [cells,13] of an image, three planes of height x width
 * numbers from 0 to 1 as the tower sees them before they are normalised; and the information
 * [cells] of a texture. */
void texture_of(const float *rgb, int64_t height, int64_t width, float *texture);
void texture_information(const float *texture, float *out);

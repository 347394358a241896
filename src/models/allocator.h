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

#include "models/model.h"

enum { TEXTURE_SIDE = 32, TEXTURE_CELLS = TEXTURE_SIDE * TEXTURE_SIDE, TEXTURE_CHANNELS = 13 };
enum { TEXTURE_EDGES = 7 }; /* the channel that is the perspectival score */

/* Writes, into a batch, the weights of the tokens of the question, of a row with its labels and
 * its image_index. The question is the text of the conversation with the image, before its first
 * answer. A row without an image has none: zeros. `labels` NULL: no token has one. */
void question_weights(const int32_t *positions, const int32_t *labels, const int32_t *index, int64_t T, float *weights);
/* Computes, for a batch, the texture [cells,13] of an image, three planes of side x side numbers
 * from 0 to 1 as the tower sees them before they are normalised; and the information [cells] of a
 * texture. */
void texture_of(const float *rgb, int64_t side, float *texture);
void texture_information(const float *texture, float *out);

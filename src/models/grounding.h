/*
 * grounding.h: models that find the mask of an image that a text describes (model_type arr_coc).
 *
 * A sample is an image, up to M of its masks, and up to Q queries, which are documents of one row
 * of T tokens. The inputs of the graph, besides those of a language model without labels:
 *
 *     pixel_values   f32 [B,3,S,S]       an image a sample; in training instead
 *     images         u8 [B,S,S,3]        its bytes, with its longer side of S pixels, and
 *     image_valid    i32 [B,2]           its rows and columns
 *     masks          f32 [B,M,patches]   the share of each patch that a mask covers; zeros: no mask
 *     query_index    i32 [B,Q]           the last token of each query; below 0: no query
 *     target_masks   i32 [B,Q]           the mask of each query; below 0: none
 *     candidates     f32 [B,2Q,M+Q]      0, or GROUND_NOT for what a query cannot be matched with
 *     answers        i32 [B,2Q]          which candidate is right; -100: no query
 *
 * The last two follow from masks and target_masks; ground_candidates writes them.
 */
#pragma once

#include "models/masks.h"

enum { GROUND_MASKS = 16, GROUND_QUERIES = 4 }; /* most masks of a sample; its queries, if nothing else is said */
#define GROUND_NOT (-30000.0f) /* its exponential is 0 beside any similarity, and f16 has it */

/* What a model that grounds says about itself (model.ground). */
struct ground_model {
    int64_t side, patch;    /* patches along an image; pixels along a patch */
    struct pixel_norm norm; /* of images that are given as bytes */
    const char *text;       /* the folder of the text model, where it has one of its own: its tokenizer; else NULL */
};

/* Writes, into a batch, what the queries of one sample are matched with. Row q < Q of `candidates`
 * are the masks of the image. Row Q + q are the queries of the image, as the target of q sees
 * them: queries with the same target are no wrong answers and are left out. Where no other query
 * has another target, that row is row q again. */
void ground_candidates(const bool *is_mask, int64_t M, const int32_t *target, int64_t Q, float *candidates,
                       int32_t *answers);

/* Computes, for a batch, the share of each patch that a mask covers, of bits of one for each pixel
 * (rows of `stride` bytes, the lowest bit first). Returns whether it covers any. */
bool ground_shares(const struct ground_model *g, const uint8_t *bits, uint64_t stride, float *shares);

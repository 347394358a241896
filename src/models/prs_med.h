/*
 * prs_med.h: PRS-Med: an image and a question in, an answer and a mask out.
 *
 *     images ─ TinySAM's encoder ─ embedding ───────────────────────┐
 *     pixel_values, input_ids ─ LLaVA ─ states ─┬─ of the question ─┴─ mask decoder ─ pred_masks
 *                                               └─ of the answer ─ logits
 *
 * The language model runs once. Its loss is on the answer's tokens, and the mask decoder reads the
 * states of the image and the question: a causal model gives them the same with or without an
 * answer behind them, so that training, evaluation and prediction agree. The input `question` says
 * which tokens these are.
 *
 *     prs_med.c           configuration, parts, losses
 *     prs_med_decoder.c   the two mask decoders
 */
#pragma once

#include "models/images.h"
#include "models/masks.h"

/* What a feed must know of such a model. */
struct prs_model {
    int64_t image, mask;    /* sides of the images that TinySAM's encoder takes, and of the masks */
    int64_t classes;        /* of images; 0: it does not tell them */
    struct pixel_norm norm; /* of these images */
};
/* Returns NULL if the model is not of this family. */
const struct prs_model *prs_model(const struct model *m);

/* The inputs of the graph besides those of a LLaVA model (images.h):
 *
 *   images    u8 [B,image,image,3]   for TinySAM's encoder, with image_valid i32 [B,2]: rows,
 *                                    columns
 *   question  i32 [B,2]              the tokens that the mask decoder reads: the first, and one
 *                                    past the last
 *   gt_masks  u8 [B,mask,row bytes]  with `targets`: bits, as MASK_LOSS takes them, and gt_valid
 *                                    i32 [B,2]
 *
 *   question_mask f32 [B,T]  training, with attention dropout in the fusion decoder: 0 at these
 *                            tokens, PRS_UNSEEN elsewhere
 *   class_labels i32 [B]     with `targets`, of a model with classes: the image's class, -100: none
 *
 * The loss is text_weight times the cross-entropy per token (the count "tokens") plus mask_weight
 * times the mask loss per mask (the count "masks"), and class_weight times the cross-entropy of the
 * class: a sample with a mask has one. */
#define PRS_UNSEEN (-1e9f) /* added to a score: its weight is 0 */
/* An image, a question and a mask a sample; binary cross-entropy + dice. */
extern const struct contents prs_usual_contents;

/* --- for the files of this family ------------------------------------------------------------- */

enum prs_decoder { PRS_FUSION, PRS_PROMPTED };
enum { PRS_STAGES = 10 };

struct prs {
    struct prs_model model;
    enum prs_decoder decoder;
    int64_t width;                 /* channels of the embedding */
    int64_t grid;                  /* of the embedding */
    int64_t heads;                 /* of the attention from image to text */
    double dropout, attention_dropout; /* of residual branches; of attention weights */
    /* fusion: */
    int64_t pooled;                /* the embedding is pooled to this number of positions along a side */
    int64_t channels[PRS_STAGES], stages; /* of the mask head, which doubles the side in each stage */
    /* prompted: */
    int64_t prompt_hidden, self_heads, self_inner;
};

struct prs_build {
    const struct prs *c;
    struct graph *g;
    int64_t B, bn_group;
    bool drops;
    id states;   /* [B,T,channels of the text] */
    id question; /* i32 [B,2] */
    /* f32 [B,T] with attention dropout: 0 at the tokens of the question, far below 0 elsewhere; 0:
     * not given */
    id unseen;
};

/* Reports whether attention weights are dropped: in programs that train. */
bool prs_drops_attention(const struct prs_build *b);

/* Returns the embedding [B,grid,grid,width] and the question to a map [B,n,n,width], and this to
 * mask logits [B,mask,mask,1]: the second half, whose maps are large, treats each image by
 * itself but for the statistics of batch normalisation. */
id prs_fuse(const struct prs_build *b, id image);
id prs_masks(const struct prs_build *b, id x);

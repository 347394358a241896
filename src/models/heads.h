/*
 * heads.h: the families clip and siglip and their vision models: a vision tower (parts.h), or a
 * head over it with which the tower trains by itself, as the classes of transformers define it.
 *
 *   classes      logits = classifier(mean of the patch tokens), cross-entropy:
 *                CLIPForImageClassification,
 *                SiglipForImageClassification
 *   contrastive  an image and a text tower; logits = exp(logit_scale) * cosine of every image with
 *                every text of the batch.
 *                CLIPModel: symmetric cross-entropy (InfoNCE); SiglipModel: + logit_bias, and
 *                the sigmoid loss of every pair
 *
 * The inputs of the graph:
 *
 *   pixel_values  f32 [B,3,S,S]
 *   labels        i32 [B]           classes: the class; -100: none
 *   input_ids     i32 [B,T]         contrastive: the text of image i is row i
 *   text_end      i32 [B,1]         clip: the token that a text is pooled at (head_text_end)
 *   pair_labels   i32 [B] or [B,B]  clip: i, the text of image i; siglip: 1 for the pairs (i,i), 0
 *                                   for others; -100: padding
 *   pair_mask     f32 [B]           clip: 0, or HEAD_NOT for padding, which is no negative
 *
 * The last two are inputs where a batch may have padding (contents.padded), else constants. All
 * samples of a batch are negatives of each other, so the loss is no sum over parts of it: a
 * micro-batch is all samples of a share.
 *
 * The classifier is in the model's folder, or it is new: then the folder is that of the tower, of
 * which it may be a part, and the model is saved as a folder of the class above.
 */
#pragma once

#include "models/parts.h"

#define HEAD_NOT (-30000.0f) /* its exponential is 0 beside any logit, and f16 has it */

/* What a model with a head says about itself (model.head). */
struct head_model {
    enum head_kind kind;
    const char **names;  /* [classes] */
    int64_t classes;
    const char *folder;  /* of the tower: its image processor; "": a preset */
    bool fresh;          /* the classifier is in no folder */
    bool siglip;
    struct text_tower *text; /* contrastive */
    int64_t projection;  /* clip: the width of the embeddings */
};

/* Returns, for a batch of clip, the index of the token that a text of T ids is pooled at; -1: it
 * has no end token. */
int64_t head_text_end(const struct head_model *h, const int32_t *ids, int64_t T);
/* Writes, into a batch, row i of B of pair_labels and pair_mask, of which row k is a sample if
 * is_sample[k]. `labels` has 1 element, for siglip B. */
void head_pair(const struct head_model *h, const bool *is_sample, int64_t B, int64_t i, int32_t *labels, float *mask);

/* Returns the class of a name, or of its number in digits; -1: there is none. */
int64_t head_class(const struct head_model *h, const char *name);

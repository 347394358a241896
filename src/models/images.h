/*
 * images.h: language models that take images among their tokens: a tower and a projector make
 * features of each image, and these take the places of image tokens in the text.
 *
 *   input_ids     a b <image> <image> <image> c d <image> <image> <image>  3 features an image
 *   image_index  -1 -1  0       1       2    -1 -1  3       4       5      written by batch_index
 *   embeddings    a b  f0      f1      f2     c d  f3      f4      f5
 *
 * The inputs of the graph besides those of a language model:
 *
 *   pixel_values  f32 [N,channels,side,side]  the images, and the frames of videos
 *   image_index   i32 [B,T]                   below 0: text; else the row of the features that
 *                                             stands here
 *
 * What the tower hands to the projector may be computed once and kept: a batch with PART_REST has
 * the input image_embeddings [N,tokens,width] instead of pixel_values, and the graph no tower.
 *
 * In training each sample has room for media.images images and then for media.frames
 * frames: N is B times that, and a sample's images are the first in their room. Its indices count
 * from the first row of its room. Where the batch itself says how many images and frames there are
 * (batch.size['N'] and ['F']; `step`), all samples share them: the images, then the frames; and the
 * indices count over all. Without any the graph has neither input, and the tower does not run.
 *
 * A frame is an image to the tower. Its features, a square grid, may be pooled to a smaller one:
 *
 *   rows of a sample  [image 0: features] [image 1: features] ... [frame 0: tokens_per_frame]
 *                     [frame 1: ...] ...
 *
 * Volumes (modalities.h) have rows of their own, those of one modality after those of another, and
 * an index of their own, so that images stay as they are:
 *
 *   volumes_0, ...    f32 [N,tokens,values]  the patches of the volumes of each modality
 *   volume_index      i32 [B,T]              below 0: no volume; else the row of the features
 */
#pragma once

#include "models/contents.h"
#include "text/template/anyres.h"
#include "text/template/chat_images.h"

/* The dimension of pixel_values that counts images; that of frame_values or pixel_values_videos,
 * which `step` takes besides; and those of the volumes of each modality. */
#define OPEN_IMAGES OPEN('N')
#define OPEN_FRAMES OPEN('F')
#define OPEN_VOLUMES(modality) OPEN('a' + (modality))

/* The tokens of an image; or of a prompt up to the first label, and these also within a window. */
enum both_directions { BOTH_NONE, BOTH_IMAGE, BOTH_PROMPT };

/* What a model that takes images says about them (model.images). */
struct image_model {
    int32_t token;         /* placeholder token id of a feature; may lie outside the vocabulary */
    int64_t features;      /* of an image: the tokens that it takes */
    int64_t grid;          /* they are grid * grid, in rows; 0: they are no grid, and cannot be pooled */
    int64_t tokens, width; /* of the tower's output for an image, image_embeddings */
    int64_t channels;
    enum image_layout layout; /* how images stand in the text */
    const char *around[2], *place; /* of struct image_text */
    bool bos_behind;       /* of struct image_text */
    bool bilinear;         /* how a processor resizes whose file does not say */
    /* Tokens that see each other in both directions: the graph has the inputs ranges (model.h),
     * also of rows that are not packed, and with a `window` of tokens in some layers token_windows,
     * their ranges there. */
    const struct anyres *anyres; /* layout ANYRES: which images become which tiles */
    const char *newline;   /* name of a row of features that is the first of all; NULL: none */
    enum both_directions both;
    int64_t window;
    bool timed;            /* tiles: it takes videos, which are described in the text (struct image_text) */
    const char *tower;     /* model_type of the vision tower */
    /* transformers' pixel_values are [B,M,...], where an image of zeros is padding, with a
     * pixel_attention_mask [B,M,side,side]. Images fill their squares here. */
    bool padded;
    bool single;           /* a sample has one image: the token allocator (allocator.h) */
    /* images of any size (image_grid.h), without `grid`; `features` is 0, or with a token allocator
     * the tokens of every image. NULL: images of one size */
    const struct grid_model *grids;
    struct modality_list modalities; /* volumes that it takes besides */
};

/* --- questions to any model ------------------------------------------------------------------- */

/* Reports whether an image has tokens by its size: any size, and no token allocator. */
bool image_own_tokens(const struct model *m);
/* Reports whether an image token is a sum of up to four features (anyres.h). The graph then has the
 * inputs sum_index i32 [B,T,4], below 0: none, and sum_weights f32 [B,T,4] besides. */
bool images_sum(const struct model *m);
/* Returns how images of any size, or in tiles, become tokens; NULL: images have one size, or there
 * are none. */
const struct grid_model *images_grids(const struct model *m);
const struct anyres *images_tiles(const struct model *m);

/* Returns the row of the features of the first frame. */
int64_t images_first_frame(const struct model *m, const struct batch *batch);
/* Returns the row at which the features of a modality's volumes begin, where a batch has these. */
int64_t images_volume_row(const struct model *m, const struct media *room, int modality);
/* Sets the tokens of a frame. PL_USAGE: tokens_per_frame is no smaller square grid of the
 * model's. */
int images_frame_tokens(const struct model *m, int64_t tokens_per_frame, int64_t *out, struct error *e);

/* Describes a model that takes images of a tower of this model_type, `features` features each, at
 * the image tokens; for parse. */
struct tower_sizes;
int images_describe(struct model *m, struct tower_sizes tower, const char *type, int64_t features, int64_t token,
                    enum image_layout layout, struct error *e);

/* For builders: the layers from pixels [n,channels,side,side] to image_embeddings [n,tokens,width],
 * and from these to features [n,features,C]. */
typedef id image_map(const struct model *m, struct graph *g, id x);
struct image_layers {
    image_map *tower, *project;
    /* from patches [n,tokens,values] of a modality's volumes to what the tower gives,
     * [n,tokens,width]; NULL: the model takes none */
    id (*volumes)(const struct model *m, struct graph *g, const struct modality *x, id patches);
};
/* Declares the input of pixel values, as f32 or as bytes (contents.pixels), of which a channel of
 * an image or of a patch has `plane`. Returns their values. */
id images_input(struct graph *g, const struct contents *holds, const char *name, int rank, const int64_t *dim, int axis,
                int64_t plane);
/* Returns the embeddings x [B,T,C] with the features of the batch's images among them. */
id images_merge(const struct model *m, struct graph *g, const struct batch *batch, id x, struct image_layers layers);
/* Builds, with PART_IMAGE, only the tower, with its output image_embeddings. Returns false if the
 * batch asks for text. */
bool images_encode(const struct model *m, struct graph *g, const struct batch *batch, struct image_layers layers);
/* Builds a model that is only these layers and the decoder in part `decoder`. */
void images_build(const struct model *m, struct graph *g, const struct batch *batch, const char *decoder,
                  struct image_layers layers);

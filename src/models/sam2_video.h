/*
 * sam2_video.h: shared by the files of SAM 2 on videos.
 *
 *     sam2_video.c    configuration, the frames of a clip, the families' forward
 *     sam2_memory.c   memory attention and memory encoder
 */
#pragma once

#include "models/sam.h"

struct sam_video {
    int64_t memories, pointers;         /* most that a frame sees, of memories with the prompted one */
    int64_t prompted;                   /* most prompted frames that a frame sees; below 0: all */
    int64_t points[2];                  /* least and most points of a prompt with several candidates */
    bool several, several_tracked;      /* whether it has several candidates at all, and on tracked frames */
    bool temporal, occlusion;           /* pointers have temporal positions; memories say that there is no object */
    /* the memory attention */
    int64_t hidden, layers, heads, downsample, inner;
    double theta;
    enum act_kind act;
    /* the memory encoder: the mask goes down by `stride` until it is smaller by `total` */
    int64_t encoder, channels, stride, total, kernel, pad, embed;
    double scale, bias;                 /* of the mask's probabilities */
    enum act_kind mask_act;
    int64_t fuser, fuser_layers, fuser_inner, fuser_kernel, fuser_pad;
    enum act_kind fuser_act;
    const char *refused;                /* why it takes no clips; NULL: it does */
};

/* What a tracked frame sees. */
struct bank {
    id values, keys; /* [R,S,channels] */
    id scores;       /* f32 [R,S]: added to the scores of keys */
    id positions;    /* i32 [R,S,3] */
};

/* Returns the number of convolutions that bring a mask to the grid; 0: they do not. */
int64_t sam_mask_layers(const struct sam_video *v);
/* Returns row and column of each key, `maps` maps of n x n and then `more` keys without: i32
 * [R,keys,3]. */
id sam_key_positions(struct graph *g, int64_t R, int64_t maps, int64_t n, int64_t more);
/* Lets the tokens of an image x [R,grid*grid,C] attend to the memories of each row. */
id sam_memory_attention(const struct sam_build *b, id x, const struct bank *k);
/* Encodes an image [images,grid,grid,C] and the masks on it, logits f32 [R,side,side,1], as
 * memories [R,grid*grid,channels]. shown i32 [R,1]: 0 where there is no object. binary: a mask is
 * where its logit is above 0, else its probability. */
id sam_encode_memory(const struct sam_build *b, id image, id logits, id shown, bool binary);

/*
 * sam.h: shared by the files of Segment Anything.
 *
 *     sam.c           configuration, ports, assembly
 *     sam.c           pixels -> image embedding
 *     sam_prompt.c    points, boxes, masks -> tokens and a dense embedding
 *     sam_decoder.c   both -> masks and their predicted IoU
 *     tinysam.c       the encoder of TinySAM and MobileSAM
 *     tinysam.c       its configuration, and the family
 *
 * Prompt encoder and decoder do not depend on the image encoder: any encoder that returns
 * [B,grid,grid,hidden] can be used.
 *
 * Prompts. An image has M prompts, and the decoder works on B x M rows, in the order of the images.
 * A tensor that is the same for all prompts of an image has B rows as long as possible.
 */
#pragma once

#include "models/masks.h"

struct sam_vision {
    int64_t hidden, output, layers, heads, channels, image, patch, inner, window, features;
    double eps, mlp_ratio;
    enum act_kind act;
    bool qkv_bias, positions, relative; /* use absolute and relative positions */
    bool *global;                       /* indexed by layer: global attention instead of windows */
};

struct sam_prompts {
    int64_t hidden, image, patch, grid, mask_channels, kinds; /* kinds: number of point embeddings */
    double eps;
    enum act_kind act;
};

struct sam_decoder {
    int64_t hidden, inner, layers, heads, downsample, candidates, iou_layers, iou_hidden;
    double eps;
    enum act_kind act;
};

struct sam_build;
struct tinyvit;
struct sam {
    struct sam_vision vision;
    /* The sizes of TinyViT; `vision` then holds only its input and output sizes. NULL: `vision` has
     * all sizes of the encoder. */
    const struct tinyvit *tiny;
    /* Encodes pixels [B,side,side,channels] to [B,grid,grid,output]. */
    id (*encode)(const struct sam_build *b, id pixels);
    struct sam_prompts prompts;
    struct sam_decoder decoder;
};

/* One build: the sizes of the batch. */
struct sam_build {
    const struct sam *c;
    struct graph *g;
    int64_t B, M;
    int64_t side;               /* of the images, in pixels */
    int64_t grid;               /* of the embedding: grid x grid positions */
    struct prompting prompting; /* with its defaults filled in */
    /* Replace the inputs in a round: positions f32 [B*M,P,2], kinds i32 [B*M,P] and masks
     * [B*M,h,h]. 0: the inputs with the ports' names. */
    id positions, kinds, masks;
    int64_t bn_group;           /* as in struct batch */
    const struct pixel_norm *norm;
};

/* --- configuration (sam.c) --------------------------------------------------------------- */

/* Finds the map of one of the three sub-configurations; NULL: not given, use the defaults. */
int sam_parse_part(const struct value *config, const char *key, const struct value **out, struct error *e);
/* Parses a part; *c holds the defaults on entry. */
int sam_parse_prompts(struct sam_prompts *c, const struct value *map, struct error *e);
int sam_parse_decoder(struct sam_decoder *c, const struct value *map, struct error *e);
extern const struct sam_prompts sam_usual_prompts;
extern const struct sam_decoder sam_usual_decoder;
/* Checks that the sub-configurations agree on width and grid, then fills ports and outputs. */
int sam_describe(struct model *m, const struct sam *c, struct error *e);
/* Reads the normalisation of images. */
int sam_read_folder(struct model *m, struct error *e);
/* Emits the forward of a SAM family. */
void sam_forward(const struct model *m, struct graph *g, const struct batch *given);

/* --- layers ------------------------------------------------------------------------------ */

/* Returns the input pixels from bytes, as the loader provides them: images u8 [B,side,side,3] and
 * image_valid i32 [B,2]. */
id sam_images(const struct sam_build *b);

/* Returns the frequencies of the position encoding, [2,hidden/2]: a parameter. */
id sam_frequencies(const struct sam_build *b);

/* The encoded prompts. */
struct sam_encoded {
    id tokens;      /* [B*M,n,hidden]; 0: neither points nor boxes */
    id hidden;      /* f32 [B*M,n]: added to the scores of tokens as keys (-inf masks them out); 0: all are visible */
    id dense;       /* [rows,grid*grid or 1,hidden], rows B*M, B or 1: added to the image embedding */
    id positions;      /* [grid*grid,hidden]: the position encoding of the grid */
};
/* Returns the position encoding of the centres of the grid's cells: the same for all prompts. */
id sam_positions(const struct sam_build *b);
/* Encodes the prompts of a build, in the current scope. */
struct sam_encoded sam_prompt(const struct sam_build *b, id positions);

struct sam_masks {
    id logits;      /* [B*M,K,4 grid,4 grid] */
    id iou;         /* [B*M,K] */
};
/* Emits interactive training: rounds of prompts, each of which corrects the errors of the previous
 * masks (sam_prompt.c), with the output "loss" and, in the evaluation, statistics. */
void sam_rounds(const struct sam_build *b, id image);

/* Decodes masks from image [B,grid,grid,hidden]. */
struct sam_masks sam_decode(const struct sam_build *b, id image, const struct sam_encoded *p);

/*
 * sam.h: shared by the files of Segment Anything.
 *
 *     sam.c           configuration, ports, assembly
 *     sam.c           pixels -> image embedding
 *     sam_prompt.c    points, boxes, masks -> tokens and a dense embedding
 *     sam_decoder.c   both -> masks and their predicted IoU
 *     sam_hq.c        the finer maps of SAM-HQ, and the family
 *     tinysam.c       the encoder of TinySAM and MobileSAM
 *     tinysam.c       its configuration, and the family
 *     hiera.c         the encoder of SAM 2, its configuration, and the family
 *     sam2_video.c    SAM 2 on clips of videos, and the family
 *     sam2_memory.c   the memories of earlier frames
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
    int64_t unit;                       /* sides of images are multiples of it; 0: of a patch */
};

struct sam_prompts {
    int64_t hidden, image, patch, grid, mask_channels, kinds; /* kinds: number of point embeddings */
    double eps;
    enum act_kind act;
    bool joined;                        /* the point embeddings are one table */
    bool ends;                          /* each prompt ends with one filler, whatever it consists of */
};

/* How one mask for a prompt is chosen (STABILITY in ops.def). */
struct sam_stability {
    bool on;
    float delta, threshold;
};

struct sam_decoder {
    int64_t hidden, inner, layers, heads, downsample, candidates, iou_layers, iou_hidden;
    double eps;
    enum act_kind act;
    /* SAM 2's: it adds the finer levels of the image while it upscales the masks, predicts whether
     * there is an object, and its layers have other names */
    bool second;
    bool high;                      /* SAM-HQ's: a further token, and finer maps (sam_hq.c) */
    struct sam_stability stability; /* of SAM 2's, in inference */
};

/* An encoded image. */
struct sam_image {
    id coarse;  /* [B,grid,grid,C] */
    id fine[2]; /* [B,4 grid,4 grid,C/8] and [B,2 grid,2 grid,C/4] of SAM 2; 0: none */
    id early;   /* [B,grid,grid,hidden] of SAM-HQ: the first block with global attention; 0: none */
};

struct sam_build;
struct tinyvit;
struct hiera;
struct sam_video;
struct sam {
    struct sam_vision vision;
    /* The sizes of TinyViT or Hiera; `vision` then holds only its input and output sizes. Both
     * NULL: `vision` has all sizes of the encoder. */
    const struct tinyvit *tiny;
    const struct hiera *hiera;
    const struct sam_video *video; /* how frames are remembered; NULL: it takes no clips */
    /* Encodes pixels [B,side,side,channels]. */
    struct sam_image (*encode)(const struct sam_build *b, id pixels);
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
    enum model_part part;       /* of struct contents */
    enum dtype embeddings;
    struct prompting prompting; /* with its defaults filled in */
    /* Replace the inputs in a round: positions f32 [B*M,P,2], kinds i32 [B*M,P] and masks
     * [B*M,h,h]. 0: the inputs with the ports' names. */
    id positions, kinds, masks;
    bool frames;                /* the images are those of clips: the encoder leaves out no_memory_embedding */
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

/* Reports whether two models of SAM 2 have the same heads, windows, blocks, levels and norms. */
bool sam2_same(const struct model *a, const struct model *b);

/* --- layers ------------------------------------------------------------------------------ */

/* Returns the input pixels from bytes, as the loader provides them: images u8 [B,side,side,3] and
 * image_valid i32 [B,2]. */
id sam_images(const struct sam_build *b);
/* Normalises bytes [n,side,side,3], of which valid [n,2] rows and columns are an image. */
id sam_normalised(const struct sam_build *b, id bytes, id valid);

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
    id object;      /* [B*M,1]: the logit that there is an object, of SAM 2; 0: none */
    id tokens;      /* [B*M,K,hidden]: of clips the tokens that the masks are made of; 0: of images */
};
/* Emits interactive training: rounds of prompts, each of which corrects the errors of the previous
 * masks (sam_prompt.c), with the output "loss" and, in the evaluation, statistics. */
void sam_rounds(const struct sam_build *b, struct sam_image image);

/* The losses of a build's masks (prompting.loss). */
struct sam_losses {
    id masks, scores; /* scalars; scores 0: it is a part of `masks` */
    id statistics;    /* MASK_LOSS in ops.def */
};
struct sam_losses sam_loss(const struct sam_build *b, const struct sam_masks *m, id bits, id valid);

struct sam_masks sam_decode(const struct sam_build *b, struct sam_image image, const struct sam_encoded *p);

/* SAM-HQ: return the finer features of images [B,4 grid,4 grid,C/8], and the maps to which they are
 * added. */
id sam_hq_features(const struct sam_build *b, struct sam_image image);
id sam_hq_maps(const struct sam_build *b, id maps);
/* Checks that an encoder with global attention has the width that the decoder expects. */
int sam_hq_parse(struct sam *c, const struct value *decoder, struct error *e);

/* Adds a and b [rows,T,C], where one may have a row per image and the other a row per prompt. */
id sam_add_rows(struct graph *g, id a, id b);
/* Returns an MLP of `layers` linear layers with ReLU between them. */
id sam_mlp(struct graph *g, id x, const char *prefix, int64_t hidden, int64_t out, int64_t layers);
/* Adds SAM 2's embedding of an image without memories to maps [n,h,w,C]. */
id sam_no_memory(const struct sam_build *b, id maps);

/* --- families of SAM 2 ------------------------------------------------------------------------ */

/* Parses the configuration for images. */
int sam2_parse(struct model *m, const struct value *config, struct error *e);
/* Fills in the sizes of a batch, with the defaults of its prompts. */
struct sam_build sam_begin(const struct model *m, struct graph *g, const struct batch *batch);

/*
 * sam.h: between the files of Segment Anything.
 *
 *     sam.c           configuration, ports, assembly
 *     sam_encoder.c   pixels -> image embedding
 *     sam_prompt.c    points, boxes, masks -> tokens and a dense embedding
 *     sam_decoder.c   both -> masks and how good they are
 *     tinyvit.c       another encoder, TinySAM's and MobileSAM's, and its configuration
 *
 * Prompt encoder and decoder know nothing of how an image embedding came about: another encoder that
 * gives [B,grid,grid,hidden] serves as well.
 *
 * Prompts. An image has M prompts and the decoder works on rows, B x M of them, in the
 * order of the images. What is the same for all prompts of an image has B rows as long as it is.
 */
#ifndef SAM_H
#define SAM_H

#include "models/model.h"

struct sam_vision {
    int64_t hidden, output, layers, heads, channels, image, patch, inner, window, features;
    double eps, mlp_ratio;
    enum act_kind act;
    bool qkv_bias, places, relative; /* absolute and relative positions */
    bool *global;                    /* by layer: attends over the whole image */
};

struct sam_prompts {
    int64_t hidden, image, patch, grid, mask_channels, kinds; /* kinds: of points */
    double eps;
    enum act_kind act;
};

struct sam_decoder {
    int64_t hidden, inner, layers, heads, downsample, candidates, iou_layers, iou_hidden;
    double eps;
    enum act_kind act;
};

struct tinyvit;
struct sam {
    struct sam_vision vision;
    const struct tinyvit *tiny; /* the encoder, and vision says only what enters and leaves it; NULL: that of `vision` */
    struct sam_prompts prompts;
    struct sam_decoder decoder;
};

/* One build: the batch in numbers. */
struct sam_build {
    const struct sam *c;
    struct graph *g;
    int64_t B, M;
    int64_t side;              /* of the images, in pixels */
    int64_t grid;              /* of the embedding: grid x grid places */
    struct prompting asked;    /* with its defaults filled in */
    /* What stands in for inputs: places f32 [B*M,P,2], kinds i32 [B*M,P] and masks [B*M,h,h] of a
     * round. 0: the inputs by their ports' names. */
    id places, kinds, masks;
    int64_t bn_group;          /* as in struct batch */
    const struct pixel_norm *norm;
};

/* --- configuration (sam.c) --------------------------------------------------------------- */

struct size_key {
    const char *key;
    int64_t *to, least, most;
};
/* Sizes by their keys; what the map does not have stays. */
int sam_parse_sizes(const struct value *map, const struct size_key *keys, size_t n, struct error *e);
/* The map of a part; NULL: it is not given, and the part has its defaults. */
int sam_parse_part(const struct value *config, const char *key, const struct value **out, struct error *e);
/* Each begins with its defaults in *c. */
int sam_parse_prompts(struct sam_prompts *c, const struct value *map, struct error *e);
int sam_parse_decoder(struct sam_decoder *c, const struct value *map, struct error *e);
extern const struct sam_prompts sam_usual_prompts;
extern const struct sam_decoder sam_usual_decoder;
/* The parts meet in one width and one grid; then ports and outputs. */
int sam_describe(struct model *m, const struct sam *c, struct error *e);
/* The forward of a family of this kind. */
void sam_forward(const struct model *m, struct graph *g, const struct batch *given);

/* --- layers ------------------------------------------------------------------------------ */

/* Pixels [B,side,side,channels] to [B,grid,grid,output]. */
id sam_encode(const struct sam_build *b, id pixels);
id tinyvit_encode(const struct sam_build *b, id pixels);

/* The frequencies of the position encoding, [2,hidden/2]: a parameter. */
id sam_frequencies(const struct sam_build *b);

/* The prompts, encoded. */
struct sam_encoded {
    id tokens;      /* [B*M,n,hidden]; 0: neither points nor boxes */
    id hidden;      /* f32 [B*M,n]: added to the scores of tokens as keys; 0: all are seen */
    id dense;       /* [rows,grid*grid or 1,hidden], rows B*M, B or 1: to be added to the image */
    id places;      /* [grid*grid,hidden]: where each place of the grid is */
};
/* The encoded centres of the grid's places: the same for all prompts. */
id sam_places(const struct sam_build *b);
/* The prompts of a build, in the scope of whoever asks. */
struct sam_encoded sam_prompt(const struct sam_build *b, id places);

struct sam_masks {
    id logits;      /* [B*M,K,4 grid,4 grid] */
    id iou;         /* [B*M,K] */
};
/* Training as people use it: rounds of prompts, each answering to the mistakes of the one
 * before (sam_rounds.c). Emits the output "loss" and, in the evaluation, statistics. */
void sam_rounds(const struct sam_build *b, id image);

/* image [B,grid,grid,hidden]. */
struct sam_masks sam_decode(const struct sam_build *b, id image, const struct sam_encoded *p);

#endif

/*
 * sam_names.h: the names of Segment Anything's tensors, in the original code and in a model folder,
 * and the sizes that the shapes determine.
 *
 *     SAM, MedSAM          image_encoder.blocks.0.norm1.weight
 *       as a folder        vision_encoder.layers.0.layer_norm1.weight   (transformers' SamModel)
 *     SAM-HQ               the same, and mask_decoder.hf_token.weight
 *       as a folder        the same, and mask_decoder.hq_token.weight     (SamHQModel)
 *     MobileSAM, TinySAM   image_encoder.layers.0.blocks.0.conv1.c.weight
 *       as a folder        the same names, model_type tinysam
 *     SAM 2                image_encoder.trunk.blocks.0.norm1.weight
 *       as a folder        vision_encoder.backbone.blocks.0.layer_norm1.weight   (Sam2VideoModel)
 *
 * Tensors are accepted in either naming. The result is checked: every tensor of the model exists
 * with the shape that the others imply, and there are no other tensors.
 */
#pragma once

#include "base/dtype.h"

enum { SAM_RANK = 8, SAM_STAGES = 8, SAM_BLOCKS = 256 };

/* A tensor of the source. */
struct sam_tensor {
    const char *found;    /* the source's name for it */
    const char *original; /* the published name; NULL: the tensor is dropped */
    enum dtype dtype;
    int rank;
    int64_t dim[SAM_RANK];
    uint32_t source;      /* the caller's index for it */
    bool used;
};

/* A tensor of the model. One source tensor may occur in a folder twice. */
struct sam_part {
    const char *original, *name; /* published name; name in a folder */
    bool again;                  /* an earlier part has the same `original` */
    const struct sam_tensor *from;
    int joined;                  /* above 0: its rows are those of this many tensors, from[0] on */
    int64_t row, rows;           /* rows above 0: it is these rows of the source */
};

/* One stage of a TinyViT. */
struct sam_stage {
    int64_t depth, dim, heads, window, inner;
};

struct sam_names {
    const char *type;             /* model_type of a folder */
    bool tiny;                    /* has a TinyViT encoder */
    bool high;                    /* SAM-HQ */
    bool second;                  /* SAM 2 (sam2_names.c): `original` of a tensor is its name in a folder */
    struct bump memory;
    VEC(struct sam_tensor) found; /* sorted by `original` after sam_names_resolve */
    VEC(struct sam_part) parts;   /* in the order of the source */
    const char *missing;          /* a tensor that is not there, without which a size is not known; NULL: none */
    int64_t size[128];            /* indexed by the letters of sam_names.c */
    int64_t window;               /* window size of the blocks that are not global */
    int64_t table[SAM_BLOCKS];    /* by block: length of its relative-position tables */
    struct sam_stage stage[SAM_STAGES];
    int n_stages;
};

/* Adds a name, which is copied. */
void sam_names_add(struct sam_names *n, const char *name, enum dtype t, int rank, const int64_t *dim, uint32_t source);
/* Identifies the naming and fills all of the above. PL_USAGE lists tensors that are unknown,
 * missing or of another shape, and what was expected. */
int sam_names_resolve(struct sam_names *n, struct error *e);
void sam_names_free(struct sam_names *n);

/* Returns the published name of a tensor of transformers' SamModel: in `out`, or `name` itself if
 * both are the same. For layer code, which uses the names of transformers, in models with the
 * published names. */
const char *sam_original_name(const char *name, char *out, size_t room);

/* Checks that no tensor is empty, and no dimension is so large that the product of two sizes
 * overflows. */
int sam_names_check_dims(const struct sam_names *n, struct error *e);

/* --- SAM 2 (sam2_names.c) --------------------------------------------------------------------- */

/* Reports whether the names are those of SAM 2; does for it what sam_names_resolve does. */
bool sam2_is(const struct sam_names *n);
int sam2_resolve(struct sam_names *n, struct error *e);
void sam2_config_json(struct sam_names *n, struct text *out);
void sam2_preprocessor_json(struct text *out);

/* Returns torch_dtype of a configuration. */
const char *sam_torch_dtype(enum dtype t);

/* --- configuration (sam_config.c) ----------------------------------------------------------- */

/* Writes the folder's config.json and preprocessor_config.json. */
void sam_config_json(const struct sam_names *n, struct text *out);
void sam_preprocessor_json(const struct sam_names *n, struct text *out);
/* Opens the map of a preprocessor_config.json and writes what SAM and SAM 2 share: the classes for
 * images and for all inputs, the steps (`pads`: with padding), and the normalisation. */
struct json_writer;
void sam_begin_processor(struct json_writer *w, const char *images, const char *all, bool pads);
/* Writes the size of a square image. */
void sam_put_square(struct json_writer *w, const char *key, int64_t side);
/* Checks that a folder's model matches what sam_config_json would write: PL_USAGE names the key
 * that differs. Values that determine shapes of weights are not compared. */
struct model;
int sam_config_check(const struct sam_names *n, const struct model *m, struct error *e);
int sam2_config_check(struct sam_names *n, const struct model *m, struct error *e);

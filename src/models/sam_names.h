/*
 * sam_names.h: the names of Segment Anything's tensors, in the original code and in a model folder,
 * and the sizes that the shapes determine.
 *
 *     SAM, MedSAM          image_encoder.blocks.0.norm1.weight
 *       as a folder        vision_encoder.layers.0.layer_norm1.weight   (transformers' SamModel)
 *     MobileSAM, TinySAM   image_encoder.layers.0.blocks.0.conv1.c.weight
 *       as a folder        the same names, model_type tinysam
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
};

/* One stage of a TinyViT. */
struct sam_stage {
    int64_t depth, dim, heads, window, inner;
};

struct sam_names {
    bool tiny;                    /* has a TinyViT encoder; model_type tinysam */
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

/* Writes the folder's config.json and preprocessor_config.json. */
void sam_config_json(const struct sam_names *n, struct text *out);
void sam_preprocessor_json(const struct sam_names *n, struct text *out);
/* Checks that a folder's model matches what sam_config_json would write: PL_USAGE names the key
 * that differs. Values that determine shapes of weights are not compared. */
struct model;
int sam_config_check(const struct sam_names *n, const struct model *m, struct error *e);

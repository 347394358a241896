/*
 * modalities.h: volumes among the tokens of a vision-language model: T1 images, series of fMRI, CT.
 *
 * A modality has volumes of one size, and a patch embedding of its own: a convolution whose kernel
 * is its stride, and a learned position for each patch. Its tokens enter the layers of the vision
 * tower, or go past them to the projector, and its features take the places of image tokens in the
 * text.
 *
 *     volumes [n,T,D,H,W] ─ patches [n,tokens,values] ─ proj + position_embedding ─┬─ tower ─┬─ projector
 *                                                                                  └─────────┘
 *
 * In config.json, and in the key model.modalities of a run:
 *
 *     "modalities": {
 *       "T1":     {"size": [96, 96, 96],     "patch": [10, 10, 10],   "to": "tower"},
 *       "rsfMRI": {"size": [24, 96, 96, 96], "patch": [3, 16, 16, 16], "to": "tower"}
 *     }
 *
 * A size is depth, height and width; a series has its number of volumes before these. What is left
 * at the end of an axis and fills no patch is left out, as by a convolution without padding. Tokens
 * are in the order of the axes, the last one fastest.
 *
 * The weights are as torch.nn.Conv3d has them, with the volumes of a patch of a series as channels:
 *
 *     modalities.T1.proj.weight                 [C,1,10,10,10]     modalities.T1.proj.bias [C]
 *     modalities.rsfMRI.proj.weight             [C,3,16,16,16]     ...
 *     modalities.T1.position_embedding.weight   [729,C]
 *
 * Values of patches are in the order of a kernel: [time][depth][height][width].
 */
#pragma once

#include "graph/graph.h"
#include "io/value.h"

enum { MODALITIES = 4, MODALITY_NAME = 33 };

struct modality {
    char name[MODALITY_NAME];
    int64_t size[4], patch[4]; /* time, depth, height, width; of a volume without time 1 and 1 */
    bool series;               /* it has time */
    bool to_tower;             /* its tokens enter the vision tower; else the projector */
    int64_t tokens, values;    /* patches of a volume; numbers of a patch */
};

/* The modalities of a model (image_model.modalities). */
struct modality_list {
    int n;
    struct modality at[MODALITIES];
};

/* Returns the patches along an axis. */
static inline int64_t modality_patches(const struct modality *x, int axis) { return x->size[axis] / x->patch[axis]; }
/* Returns the numbers of a volume's patches. */
static inline int64_t modality_floats(const struct modality *x) { return x->tokens * x->values; }
/* Returns the index of a name of n bytes; -1: there is none. */
int modality_find(const struct modality_list *l, const char *name, size_t n);
/* Lists the names, for messages: "T1, rsfMRI". */
char *modality_names(const struct modality_list *l, char out[256]);

bool modality_equal(const struct modality *a, const struct modality *b);

/* Returns the part of one axis in the index of a value among a volume's patches, which is a sum
 * over its time, depth, height and width; below 0: there it fills no patch. */
int64_t modality_offset(const struct modality *x, int axis, int64_t at);
/* Cuts a volume, [time][depth][height][width], into patches. */
void modality_cut(const struct modality *x, const float *volume, float *patches);

/* Parses the map `modalities`; NULL: there are none. */
int modalities_parse(struct modality_list *out, const struct value *map, struct error *e);
/* Embeds patches [n,tokens,values] as [n,tokens,width]. */
id modality_embed(const struct modality *x, struct graph *g, id patches, int64_t width);

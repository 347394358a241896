/*
 * llava.h: what llava.c and smolvlm.c share.
 *
 *     pixel_values ─ tower ─ chosen states ─ projector ─┐
 *     input_ids ─ embedding ────────────────────────────┴─ decoder ─ logits, loss
 */
#pragma once

#include "models/images.h"
#include "models/parts.h"

enum { LLAVA_STATES = 16, LLAVA_LINEARS = 8 };

struct llava {
    const char *tower, *decoder;   /* names of the parts */
    int64_t states[LLAVA_STATES];  /* of the tower, joined: as tower_encode takes them */
    int64_t n_states;
    bool drop_first;               /* the first token of the tower is left out: CLIP's class token */
    /* The projector: linear layers with an activation between them; none: the states are the
     * features. */
    const char *prefix, *linear[LLAVA_LINEARS]; /* names: prefix + linear + ".weight" */
    int linears;
    enum act_kind act;
    bool bias;
    double std;                    /* of its initial weights */
};

/* Checks the parts and describes the model: its inputs, outputs and images. */
int llava_describe(struct model *m, const struct llava *c, int64_t image_token, enum image_layout layout,
                   struct error *e);
void llava_build(const struct model *m, struct graph *g, const struct batch *batch);

/* What a config.json without the key has. */
struct llava_defaults {
    const char *tower_type, *tower, *decoder_type, *decoder; /* model_type, and the part as JSON */
    int64_t token, state;
    bool full; /* vision_feature_select_strategy */
};
extern const struct llava_defaults llava_usual; /* of LLaVA and LLaVA-NeXT */
/* Parses the keys of transformers for a model that has these parts and more, without the
 * description; `c` is the first member of its configuration. *token is the image token. */
int llava_parse_parts(struct model *m, struct llava *c, const struct value *config, const struct llava_defaults *usual,
                      int64_t *token, struct error *e);
/* Describes a model whose images are tiles and a whole (text/template/anyres.h); *a has their
 * sizes. */
int llava_describe_tiles(struct model *m, const struct llava *c, struct anyres *a, int64_t token, struct error *e);
/* The same names, and that of the newline. */
#define LLAVA_NEWLINE "image_newline"
extern const struct spelling llava_next_spellings[];
/* Images [n,channels,side,side] to features [n,tokens,C]. */
extern const struct image_layers llava_layers;
/* Reports whether a model is LLaVA as a part of another model, inside IN_PART; the next give C of
 * its states, the states [B,T,C] after the last norm, and the cross-entropy with labels, divided
 * by the count of that name. */
bool llava_is(const struct model *m);
int64_t llava_width(const struct model *m);
id llava_states(const struct model *m, struct graph *g, const struct batch *batch, id ids);
struct decoded llava_loss(const struct model *m, struct graph *g, id states, id labels, const char *count);

/* Adds a part that must be a tower or a decoder, for models of both. */
int llava_add_tower(struct model *m, const char *name, const struct value *config, const char *folder, struct error *e);
int llava_add_decoder(struct model *m, const char *name, const struct value *config, const char *folder,
                      struct error *e);
/* Reads the map config.KEY: `absent`, a JSON text, if it is missing; with this model_type if it
 * has none. */
int llava_part_config(struct model *m, const struct value *config, const char *key, const char *model_type,
                      const char *absent, const struct value **out, struct error *e);
/* Returns a part that parse may still change. */
struct model *llava_part(struct model *m, const char *name);

/* How folders spell the names of transformers' layout. */
extern const struct spelling llava_spellings[];

/* Parses the original layout, in a config.json that the family llava may have too. */
int llava_parse_original(struct model *m, const struct value *config, const char *decoder, struct error *e);

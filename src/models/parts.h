/*
 * parts.h: decoders and vision towers as parts of another model.
 *
 * A family that puts a model together opens each part with model_add_part (model.h), and builds it
 * with the functions here. `part` is the part's name, with which the names of its parameters begin:
 * in the part "language_model" the published "model.norm.weight" is
 * "language_model.model.norm.weight". "": the model itself; the families of these models build
 * themselves so.
 *
 *     id image = project(g, tower_encode(tower, g, "vision_tower", pixels, 0, NULL, NULL));
 *     id text = decoder_embed(decoder, g, "language_model", ids);
 *     id x = decoder_states(decoder, g, "language_model", op_concat(g, (id[]){image, text}, 2, 1),
 *     (struct token_rows){0});
 *     struct decoded out = decoder_loss(decoder, g, "language_model", x, labels);
 */
#pragma once

#include "models/model.h"

/* --- decoders: language models (decoder.c) ----------------------------------------------- */

int64_t decoder_width(const struct model *m); /* C of the embeddings */
/* Sets, for parse, that names of the decoder's parameters begin with `root` instead of "model.",
 * and that the head is in the part, or with `head_outside` beside it; whether the head is the
 * embedding, where the model's own configuration decides (tie_word_embeddings); the decoder's
 * inputs and outputs are the model's. */
void decoder_set_names(struct model *m, const char *root, bool head_outside);
void decoder_tie(struct model *m, bool tied);
void decoder_describe(struct model *m, const struct model *decoder);
/* Returns the tokens that a token sees in layers with a sliding window; 0: none has one. */
int64_t decoder_window(const struct model *m);
/* Returns the inputs of a batch: input_ids [B,T]; labels [B,T], 0 if the batch has a cache;
 * positions and ranges. */
id decoder_ids(struct graph *g, const struct batch *batch);
id decoder_labels(struct graph *g, const struct batch *batch);
/* Embeds token ids [B,T] as [B,T,C]. */
id decoder_embed(const struct model *m, struct graph *g, const char *part, id ids);
/* Embeddings [B,T,C] to the states after the last norm, [B,T,C]. Rows of several documents have the
 * inputs of a packed batch (model.h), and {0} is one document. With a cache, keys are those of its
 * slots, kept from call to call: those of the T tokens are written at `slots`, and `ranges` count
 * slots. */
enum { FEATURES_MOST = 8 };
struct token_rows {
    id positions;  /* i32 [B,T]; `three`: [B,T,3], of a decoder with sections (decoder.h) */
    bool three;
    id ranges;     /* i32 [B,T,2] */
    id windows;    /* i32 [B,T,2]: the ranges in layers with a sliding window; 0: the last tokens of `ranges` */
    int64_t cache; /* of a text; 0: none */
    int64_t texts; /* with a cache: in all rows */
    id slots;      /* with a cache: i32 [B,T] */
    /* What is added to the output of each of the first layers: rows [R,C], or [B,R,C], of which the
     * token gets the one at its index [B,T]; below 0: none. */
    int n_features;
    id features[FEATURES_MOST], index;
    /* rows of a group whose loads of experts decoder_states sums over the layers; 0: none */
    int64_t group;
    struct expert_loads *loads;
};
/* The sums of EXPERT_LOAD over all layers with experts, [groups,experts]; 0: there are none. */
struct expert_loads {
    id chance, load;
};
struct token_rows decoder_rows(struct graph *g, const struct batch *batch);
id decoder_states(const struct model *m, struct graph *g, const char *part, id x, struct token_rows rows);
/* States to the logits and the cross-entropy with labels [B,T], which are shifted by one here. */
struct decoded {
    id logits; /* [B*T,vocabulary] */
    id loss;
};
struct decoded decoder_loss(const struct model *m, struct graph *g, const char *part, id x, id labels);
/* Returns the same in a model with several losses: divided by the count of that name
 * (graph_count). */
struct decoded decoder_loss_by(const struct model *m, struct graph *g, const char *part, id x, id labels,
                               const char *count);
/* Computes the outputs of a language model from states: loss and, if the batch asks for outputs,
 * logits; with a cache the logits of the next token. */
void decoder_outputs(const struct model *m, struct graph *g, const char *part, const struct batch *batch, id x,
                     id labels);

/* --- towers: clip, siglip and their vision models (clip.c) ------------------------------------ */

struct tower_sizes {
    int64_t layers, tokens, width; /* tokens: of CLIP the class token is the first */
    int64_t side;                  /* tokens along an image, without the class token */
    int64_t channels, image;       /* pixels [B,channels,image,image] */
    int64_t patch;                 /* pixels along a patch; at the end of an image some may belong to none */
    double factor;                 /* of initial weights (initializer_factor) */
    bool pools;                    /* tower_pool works */
};
struct tower_sizes tower_sizes(const struct model *m);
/* Parses the tower as a model of its own, for the families clip, siglip and their vision models
 * (heads.c). */
int tower_parse(struct model *m, const struct value *config, struct error *e);
void tower_build(const struct model *m, struct graph *g, const struct batch *batch);
/* Reports whether a model is one of these towers. */
bool tower_is(const struct model *m);
/* Makes names of the tower's parameters begin with `root` instead of "vision_model.", for parse. */
void tower_set_root(struct model *m, const char *root);
/* Computes last_hidden_state [B,tokens,width] from pixels. states[i], of `count`, is the hidden
 * state chosen[i]: 0 is the input of the first layer, k the output of layer k, and negative ones
 * count from the end, -1 the output of the last layer. Layers that no state depends on are
 * parameters all the same, and nothing is computed for them. */
id tower_encode(const struct model *m, struct graph *g, const char *part, id pixels, int64_t count,
                const int64_t *chosen, id *states);

/* Does the same for tokens x [B,n,width] that another layer has embedded. CLIP's have no class
 * token among them. `name` is that of the scope in which the layers are built once more. */
id tower_encode_tokens(const struct model *m, struct graph *g, const char *part, const char *name, id x,
                       int64_t count, const int64_t *chosen, id *states);

/* Pools last_hidden_state to a token [B,width]: CLIP's class token after its norm, SigLIP's by its
 * head. */
id tower_pool(const struct model *m, struct graph *g, const char *part, id last);

/* --- text towers of clip and siglip (clip.c) --------------------------------------------- */

struct text_tower;
/* Parses a text_config of a clip or siglip. The tower is in `b`. */
int text_tower_parse(struct bump *b, const struct value *config, bool siglip, struct text_tower **out, struct error *e);
struct text_sizes {
    int64_t width, vocabulary, positions;
    int64_t projection; /* siglip: the width of what text_tower_encode returns; clip: 0, its own */
    int64_t end;        /* clip: the id of the end token, which a text is pooled at; 2: the largest id of the text */
};
struct text_sizes text_tower_sizes(const struct text_tower *t);
/* Computes one vector for each text, [B,width], from token ids [B,T]: clip's at the token whose
 * index is at[B,1], siglip's at the last one, projected. */
id text_tower_encode(const struct text_tower *t, struct graph *g, const char *part, id ids, id at);

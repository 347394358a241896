/*
 * decoder.h: a decoder-only language model by its options.
 *
 * A family is a page of defaults: it makes a struct decoder (decoder_new), reads its own keys of
 * config.json, and leaves those that all families share to decoder_parse. The layers (decoder.c)
 * ask for options, never for the family. An option that is 0 or NULL is not there.
 */
#pragma once

#include "graph/emit.h"
#include "io/value.h"
#include "models/model.h"

/* --- rotary ---------------------------------------------------------------------------------- */

/* Tables of rotary positions (RoPE), by the keys of a config.json.
 *
 * The tables follow from the configuration as Hugging Face defines them: rope_theta with
 * rope_scaling (transformers 4) or rope_parameters (5); rope_scaling counts if both are there.
 * Frequencies are computed in double and rounded once.
 */
enum rotary_type { ROTARY_DEFAULT, ROTARY_LINEAR, ROTARY_DYNAMIC, ROTARY_LLAMA3, ROTARY_YARN, ROTARY_LONGROPE };

struct rotary {
    enum rotary_type type;
    double theta, factor;
    double original_positions;           /* llama3, yarn, longrope; dynamic: the training length */
    double low_freq_factor, high_freq_factor; /* llama3 */
    double beta_fast, beta_slow, attention_factor, mscale, mscale_all_dim; /* yarn; 0: not given */
    bool truncate;                       /* yarn */
    float *short_factor, *long_factor;   /* longrope: of each frequency, in texts up to the training length, beyond */
    double partial;                      /* the part of a head that is rotated; 0: all, and the key is refused */
    /* The pairs that turn by each of a token's three positions (M-RoPE), where positions have
     * three; `sectioned`: the family has them, else the key is refused. */
    bool sectioned;
    struct rope_sections sections;
};

/* The sizes that a table depends on, and where its lists are kept. */
struct rotary_sizes {
    int64_t head_dim, positions; /* the tokens of the longest text */
    struct bump *memory;
};
/* Parses the keys of a configuration. theta, partial and original_positions hold the family's
 * defaults. Returns PL_USAGE for unknown types and invalid values. */
int rotary_parse(struct rotary *r, const struct value *config, struct rotary_sizes s, struct error *e);
/* Parses the two tables of a model whose layers with a sliding window have their own, the second:
 * the maps full_attention and sliding_attention of rope_parameters; or rope_theta with rope_scaling
 * for the first, and rope_local_base_freq for the second. */
int rotary_parse_layers(struct rotary r[2], const struct value *config, struct rotary_sizes s, struct error *e);
/* Returns how many numbers of a head are rotated, the first ones. */
int64_t rotary_width(const struct rotary *r, int64_t head_dim);
/* Fills inv_freq[rotary_width / 2] for sequences of T tokens; returns the factor on the rotated
 * vectors (1 except for yarn and longrope). */
float rotary_table(const struct rotary *r, int64_t head_dim, int64_t T, float *inv_freq);
/* Reports whether the frequencies follow the length of a sequence. */
bool rotary_follows_length(const struct rotary *r);

/* Published names of the parts: what has no name is not there. */
struct decoder_names {
    const char *embedding, *layers, *norm;             /* behind the root; the head is lm_head */
    const char *positions;                             /* a table of learned positions */
    const char *before_attention, *before_mlp;         /* norms of what a part reads */
    const char *after_attention, *after_mlp;           /* norms of what it adds to the residual */
    const char *attention, *q, *k, *v, *o;             /* q, k and v apart... */
    const char *qkv;                                   /* ...or one matrix, in this order */
    const char *q_norm, *k_norm;                       /* norms of each head of q and k */
    const char *mlp, *gate, *up, *down;                /* without a gate the activation is that of up */
    const char *gate_up;                               /* gate and up as one matrix, in this order */
    /* of a mixture of experts; * is the number of an expert */
    const char *router, *expert_gate, *expert_up, *expert_down;
};

/* Tables of rotary positions: layers with a sliding window may have their own. */
enum { TABLE_FULL, TABLE_SLIDING, TABLES, TABLE_NONE = -1 };

struct decoder_layer {
    int64_t window; /* number of keys that a query sees; 0: all */
    int table;      /* of rotary positions; TABLE_NONE: they are not rotated */
    bool dense;     /* an MLP where other layers have experts */
};

/* A mixture of experts in place of the MLP: each token goes through a few of them. */
struct experts {
    int64_t n, chosen, inner; /* n 0: there are none; those that a token chooses; their inner numbers */
    bool normalised;          /* the weights of the chosen ones add up to 1 */
    bool balanced;            /* the loss has a term that balances them (output_router_logits)... */
    double balance;           /* ...times this */
};

struct decoder {
    int64_t vocabulary, hidden, inner, layers, heads, kv_heads, head_dim, positions;
    double eps, std;
    bool tied, qkv_bias, o_bias, mlp_bias;
    int64_t padding;             /* 1 + the id of the padding token; 0: none */
    struct decoder_names names;
    bool layer_norms;            /* norms are LayerNorm with a bias, not RMSNorm */
    bool unit_offset;            /* norms multiply by 1 + w */
    bool transposed;             /* weights of the layers are [inputs,outputs] */
    enum act_kind act;           /* of the gate; ACT_SILU if a family has no default */
    const char *act_key;         /* of config.json; NULL: hidden_act */
    bool gelu_is_tanh;           /* "gelu" is the tanh approximation */
    double attention_cap, logits_cap; /* soft caps: cap tanh(x / cap); 0: none */
    bool whole_norms;            /* q_norm and k_norm are over all heads together */
    /* Factors of embeddings, of q k^T (0: 1 / sqrt(head_dim)), of what is added to the residual,
     * and of logits; 0: 1. */
    double embedding_scale, attention_scale, residual_scale, logits_scale;
    bool embedding_scale_rounded; /* to the dtype of the weights */
    /* Queries are multiplied by 1 + growth log(1 + floor(position / rotary.original_positions)). */
    double query_growth;
    struct rotary rotary[TABLES]; /* the second only if layered_rotary is set */
    bool layered_rotary;
    struct decoder_layer *layer; /* [layers] */
    struct experts experts;
    const char *root;            /* names of parameters begin with it, but for the head's */
    bool head_outside;           /* the head is beside the part, not in it */
    /* Where layer_types does not say which layers have the sliding window: those from the first on,
     * but for each full_every-th. */
    int64_t window, window_first, full_every;
    bool listed_windows; /* layers follow layer_types; else the list must say what they are */
};

/* Returns the configuration of a model, with a family's defaults and Llama's names. */
struct decoder *decoder_new(struct model *m, struct decoder defaults);
/* Parses the keys that all families share, over the defaults; last, the layers. */
int decoder_parse(struct model *m, struct decoder *c, const struct value *config, struct error *e);
/* Parses sliding_window: a number, or null for none; `absent` is the value if the key is
 * missing. */
int decoder_parse_window(struct decoder *c, const struct value *config, int64_t absent, struct error *e);
/* Parses a soft cap: a number, or null for none; *cap is the default. */
int decoder_parse_cap(const struct value *config, const char *key, double *cap, struct error *e);
/* Parses how many experts there are (num_experts; num_local_experts in Mixtral's folders and in
 * those that transformers 5 saves), and how many of them a token chooses. */
int decoder_parse_experts(struct decoder *c, const struct value *config, struct error *e);
/* Returns PL_USAGE if the key is true. */
int decoder_refuse(const struct value *config, const char *key, struct error *e);
/* Builds the decoder as a model of its own. */
void decoder_build(const struct model *m, struct graph *g, const struct batch *batch);

#define DECODER_FAMILY(type, parse, ...)                                                                               \
    {type, parse, decoder_build, "model.", .generates = true, .decoder = true, __VA_ARGS__}

/*
 * rotary.h: tables of rotary positions (RoPE), by the keys of a config.json.
 *
 * The tables follow from the configuration as Hugging Face defines them: rope_theta with
 * rope_scaling (transformers 4) or rope_parameters (5); rope_scaling counts if both are there.
 * Frequencies are computed in double and rounded once.
 */
#pragma once

#include "graph/emit.h"
#include "io/value.h"

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

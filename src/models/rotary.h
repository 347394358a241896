/*
 * rotary.h: tables of rotary positions (RoPE), by the keys of a config.json.
 *
 * The tables follow from the configuration as Hugging Face defines them: rope_theta with
 * rope_scaling (transformers 4) or rope_parameters (5). Frequencies are computed in double and
 * rounded once.
 */
#ifndef ROTARY_H
#define ROTARY_H

#include "io/value.h"

enum rotary_type { ROTARY_DEFAULT, ROTARY_LINEAR, ROTARY_DYNAMIC, ROTARY_LLAMA3, ROTARY_YARN };

struct rotary {
    enum rotary_type type;
    double theta, factor;
    double original_positions;           /* llama3, yarn; dynamic: the training length */
    double low_freq_factor, high_freq_factor; /* llama3 */
    double beta_fast, beta_slow, attention_factor, mscale, mscale_all_dim; /* yarn; 0: not given */
    bool truncate;                       /* yarn */
};

/* Parses the keys of a configuration whose texts have up to `positions` tokens; theta holds the
 * family's default. Returns PL_USAGE for unknown types and invalid values. */
int rotary_parse(struct rotary *r, const struct value *config, int64_t positions, struct error *e);
/* Fills inv_freq[head_dim/2] for sequences of T tokens; returns the factor on the rotated vectors
 * (1 except for yarn). */
float rotary_table(const struct rotary *r, int64_t head_dim, int64_t T, float *inv_freq);
/* Reports whether the frequencies follow the length of a sequence. */
bool rotary_follows_length(const struct rotary *r);

#endif

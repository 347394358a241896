/*
 * rope.h: rotary position tables from a configuration, as Hugging Face defines
 * them: rope_theta with rope_scaling (transformers 4) or rope_parameters (5).
 */
#ifndef ROPE_H
#define ROPE_H

#include "io/value.h"

enum rope_type { ROPE_DEFAULT, ROPE_LINEAR, ROPE_DYNAMIC, ROPE_LLAMA3, ROPE_YARN };

struct rope {
    enum rope_type type;
    double theta, factor;
    double original_positions;           /* llama3, yarn; dynamic: the training length */
    double low_freq_factor, high_freq_factor; /* llama3 */
    double beta_fast, beta_slow, attention_factor, mscale, mscale_all_dim; /* yarn; 0: not given */
    bool truncate;                       /* yarn */
};

/* Returns PL_USAGE for unknown types and invalid values. */
int rope_parse(struct rope *r, const struct value *config, int64_t max_positions, struct error *e);
/* Fills inv_freq[head_dim/2] for sequences of T tokens; returns the factor on the rotated vectors
 * (1 except for yarn). */
float rope_table(const struct rope *r, int64_t head_dim, int64_t T, float *inv_freq);

#endif

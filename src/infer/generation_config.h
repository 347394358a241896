/*
 * generation_config.h: how a model folder wants its texts generated: generation_config.json, and
 * the tokens of config.json where that has none, as in transformers.
 */
#ifndef GENERATION_CONFIG_H
#define GENERATION_CONFIG_H

#include "infer/sample.h"

struct generation_config {
    struct sampling sampling; /* temperature 0 unless do_sample is set */
    double temperature;       /* the folder's temperature, whether it samples or not */
    int64_t max_new;          /* max_new_tokens; 0: not given */
    VEC(int32_t) eos;         /* eos_token_id: a number or a list... */
    bool has_eos;             /* ...which the folder has, perhaps as null or an empty list */
};

/* `folder` NULL: transformers' defaults, no EOS. PL_USAGE, with the file and the key, where a value
 * is not what it should be. The caller frees with generation_config_free, also after an error. */
int generation_config_read(struct generation_config *g, const char *folder, struct error *e);
void generation_config_free(struct generation_config *g);

#endif

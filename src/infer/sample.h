/*
 * sample.h: chooses the next token from logits, in the order and with the meaning of transformers'
 * generate: repetition penalty, temperature, top-k, top-p, then one draw.
 *
 *     sampler_open(&s, vocabulary, &sampling)
 *     sampled_text_open(&t, &s)                any number of texts at once
 *     sampled_text_begin(&t, number)           a new text
 *     sampled_text_see(&t, id)                 each token of the prompt
 *     sampler_next(&s, &t, logits, &id, e)     the next token, which is seen as well
 *     sampled_text_close(&t)
 *     sampler_close(&s)
 *
 * The draw of a token is keyed by the seed, the number of the text and the number of the token in
 * the answer: the same seed gives the same text from the same logits, whatever else is sampled.
 */
#pragma once

#include "base/base.h"

struct sampling {
    double temperature;        /* logits are divided by it; 0: greedy, the token with the largest logit */
    int64_t top_k;             /* only tokens with the k largest logits; 0: all */
    double top_p;              /* only the most likely tokens that together have this probability; 1: all */
    /* a positive logit of a token that was seen is divided by it, a negative one multiplied; 1:
     * none */
    double repetition_penalty;
    uint64_t seed;
};

/* A text that is being sampled. */
struct sampled_text {
    uint32_t number;           /* of the text */
    uint32_t drawn;            /* tokens of its answer */
    int64_t vocabulary;
    bool *seen;                /* by id; NULL: nobody asks */
};

struct sampler {
    struct sampling sampling;
    int64_t vocabulary;
    float *scores;             /* by id */
    float *sorted;             /* room for a selection of them */
    struct sampled {
        int32_t id;
        float score;
        double weight;         /* its probability */
    } *kept;
};

/* PL_USAGE names a value that is out of range. */
int sampling_check(const struct sampling *s, struct error *e);
void sampler_open(struct sampler *s, int64_t vocabulary, const struct sampling *sampling);
void sampler_close(struct sampler *s);
void sampled_text_open(struct sampled_text *t, const struct sampler *s);
void sampled_text_close(struct sampled_text *t);
void sampled_text_begin(struct sampled_text *t, uint32_t number);
void sampled_text_see(struct sampled_text *t, int32_t id);
/* Lists the tokens that may be drawn with a temperature, by id, in s->kept; returns their
 * number. */
int64_t sampler_candidates(struct sampler *s, const struct sampled_text *t, const float *logits);
/* Chooses the next token. PL_FAIL if no logit is a number that can be compared. */
int sampler_next(struct sampler *s, struct sampled_text *t, const float *logits, int32_t *id, struct error *e);

/* --- how a model folder wants its texts generated --------------------------------------------- */

/* From generation_config.json, and the tokens of config.json where that has none, as in
 * transformers. */
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

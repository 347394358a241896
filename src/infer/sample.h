/*
 * sample.h: chooses the next token from logits, in the order and with the meaning of transformers'
 * generate: repetition penalty, temperature, top-k, top-p, then one draw.
 *
 *     sampler_open(&s, vocabulary, &sampling)
 *     sampler_begin(&s)                    a new text
 *     sampler_see(&s, id)                  each token of the prompt
 *     sampler_next(&s, logits, &id, e)     the next token, which is seen as well
 *     sampler_close(&s)
 *
 * The draw of a token is keyed by the seed and the number of the token in the answer: the same seed gives
 * the same text from the same logits.
 */
#ifndef SAMPLE_H
#define SAMPLE_H

#include "base/base.h"

struct sampling {
    double temperature;        /* logits are divided by it; 0: greedy, the token with the largest logit */
    int64_t top_k;             /* only tokens with the k largest logits; 0: all */
    double top_p;              /* only the most likely tokens that together have this probability; 1: all */
    double repetition_penalty; /* a positive logit of a token that was seen is divided by it, a negative one multiplied; 1: none */
    uint64_t seed;
};

struct sampler {
    struct sampling sampling;
    int64_t vocabulary;
    uint64_t drawn;            /* tokens of this answer */
    bool *seen;                /* by id */
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
void sampler_begin(struct sampler *s);
void sampler_see(struct sampler *s, int32_t id);
/* With a temperature: lists the tokens that may be drawn, by id, in s->kept; returns their number. */
int64_t sampler_candidates(struct sampler *s, const float *logits);
/* PL_FAIL if no logit is a number that can be compared. */
int sampler_next(struct sampler *s, const float *logits, int32_t *id, struct error *e);

#endif

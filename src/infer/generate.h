/*
 * generate.h: the answer to a prompt, token by token, until the model ends it, a stop string occurs, or it is
 * long enough.
 *
 *     generate_open(&g, &generator, &options)
 *     generate_answer(&g, &prompt, &answer, &error)    any number of times; or its two parts:
 *         generate_images(&g, &prompt, &error)         begins, and reads the prompt's images
 *         generate_text(&g, &prompt, &answer, &error)
 *     generate_close(&g)
 */
#ifndef GENERATE_H
#define GENERATE_H

#include "infer/generator.h"
#include "infer/sample.h"
#include "infer/text_scores.h"
#include "text/tokenizer/tokenizer.h"

struct prompt {
    const int32_t *ids;
    int64_t n;
    char *const *images;          /* what its image tokens stand for: references, in their order */
    uint32_t n_images;
};

struct generate_options {
    struct sampling sampling;
    int64_t most;                 /* tokens of an answer, at most */
    const int32_t *ends;          /* tokens that end an answer, such as EOS */
    uint32_t n_ends;
    const struct image_source *images; /* of prompts with images; NULL: there are none */
    const struct tokenizer *tokenizer; /* NULL: answers are ids alone, and there are no stop strings */
    char *const *stops;           /* texts that end an answer, none empty */
    uint32_t n_stops;
    void (*show)(void *to, const char *bytes, size_t n); /* called with the text as it arrives, in whole code points; NULL: none */
    bool (*each)(void *to, int32_t id); /* called with every token, after `show`; true ends the answer. NULL: none */
    void *to;
};

/* Why an answer ended: with one of `ends`; with one of `stops`; because it is as long as it may be or the cache
 * is full; by `each`. */
enum generate_end { GENERATE_EOS, GENERATE_STOP, GENERATE_LENGTH, GENERATE_CALLBACK };
const char *generate_end_name(enum generate_end end); /* "eos", "stop", "length", "callback" */

struct answer {
    VEC(int32_t) ids;             /* the token that ends it included, as in transformers */
    struct text text;             /* without special tokens, and without the stop string and what follows it */
    enum generate_end end;
    double prompt_seconds, seconds; /* for the prompt and the first token; for the other tokens */
};
void answer_free(struct answer *a);

struct generate {
    struct generator *generator;
    struct generate_options options;
    struct sampler sampler;
    double begun;                 /* when the prompt was */
};

/* `generator` is started; what `options` points to is valid until generate_close. */
void generate_open(struct generate *g, struct generator *generator, const struct generate_options *options);
void generate_close(struct generate *g);
/* Replaces what is in `out`. PL_USAGE: an id beyond the vocabulary, a prompt that leaves no room in the cache, or an image that is
 * missing or broken. */
int generate_answer(struct generate *g, const struct prompt *prompt, struct answer *out, struct error *e);
/* PL_USAGE: no tokens, or an image that is missing or broken. */
int generate_images(struct generate *g, const struct prompt *prompt, struct error *e);
int generate_text(struct generate *g, const struct prompt *prompt, struct answer *out, struct error *e);

/* Answers prompts one after another and scores them against their references. */
struct question {
    struct prompt prompt;
    const char *reference;
};
/* `each`, unless NULL, gets every answer. */
int generate_score(struct generate *g, const struct question *questions, uint32_t n, void (*each)(void *to, uint32_t i, const struct answer *a), void *to,
                   struct text_scores *scores, struct error *e);

#endif

/*
 * generate.h: answers to prompts, several at once, token by token, each until the model ends it, a
 * stop string occurs, or it is long enough.
 *
 *     generate_open(&g, &generator, &options)
 *     generate_all(&g, &queue, &error)                 any number of prompts, any number of times
 *     generate_answer(&g, &prompt, &answer, &error)    one prompt
 *     generate_close(&g)
 *
 *     texts of the generator     prompts 0 to 7 of a queue, three at once
 *       0    |0 answer|3 answer |5 answer ....|7
 *       1    |1 answer ....|4 answer |6 answer ....
 *       2    |2 answer .............................
 *
 * An answer that ended leaves its text to the next prompt. Prompts begin when enough texts are free
 * that they fill a chunk of program prompt, or half of the texts are free. When a prompt begins
 * changes no answer but by the last bits of its logits: a text's numbers do not depend on what the
 * others are.
 */
#pragma once

#include "infer/generator.h"
#include "infer/sample.h"
#include "text/tokenizer/tokenizer.h"

struct prompt {
    const int32_t *ids;
    int64_t n;
    char *const *images;          /* references of its images, in the order of their tokens */
    uint32_t n_images;
    /* tokens that end its answer, besides those of the options; valid until it has ended */
    const int32_t *ends;
    uint32_t n_ends;
};

struct generate_options {
    struct sampling sampling;
    int64_t most;                 /* tokens of an answer, at most */
    const int32_t *ends;          /* tokens that end an answer, such as EOS */
    uint32_t n_ends;
    const struct image_source *images; /* of prompts with images; NULL: there are none */
    const struct tokenizer *tokenizer; /* NULL: answers are only ids, and there are no stop strings */
    char *const *stops;           /* texts that end an answer, none empty */
    uint32_t n_stops;
    bool pooled;                  /* after generate_open nothing is allocated but from the pool (mem_pool_enter) */
    /* For one prompt at a time: */
    /* called with the text as it arrives, in whole code points; NULL: none */
    void (*show)(void *to, const char *bytes, size_t n);
    bool (*each)(void *to, int32_t id); /* called with every token, after `show`; true ends the answer. NULL: none */
    void *to;
};

/* Why an answer ended: with one of `ends`; with one of `stops`; because it is as long as it may be
 * or the cache is full; by `each`. */
enum generate_end { GENERATE_EOS, GENERATE_STOP, GENERATE_LENGTH, GENERATE_CALLBACK };
const char *generate_end_name(enum generate_end end); /* "eos", "stop", "length", "callback" */

struct answer {
    VEC(int32_t) ids;             /* the token that ends it included, as in transformers */
    struct text text;             /* without special tokens, and without the stop string and what follows it */
    enum generate_end end;
    /* for the prompt and the first token; for the other tokens; those of other prompts at once
     * included */
    double prompt_seconds, seconds;
};
void answer_free(struct answer *a);

/* Prompts, and who takes their answers. */
struct generate_queue {
    void *to;
    /* Gives the next prompt, valid until the next call; *more false: there is none. PL_USAGE: it
     * cannot be used. */
    int (*next)(void *to, struct prompt *out, bool *more, struct error *e);
    /* Takes the answer of prompt i, in the order of the prompts. `a` NULL: there is none, and `e`
     * says why; with PL_USAGE the prompt cannot be used, because of an id beyond the vocabulary,
     * its length, or an image that is missing or broken, and this is told at once, whatever the
     * order. Another result than PL_OK ends the queue. */
    int (*take)(void *to, uint64_t i, const struct answer *a, struct error *e);
};

struct growing_text;
struct held_answer;
struct generate {
    struct generator *generator;
    struct generate_options options;
    struct sampler sampler;
    struct growing_text *texts;   /* [generator.texts] */
    int64_t active;               /* of them */
    struct text_tokens *tokens;   /* [generator.texts] */
    int32_t *ids;                 /* [generator.texts,cache] prompts that begin */
    struct held_answer *held;     /* [n_held] answers that are not taken: that of prompt i at i modulo n_held */
    uint64_t n_held;
    const struct generate_queue *queue;
    bool more;                    /* the queue may have prompts */
    uint64_t begun, taken, put;   /* prompts of the queue; tokens of those that were begun */
};

/* `generator` is started; what `options` points to is valid until generate_close. */
void generate_open(struct generate *g, struct generator *generator, const struct generate_options *options);
void generate_close(struct generate *g);
/* Ends with the first error that `take` does not take. */
int generate_all(struct generate *g, const struct generate_queue *q, struct error *e);
/* Replaces what is in `out`. PL_USAGE: the prompt cannot be used. */
int generate_answer(struct generate *g, const struct prompt *prompt, struct answer *out, struct error *e);

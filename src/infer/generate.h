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

#include "batch/text_media.h"
#include "infer/sample.h"
#include "text/tokenizer/tokenizer.h"

/* --- generator ------------------------------------------------------------------------------- */

/* A language model that continues texts, several at once, with a KV cache.
 *
 *     generator_plan(&a, &config, &o, &source, &media, &error)   the plan: weights, KV cache, both programs
 *     generator_start(&a, &error)
 *     generator_begin(&a, text)                    a new text, one of a.texts
 *     text_media_read(&a.media, &source, paths, n, &error)   its images, before their tokens
 *     generator_put(&a, tokens, n, &error)         appends tokens to texts
 *     generator_logits(&a, text)                   of the token after the last one of a text
 *     generator_close(&a)
 *
 * Or with the programs of a run that trains, between two of its steps:
 *
 *     generator_join(&a, &run)                     instead of plan and start
 *     generator_enter(&a, &error)                  before the first text after a step
 *
 *     prompts     aaaaaaaabbbbbbbbbbbbbbbbccccc
 *                 |-- chunk --|-- chunk --|-- padded -| program prompt: tokens of any texts
 *     answers     a|a|a|a|
 *                 b|b|b|b|                             program next: a token of each text
 *                 c|c|c|c|
 *     KV cache    |a written ....|b written ....|c written ....|
 */
/* Tokens that are appended to a text. */
struct text_tokens {
    int64_t text;         /* below generator.texts */
    const int32_t *ids;
    int64_t n;
};

struct generator {
    struct run own;       /* planned by generator_plan; else empty */
    struct run *run;      /* `own`, or that of generator_join */
    struct ranks *together; /* with weights in shards: all ranks run the programs together; else NULL */
    int64_t texts;        /* at once */
    int64_t cache, chunk; /* tokens of the longest text; tokens that program prompt takes at once */
    int64_t *length;      /* [texts] tokens so far */
    struct text_media media; /* images, videos and volumes among the tokens */
    struct bump memory;   /* of the table of their pixels */
    id output[PROGRAM_COUNT]; /* the logits of each program */
    float *logits;        /* [vocabulary], of one text */
    char *raw;            /* [texts,vocabulary], in the model's dtype */
    struct batch_writer *writer;
    int32_t *ids, *positions, *slots, *ranges; /* the inputs of a program */
    struct row_token *row; /* of a run of a program: the tokens that it takes... */
    int64_t *rest;        /* ...those that are left of each text in generator_put... */
    int32_t *last;        /* ...and where the last token of each text is; below 0: not in this run */
};

/* Opens the model of the configuration and finds the plan, for prompts with at most these images
 * and frames, which `source` reads; both NULL: they are only text. PL_USAGE: the model generates no
 * text; PL_NOFIT: the smallest plan is in a->run. After any result generator_close is called. `a`
 * must not move. */
int generator_plan(struct generator *a, const struct config *c, const struct run_generation *o,
                   const struct image_source *source, const struct media *media, struct error *e);
/* Warns if the tokens that `what` may have are more than those that the model was made for. */
void generator_warn_longest(const struct generator *a, int64_t tokens, const char *what);
int generator_start(struct generator *a, struct error *e);
/* Uses a started run with run.answers. Its memory is the run's, apart from the logits and the
 * inputs of a chunk. */
void generator_join(struct generator *a, struct run *r);
/* Steps overwrite the KV cache, the inputs and the step block; this fills them. Allocates nothing,
 * as does generator_put. */
int generator_enter(struct generator *a, struct error *e);
void generator_close(struct generator *a);

/* Begins a text. The tokens of its images and videos (a.media) are put before another text is
 * begun. */
void generator_begin(struct generator *a, int64_t text);
/* Checks tokens. PL_USAGE: an id beyond the vocabulary, or more tokens than the cache holds. */
int generator_check(const struct generator *a, const struct text_tokens *x, struct error *e);
/* Appends to `n` different texts, in one run of a program if each gets one token. An error of
 * generator_check leaves all texts as they were. Texts that get no tokens keep theirs, and their
 * logits are lost. */
int generator_put(struct generator *a, const struct text_tokens *x, uint32_t n, struct error *e);
/* Returns the logits [vocabulary] of a text that the last generator_put appended to; valid until
 * the next call. */
const float *generator_logits(struct generator *a, int64_t text);
/* Agrees on the next token, which this rank chose or (rc) failed to: ranks that run the programs
 * together all take that of rank 0, or end. So each runs as many programs as the others, also where
 * an image is not the same on all. */
int generator_agree(struct generator *a, int32_t *id, int rc, struct error *e);

/* Returns the bytes of the KV cache in the plan. */
uint64_t generator_cache_bytes(const struct generator *a);

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

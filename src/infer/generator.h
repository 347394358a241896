/*
 * generator.h: a language model that continues texts, several at once, with a KV cache.
 *
 *     generator_plan(&a, &config, &o, &images, &error)   the plan: weights, KV cache, both programs
 *     generator_start(&a, &error)
 *     generator_begin(&a, text)                    a new text, one of a.texts
 *     generator_images(&a, &source, paths, n, &error)   its images, before their tokens
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
#pragma once

#include "models/image_grid.h"
#include "data/images/image_source.h"
#include "batch/writer.h"

/* Tokens that are appended to a text. */
struct text_tokens {
    int64_t text;         /* below generator.texts */
    const int32_t *ids;
    int64_t n;
};

/* A token in a run of a program; of text -1: padding. */
struct row_token {
    int64_t text;
    int32_t id, position;
};

struct generator {
    struct run own;       /* planned by generator_plan; else empty */
    struct run *run;      /* `own`, or that of generator_join */
    struct ranks *together; /* with weights in shards: all ranks run the programs together; else NULL */
    int64_t texts;        /* at once */
    int64_t cache, chunk; /* tokens of the longest text; tokens that program prompt takes at once */
    int64_t *length;      /* [texts] tokens so far */
    struct image_batch room;   /* images and frames for the vision tower, at most... */
    /* ...of the text that was begun last, whose image tokens come before any other text's... */
    struct image_batch images;
    struct image_run *runs;    /* [room] the tokens of its images and videos, in their order */
    uint32_t n_runs;
    int64_t feature[2];   /* the image token that comes next: the first is 0 (batch_record.feature) */
    id output[PROGRAM_COUNT]; /* the logits of each program */
    float *logits;        /* [vocabulary], of one text */
    char *raw;            /* [texts,vocabulary], in the model's dtype */
    struct batch_writer *writer;
    int32_t *ids, *positions, *slots, *ranges; /* the inputs of a program */
    struct row_token *row; /* of a run of a program: the tokens that it takes... */
    int64_t *rest;        /* ...those that are left of each text in generator_put... */
    int32_t *last;        /* ...and where the last token of each text is; below 0: not in this run */
    /* the pixels of the image, of a model that chooses its tokens by the whole prompt
     * (allocator.h); NULL: of any other */
    float *whole;
    /* With images of any size: of the text that was begun last, their grids and patches... */
    struct image_grid *grids;
    int64_t n_grids;
    struct grid_row grid;
    float *patches;       /* [room.patches][grid_values] */
    struct grid_walk *walk; /* ...and [texts] where each text has come to in its own, */
    /* [texts,cache] the positions and the features of its tokens, and [chunk] those of a run */
    int32_t (*three)[3], *index, (*row_three)[3], *row_index;
};

/* Opens the model of the configuration and finds the plan, for prompts with at most these images
 * and frames; NULL: they are only text. PL_USAGE: the model generates no text; PL_NOFIT: the
 * smallest plan is in a->run. After any result generator_close is called. `a` must not move. */
int generator_plan(struct generator *a, const struct config *c, const struct run_generation *o,
                   const struct image_batch *images, struct error *e);
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

void generator_begin(struct generator *a, int64_t text);
/* Reads the images and videos of the text that was begun last. PL_USAGE: one of them is missing or
 * broken, or they are more than were planned. Their features then replace image tokens, in order:
 * generator_image_tokens of them. All of them are put before another text is begun. */
int generator_images(struct generator *a, const struct image_source *s, char *const *references, uint32_t n,
                     struct error *e);
int64_t generator_image_tokens(const struct generator *a);
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

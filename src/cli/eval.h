/*
 * eval.h: what the files of `plimsoll eval` share: eval.c (masks), eval_text.c (language models,
 * and the forward over the data).
 */
#pragma once

#include "config/config.h"

/* A run and its data, both started. */
struct run;
struct feed;
struct mask_scores;
struct retrieval;
struct own_size;
struct eval_pass {
    struct run *run;
    struct feed *feed;
    struct mask_scores *masks; /* NULL: none are predicted */
    struct retrieval *found;   /* NULL: no masks are matched with texts */
    struct own_size *own;      /* NULL: no scores at the image's own size */
    /* gets what the loss is divided by, such as the tokens with a label; NULL: nobody asks */
    double *counted;
};
/* Computes the mean loss over the dataset, in all passes of the feed. */
int eval_passes(const struct eval_pass *v, double *loss, struct error *e);

/* Tell files of text and of tokens by their names. */
bool eval_is_text(const char *path);
bool eval_is_tokens(const char *path);

struct eval_text {
    const char *model;         /* as it was given */
    const char *answers;       /* the file of the answers, JSON lines; NULL: none */
    uint64_t samples, max_new; /* prompts of each file, tokens of an answer, at most; 0: all; the folder's, else 256 */
    bool loss;                 /* the loss is computed, too */
    bool json;
};

/* Answers the questions of the validation rows of a table, and adds the scores to a JSON map `w`,
 * or if that is NULL to `out`. */
struct json_writer;
int eval_questions(const struct config *c, const struct eval_text *o, struct json_writer *w, struct text *out,
                   struct error *e);

/* Answers the conversations of data.validation, scores the answers and prints the scores. */
int eval_text(const struct config *c, const struct eval_text *o, struct error *e);
/* Prints loss and perplexity on files of tokens, or on texts. */
int eval_tokens(struct config *c, const struct eval_text *o, struct error *e);

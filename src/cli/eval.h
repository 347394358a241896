/*
 * eval.h: what the files of `plimsoll eval` share: eval.c (masks, and the options), eval_text.c
 * (language models).
 */
#pragma once

#include "cli/cli.h"
#include "infer/validate_answers.h"

struct eval_text {
    const char *model;         /* as it was given */
    const char *output;        /* the file of the answers, JSON lines; NULL: none */
    struct answer_options answers;
    bool json;
};
/* Answers the conversations of data.validation, scores the answers and prints the scores. */
int eval_text(const struct config *c, struct eval_text *o, struct error *e);
/* Prints loss and perplexity on files of tokens, or on texts. */
int eval_tokens(struct config *c, const struct eval_text *o, struct error *e);
/* Answers the questions of the validation rows of a table, and adds the scores to a JSON map `w`,
 * or if that is NULL to `out`. */
int eval_questions(const struct config *c, const struct eval_text *o, struct json_writer *w, struct text *out,
                   struct error *e);

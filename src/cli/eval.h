/*
 * eval.h: the part of `plimsoll eval` for language models (eval_text.c).
 */
#ifndef CLI_EVAL_H
#define CLI_EVAL_H

#include "config/config.h"

struct eval_text {
    const char *model;         /* as it was given */
    const char *answers;       /* the file of the answers, JSON lines; NULL: none */
    uint64_t samples, max_new; /* prompts of each file, tokens of an answer, at most; 0: all; the folder's, else 256 */
    bool json;
};

/* Answers the conversations of data.validation, scores the answers and prints the scores. */
int eval_text(const struct config *c, const struct eval_text *o, struct error *e);

#endif

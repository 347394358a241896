/*
 * evaluation.h: scores of a model on held-out data (infer/validate.h, infer/validate_answers.h), as
 * tables, JSON and files.
 */
#pragma once

#include "infer/validate.h"
#include "infer/validate_answers.h"

struct evaluation {
    const char *model;                      /* as it was given */
    const char *output;                     /* the file of the answers, JSON lines; NULL: none */
    struct answer_options answers;
    const char *csv, *overlays;             /* files of the scores of masks and of the worst masks; NULL: none */
    const char *images, *structures;        /* CSV files of scores at the image's own size; NULL: none */
    bool own_size;                          /* these scores are computed, without files too */
    const char *spacing;                    /* of their pixels, "X,Y" in mm; NULL: as the files say */
    struct own_size_options own;
    uint64_t worst;                         /* masks that are listed */
    bool json;
};
/* Checks the options of masks, and reads the spacing. */
int evaluation_check(struct evaluation *o, struct error *e);
/* Scores masks, and the answers of a model that answers in words too; or what a model finds for a
 * query. */
int evaluate_masks(struct config *c, const struct evaluation *o, struct error *e);
/* Answers the conversations of data.validation, scores the answers and prints the scores. */
int evaluate_answers(struct config *c, const struct evaluation *o, struct error *e);
/* Prints loss and perplexity on files of tokens, or on texts. */
int evaluate_tokens(struct config *c, const struct evaluation *o, struct error *e);

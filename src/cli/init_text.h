/*
 * init_text.h: measures conversations for `plimsoll init`.
 */
#ifndef INIT_TEXT_H
#define INIT_TEXT_H

#include "io/file.h"

struct init_text {
    const char *tokenizer;   /* a model folder */
    const char *template;    /* data.template; NULL: the folder's */
    int64_t vocabulary;
    int64_t positions;       /* that the model has */
    int64_t sequence;        /* result: tokens in a row */
    double holdout;          /* result: the share of the samples to evaluate on; 0: `validation` has its own files, or there are too few */
    uint64_t samples[2], rows[2], too_long[2]; /* results, of what is trained on and evaluated on */
    bool estimated;          /* result: the numbers are scaled up from the beginning of large files */
};

/* Tokenizes the files, of large ones the beginning, and chooses the length of a row. `validation` may be
 * empty: then a tenth of the samples is held out, at least one. */
int init_measure_text(struct init_text *t, const struct names *train, const struct names *validation, struct error *e);

#endif

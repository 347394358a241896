/*
 * captions.h: texts as rows of token ids, for a contrastive model (models/heads.h).
 *
 * A text that is longer than a row is cut, and keeps its end token. Padding follows it. Special
 * tokens that stand in the text itself are text.
 */
#pragma once

#include "config/config.h"
#include "models/heads.h"
#include "text/tokenizer/tokenizer.h"

struct captions {
    struct tokenizer *tokenizer;
    const struct model *model;
    int64_t T;
    int32_t padding;
    uint64_t cut;   /* texts so far that were longer than a row */
};

/* Opens the tokenizer of data.tokenizer, or of the model's folder. `m` outlives it. */
int captions_open(struct captions *x, const struct config *c, const struct model *m, int64_t T, struct error *e);
/* Frees it. A zeroed struct is allowed. */
void captions_close(struct captions *x);
/* Writes row[T]; *n of its ids are not padding. PL_USAGE: an id beyond the vocabulary, or no end
 * token where the text is pooled at it. */
int captions_encode(struct captions *x, const char *text, int32_t *row, int64_t *n, struct error *e);

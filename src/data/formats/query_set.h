/*
 * query_set.h: the queries of a dataset's images, tokenized and grouped to samples.
 *
 *     sample       an image, and up to `queries` of its queries that fit `sequence` tokens together
 *     the dataset  is restricted to these images: sample i of it is sample i here. An image with
 *     more queries is in it
 *                  several times
 *
 * A query whose mask does not exist, that is too long, or whose image cannot be read is left out
 * and counted. Queries of images that are not in the dataset are those of another part of the data,
 * or of none.
 */
#ifndef QUERY_SET_H
#define QUERY_SET_H

#include "data/dataset.h"
#include "data/formats/queries.h"

struct tokenizer;

struct query_set_options {
    uint32_t queries;
    int64_t sequence, vocabulary;
    const struct tokenizer *tokenizer; /* NULL: the ids are the bytes of the text */
    uint64_t room;                     /* bytes for the annotations of an image */
};

struct query_set {
    uint32_t samples;
    VEC(uint32_t) first;               /* [samples + 1] the queries of each sample */
    VEC(int64_t) mask;                 /* [queries] the id of its mask */
    VEC(uint32_t) token;               /* [queries + 1] its tokens */
    VEC(int32_t) ids;
    uint64_t elsewhere;                /* queries of images that are not in the dataset */
    uint64_t missing, too_long, unreadable; /* queries left out */
    char such_as[320];                 /* the first whose mask does not exist */
};

/* PL_USAGE: no query can be used; an id beyond the vocabulary. The caller calls query_set_close,
 * also after an error. */
int query_set_open(struct query_set *s, struct dataset *d, const struct queries *q, const struct query_set_options *o,
                   struct error *e);
void query_set_close(struct query_set *s);
/* What was left out, in one line without a newline; false: nothing. */
bool query_set_print_left(const struct query_set *s, struct text *out);

/* A row of T tokens with the queries of a sample, as a packed batch has them (models/model.h), and
 * in last[] the last token of each; after the queries come padding, and -1. Returns the number of
 * tokens. */
uint32_t query_set_row(const struct query_set *s, uint32_t sample, int64_t T, uint32_t Q, int32_t *ids,
                       int32_t *positions, int32_t (*ranges)[2], int32_t *last);

#endif

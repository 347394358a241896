/*
 * queries.h: a file of texts that describe masks: which image, which text, which of its masks.
 *
 *     image,query,mask_id
 *     sa_223750.jpg,the red cup on the left,8812
 *
 * A CSV table, or JSON: a list of objects, or objects one a line. Names of columns and keys:
 *
 *   image  image, image_id, file, file_name, image_path       a name, with or without folder and
 *                                                             extension, or an id
 *   text   query, text, caption, expression, sentence, phrase
 *   mask   mask_id, mask, target, target_mask, annotation_id, ann_id
 */
#pragma once

#include "base/base.h"
#include "data/dataset.h"

struct mask_query {
    const char *image, *text;
    int64_t mask;  /* the id that the annotations give it */
    uint32_t line; /* of its row, from 1; in a JSON list its number */
};

struct queries {
    VEC(struct mask_query) list;
    struct bump memory;
};

/* Reads the queries of a file. PL_USAGE, with the line: a row without image, text or mask; a
 * column that is missing; no rows. The caller calls queries_free, also after an error. */
int queries_read(struct queries *q, const char *path, struct error *e);
/* Parses n bytes followed by a 0, which are changed; `path` is for messages. */
int queries_parse(struct queries *q, char *text, size_t n, const char *path, struct error *e);
void queries_free(struct queries *q);

/* Returns the name that images are compared by: without folder, extension, "sa_" and leading
 * zeros, so that "sa_000020/sa_223750.jpg" and 223750 are one, and 000000397133.jpg and 397133. */
const char *query_image_key(const char *name, char *out, size_t room);

/* ---- A set of queries ----
 *
 * the queries of a dataset's images, tokenized and grouped to samples.
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

/* Opens a set of queries. PL_USAGE: no query can be used; an id beyond the vocabulary. The caller
 * calls query_set_close, also after an error. */
int query_set_open(struct query_set *s, struct dataset *d, const struct queries *q, const struct query_set_options *o,
                   struct error *e);
void query_set_close(struct query_set *s);
/* Prints what was left out, in one line without a newline; false: nothing. */
bool query_set_print_left(const struct query_set *s, struct text *out);

/* Returns a row of T tokens with the queries of a sample, as a packed batch has them
 * (models/model.h), and in last[] the last token of each; after the queries come padding, and -1.
 * Returns the number of tokens. */
uint32_t query_set_row(const struct query_set *s, uint32_t sample, int64_t T, uint32_t Q, int32_t *ids,
                       int32_t *positions, int32_t (*ranges)[2], int32_t *last);

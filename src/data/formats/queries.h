/*
 * queries.h: a file of texts that describe masks: which image, which text, which of its masks.
 *
 *     image,query,mask_id
 *     sa_223750.jpg,the red cup on the left,8812
 *
 * A CSV table, or JSON: a list of objects, or objects one a line. Names of columns and keys:
 *
 *     image     image, image_id, file, file_name, image_path       a name, with or without folder and extension, or an id
 *     text      query, text, caption, expression, sentence, phrase
 *     mask      mask_id, mask, target, target_mask, annotation_id, ann_id
 */
#ifndef QUERIES_H
#define QUERIES_H

#include "base/base.h"

struct mask_query {
    const char *image, *text;
    int64_t mask;  /* the id that the annotations give it */
    uint32_t line; /* of its row, from 1; in a JSON list its number */
};

struct queries {
    VEC(struct mask_query) list;
    struct bump memory;
};

/* PL_USAGE, with the line: a row without image, text or mask; a column that is missing; no rows.
 * The caller calls queries_free, also after an error. */
int queries_read(struct queries *q, const char *path, struct error *e);
/* The same of n bytes followed by a 0, which are changed; `path` is for messages. */
int queries_parse(struct queries *q, char *text, size_t n, const char *path, struct error *e);
void queries_free(struct queries *q);

/* The name that images are compared by: without folder, extension, "sa_" and leading zeros, so that
 * "sa_000020/sa_223750.jpg" and 223750 are one, and 000000397133.jpg and 397133. */
const char *query_image_key(const char *name, char *out, size_t room);

#endif

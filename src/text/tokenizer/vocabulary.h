/*
 * vocabulary.h: the tokens of a tokenizer by content and by id.
 */
#ifndef VOCABULARY_H
#define VOCABULARY_H

#include "base/base.h"

/* Ids are below this: it bounds the tables that a file can ask for. */
enum { VOCABULARY_MOST = 1 << 24 };

/* Strings, of any bytes, to ids. */
struct id_map {
    struct id_entry {
        const char *at; /* NULL: an empty slot */
        uint32_t n;
        int32_t id;
    } *slots;
    uint32_t mask, n;
};
int32_t id_map_get(const struct id_map *m, const char *s, size_t n); /* -1: none */
/* Adds a string, which is not copied. False: it is there already. */
bool id_map_put(struct id_map *m, const char *s, size_t n, int32_t id);
void id_map_free(struct id_map *m);

struct vocabulary {
    struct bump memory;    /* of the contents */
    const char **piece;    /* [size]; NULL: no token has this id */
    uint32_t *length;      /* [size] */
    int32_t size, cap;     /* the largest id + 1 */
    struct id_map ids;
};
/* Adds a token, whose content is copied. PL_USAGE: the id is out of range, or id or content has a
 * token already. */
int vocabulary_add(struct vocabulary *v, const char *content, size_t n, int64_t id, struct error *e);
void vocabulary_free(struct vocabulary *v);

/* A hash for short strings. */
uint64_t word_hash(const char *s, size_t n);

#endif

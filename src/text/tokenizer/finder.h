/*
 * finder.h: all matches of a string or a regular expression in a text, one after the other.
 */
#ifndef FINDER_H
#define FINDER_H

#include "io/value.h"
#include "text/pattern.h"
#include "text/ranges.h"

/* One of the two. */
struct finder {
    const char *literal;
    uint32_t n;           /* of `literal`; at least 1 */
    struct pattern *pattern;
};

/* Reads {"String": "..."} or {"Regex": "..."}. Strings live in `memory`; finder_close frees the
 * rest. */
int finder_read(struct finder *f, const struct value *v, const char *name, struct bump *memory, struct error *e);
/* A regular expression; `what` is its name in messages. */
int finder_expression(struct finder *f, const char *expression, const char *what, struct error *e);
void finder_close(struct finder *f);

/* A search, {0} at its begin. */
struct finding {
    size_t from;
    size_t last_end; /* of the last match + 1; 0: none yet */
};
/* The next match in text[0, n): 1, 0 or -1 as pattern_find. A match of no bytes never touches the
 * match before it. */
int finder_next(const struct finder *f, struct pattern_search *s, const char *text, size_t n, struct finding *at,
                struct byte_range *match);

#endif

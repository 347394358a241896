/*
 * pattern.h: regular expressions of tokenizer.json, with the meaning that the `tokenizers` library
 * gives them.
 *
 * Oniguruma, that library's own engine, matches; only pattern.c knows it. Text is UTF-8.
 */
#ifndef PATTERN_H
#define PATTERN_H

#include "base/base.h"

struct pattern;

/* PL_USAGE: the expression does not compile; the message has the expression and the reason. */
int pattern_compile(struct pattern **out, const char *expression, struct error *e);
/* NULL is allowed. */
void pattern_free(struct pattern *p);

/* What a search needs beside the pattern; one for each thread. */
struct pattern_search;
struct pattern_search *pattern_search_new(void);
void pattern_search_free(struct pattern_search *s);

/* Begins a text of n bytes: all searches up to the next call together may take processor time in
 * proportion to n. */
void pattern_search_begin(struct pattern_search *s, size_t n);

/* Finds the first match in text[0, n) that begins at `from` or later: *begin and *end. 1: found, 0:
 * none, -1: the engine gave up, because the expression backtracks without end, or the time for the
 * text is over. */
int pattern_find(const struct pattern *p, struct pattern_search *s, const char *text, size_t n, size_t from,
                 size_t *begin, size_t *end);

#endif

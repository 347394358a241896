/*
 * regex.h: regular expressions with the meaning that Python's `re` gives them.
 *
 * PCRE2 matches; only regex.c knows it. A build without PCRE2 has regex_none.c instead, in which
 * every expression is an error. A subject has no newline: it is the name of a module. Characters
 * are bytes.
 */
#ifndef REGEX_H
#define REGEX_H

#include "base/base.h"

struct regex;

/* The version of PCRE2; NULL: this build has none, and regex_compile always fails. */
const char *regex_version(void);

/* Compiles an expression into `memory`, with which it is freed. PL_USAGE: it is not a regular
 * expression of Python; the message gives the position, from 1, and the reason. */
int regex_compile(struct regex **out, const char *pattern, struct bump *memory, struct error *e);

enum regex_answer { REGEX_NO, REGEX_YES, REGEX_GAVE_UP };

/* re.fullmatch and re.match. The number of steps is bounded: an expression that backtracks without
 * end gives REGEX_GAVE_UP. Thread-safe. */
enum regex_answer regex_full_match(const struct regex *r, const char *subject);
enum regex_answer regex_match(const struct regex *r, const char *subject);
/* re.match, and the text of a named group: its offset and length in the subject. */
enum regex_answer regex_match_group(const struct regex *r, const char *subject, const char *group, size_t *at,
                                    size_t *n);

#endif

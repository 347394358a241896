/*
 * scan.h: walking through JSON without building anything.
 *
 * For files whose layout is known and of which there are millions: the caller says what
 * it expects next, everything else is skipped, texts stay where they are. Any order of
 * keys; nothing is allocated. The first thing that is wrong is remembered, and from then
 * on every call returns false, so a caller checks once, at the end:
 *
 *     struct scan s = scan_begin(text, n);
 *     struct scan_key key;
 *     for (bool first = scan_enter(&s, '{'); scan_member(&s, &first, &key);)
 *         if (scan_is(&key, "width")) scan_integer(&s, &w);
 *         else scan_skip(&s);
 *     if (!scan_finish(&s)) ... s.fault, scan_offset(&s)
 *
 * Structure is checked strictly: brackets, commas, colons, literals, numbers. Texts are only
 * searched for their end.
 */
#ifndef SCAN_H
#define SCAN_H

#include <string.h>

#include "base/base.h"

enum { SCAN_DEPTH = 64 };

struct scan {
    const char *begin, *at, *end;
    const char *fault; /* what was expected; NULL while all is right */
    int depth;
};

struct scan_key {
    const char *at;
    size_t n;
};

struct scan scan_begin(const char *text, size_t n);
/* Whether all was right and nothing but blanks follows. */
bool scan_finish(struct scan *s);
static inline size_t scan_offset(const struct scan *s) { return (size_t)(s->at - s->begin); }
/* Records what was expected here; false. */
bool scan_fail(struct scan *s, const char *expected);

/* Goes into a map '{' or list '['; then one scan_member or scan_element per item, false at its
 * end. After each true the value must be consumed. */
bool scan_enter(struct scan *s, char open);
bool scan_member(struct scan *s, bool *first, struct scan_key *key);
bool scan_element(struct scan *s, bool *first);
/* In the header so that the length of a constant name is one as well. */
static inline bool scan_is(const struct scan_key *key, const char *name)
{
    return key->n == strlen(name) && !memcmp(key->at, name, key->n);
}
/* The first character of the next value, 0 at the end. Says what it is: { [ " digit t f n */
char scan_peek(struct scan *s);

bool scan_skip(struct scan *s);
/* The nearest double. */
bool scan_number(struct scan *s, double *out);
/* For scores and boxes: a float, by the shortest way. */
bool scan_float(struct scan *s, float *out);
/* A whole number, of either way to write it ("12", "12.0"), up to 2^53. */
bool scan_integer(struct scan *s, int64_t *out);
bool scan_bool(struct scan *s, bool *out); /* also 0 and 1 */
/* The text between the quotes, escapes and all. */
bool scan_text(struct scan *s, const char **at, size_t *n);
/* Such a text without its escapes, terminated, into out[room]: false when it does not fit, holds
 * a 0 or an escape that JSON does not have. */
bool scan_unescape(const char *at, size_t n, char *out, size_t room);
/* A list of exactly n numbers. */
bool scan_numbers(struct scan *s, float *out, int n);
/* Any value, as the bytes it stands in. */
bool scan_span(struct scan *s, const char **at, size_t *n);

#endif

/*
 * scan.h: a streaming JSON scanner that builds no tree.
 *
 * For millions of files with a known layout: the caller states what it expects next, everything
 * else is skipped, and texts stay in place. Keys may be in any order; nothing is allocated. The
 * first error is recorded, and from then on every call returns false, so a caller checks once, at
 * the end:
 *
 *     struct scan s = scan_begin(text, n);
 *     struct scan_key key;
 *     for (bool first = scan_enter(&s, '{'); scan_member(&s, &first, &key);)
 *         if (scan_is(&key, "width")) scan_integer(&s, &w);
 *         else scan_skip(&s);
 *     if (!scan_finish(&s)) ... s.fault, scan_offset(&s)
 *
 * The structure is checked strictly: brackets, commas, colons, literals, numbers. Texts are only
 * searched for their end.
 */
#pragma once

#include "base/base.h"

enum { SCAN_DEPTH = 64 };

struct scan {
    const char *begin, *at, *end;
    const char *fault; /* what was expected; NULL: no error */
    int depth;
};

struct scan_key {
    const char *at;
    size_t n;
};

struct scan scan_begin(const char *text, size_t n);
/* Reports whether there was no error and only blanks follow. */
bool scan_finish(struct scan *s);
static inline size_t scan_offset(const struct scan *s) { return (size_t)(s->at - s->begin); }
/* Records what was expected here; returns false. */
bool scan_fail(struct scan *s, const char *expected);

/* Enters a map '{' or list '['. Then scan_member or scan_element is called once per item and
 * returns false at the end. After each true the value must be consumed. */
bool scan_enter(struct scan *s, char open);
bool scan_member(struct scan *s, bool *first, struct scan_key *key);
bool scan_element(struct scan *s, bool *first);
/* Reports whether a key has this name; inline, so that the length of a constant name is a
 * constant. */
static inline bool scan_is(const struct scan_key *key, const char *name)
{
    return key->n == strlen(name) && !memcmp(key->at, name, key->n);
}
/* Returns the first character of the next value, 0 at the end. It shows the type: { [ " digit t f
 * n */
char scan_peek(struct scan *s);

bool scan_skip(struct scan *s);
/* Returns the nearest double. */
bool scan_number(struct scan *s, double *out);
/* Scans a float by the fast path, for scores and boxes. */
bool scan_float(struct scan *s, float *out);
/* Returns a whole number, written "12" or "12.0", up to 2^53. */
bool scan_integer(struct scan *s, int64_t *out);
bool scan_bool(struct scan *s, bool *out); /* also 0 and 1 */
/* Scans a text up to its closing quote, which follows an even number of backslashes. */
bool scan_text(struct scan *s, const char **at, size_t *n);
/* Resolves the escapes of such a text into out[room], terminated: false when it does not fit,
 * contains a 0 or an escape that JSON does not have. */
bool scan_unescape(const char *at, size_t n, char *out, size_t room);
/* Returns a list of exactly n numbers. */
bool scan_numbers(struct scan *s, float *out, int n);
/* Returns the bytes of any value. */
bool scan_span(struct scan *s, const char **at, size_t *n);

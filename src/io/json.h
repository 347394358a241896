/*
 * json.h: reading JSON into a tree, and writing it to a text.
 */
#pragma once

#include "io/value.h"

/* Parses n bytes into *out, which lives in `b`. Strict RFC 8259; in addition duplicate keys,
 * nesting beyond VALUE_DEPTH, numbers beyond a double and \u0000 are errors. PL_USAGE with line
 * and column. */
int json_parse(const char *bytes, size_t n, struct bump *b, struct value **out, struct error *e);
/* Does the same, and the tree with what is needed to make it takes at most about `most` bytes: a
 * text of small values takes 25 times its length. PL_USAGE before memory is taken. */
int json_parse_within(const char *bytes, size_t n, uint64_t most, struct bump *b, struct value **out, struct error *e);
/* Parses a map member by member: `each` gets them in order, with their keys, each valid during the
 * call. The memory is that of one member, at most `most` as above. That a key occurs once is not
 * checked. */
typedef int json_member(void *user, const struct value *member, struct error *e);
int json_each(const char *bytes, size_t n, uint64_t most, json_member *each, void *user, struct error *e);
/* Parses a file of at most `limit` bytes; the message begins with the path. */
int json_read_file(const char *path, uint64_t limit, struct bump *b, struct value **out, struct error *e);

/* The writer. `key` is the name inside a map, and NULL inside a list or at the top.
 *
 *   struct json_writer w = {.out = &text, .indent = 2};   indent 0: all on one line
 *   json_begin_map(&w, NULL);
 *   json_put_uint(&w, "arena_bytes", n);
 *   json_end(&w);
 */
struct json_writer {
    struct text *out;
    int indent;
    int depth;                       /* open maps and lists */
    char close[2 * VALUE_DEPTH + 1]; /* '}' or ']' of each */
    bool any[2 * VALUE_DEPTH + 1];   /* whether it has an element */
};
void json_begin_map(struct json_writer *w, const char *key);
void json_begin_list(struct json_writer *w, const char *key);
void json_end(struct json_writer *w);
void json_put_null(struct json_writer *w, const char *key);
void json_put_bool(struct json_writer *w, const char *key, bool x);
void json_put_int(struct json_writer *w, const char *key, int64_t x);
void json_put_uint(struct json_writer *w, const char *key, uint64_t x);
/* Writes the shortest digits that parse to the same double; NaN and infinities become null. */
void json_put_number(struct json_writer *w, const char *key, double x);
/* Writes a text; invalid UTF-8 bytes are written as U+FFFD. */
void json_put_string(struct json_writer *w, const char *key, const char *s);
/* Writes n bytes, in which NUL is a character like others. */
void json_put_bytes(struct json_writer *w, const char *key, const char *s, size_t n);
/* Returns the bytes of such a text between quotes. */
size_t json_quoted_bytes(const char *s, size_t n);
void json_put_format(struct json_writer *w, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void json_put_value(struct json_writer *w, const char *key, const struct value *v);
/* Writes a whole tree as one document, without a newline at the end. */
void json_write(const struct value *v, int indent, struct text *out);

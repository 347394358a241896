/*
 * value.h: one tree for JSON and YAML documents.
 *
 * A tree lives in the struct bump that it was built in, and is freed with it.
 * Strings are C strings: the parsers reject an embedded NUL.
 */
#pragma once

#include "base/base.h"

/* Deepest nesting that the parsers accept; it bounds every recursion over a tree. */
enum { VALUE_DEPTH = 128 };

enum value_kind { VALUE_NULL, VALUE_BOOL, VALUE_NUMBER, VALUE_STRING, VALUE_LIST, VALUE_MAP };

/* Fields of other kinds than `kind` are zero, so `count` may be read from any value. */
struct value {
    enum value_kind kind;
    uint32_t line;         /* in the source, from 1; 0 when not known (JSON, built) */
    const char *key;       /* its name when it is a child of a map, else NULL */
    const char *text;      /* string: its bytes. number: its exact digits, a JSON number
                              or one of ".inf", "-.inf", ".nan" */
    double number;         /* number: the nearest double of `text` */
    struct value **items;  /* list, map: children in order */
    uint32_t *slots;       /* large map: hash slots, child index + 1, 0 is empty */
    uint32_t count, room, slot_count;
    bool truth;
};

/* Lookups. All accept NULL, and return NULL for a missing value. */
const struct value *value_get(const struct value *map, const char *key);
const struct value *value_at(const struct value *list, uint32_t i);
/* Finds "a.b.c" through nested maps. Only value_get finds keys with a dot. */
const struct value *value_path(const struct value *map, const char *path);
/* Compares trees: equal kinds and order of children. Whole numbers compare by digits, others by
 * value. */
bool value_equal(const struct value *a, const struct value *b);
/* Prints `the string "abc"`, `the number 7`, `a list`, for messages. Returns `out`. */
char *value_describe(const struct value *v, char out[96]);

/* Reads a value of a type. `name` is the value's name in messages, usually its path. PL_USAGE when
 * v is NULL ("... is missing") or of another type. */
int value_as_bool(const struct value *v, const char *name, bool *out, struct error *e);
int value_as_int(const struct value *v, const char *name, int64_t *out, struct error *e);
int value_as_uint(const struct value *v, const char *name, uint64_t *out, struct error *e);
int value_as_number(const struct value *v, const char *name, double *out, struct error *e);
int value_as_string(const struct value *v, const char *name, const char **out, struct error *e);
int value_as_size(const struct value *v, const char *name, uint64_t *bytes, struct error *e);
int value_as_list(const struct value *v, const char *name, struct error *e);
int value_as_map(const struct value *v, const char *name, struct error *e);

/* Reads a value of a type by its path; a missing or null value leaves *out unchanged. */
int value_opt_bool(const struct value *map, const char *path, bool *out, struct error *e);
int value_opt_int(const struct value *map, const char *path, int64_t *out, struct error *e);
int value_opt_uint(const struct value *map, const char *path, uint64_t *out, struct error *e);
int value_opt_number(const struct value *map, const char *path, double *out, struct error *e);
int value_opt_string(const struct value *map, const char *path, const char **out, struct error *e);

/* Builds values. Texts are copied. */
struct value *value_new(struct bump *b, enum value_kind kind);
struct value *value_bool(struct bump *b, bool x);
struct value *value_int(struct bump *b, int64_t x);
struct value *value_uint(struct bump *b, uint64_t x);
struct value *value_number(struct bump *b, double x);
struct value *value_string(struct bump *b, const char *s);
/* Returns a number from text that number_is_json accepts: the digits are kept. */
struct value *value_digits(struct bump *b, const char *text, size_t n);
struct value *value_copy(struct bump *b, const struct value *v);
/* Appends a child; a child belongs to one parent. */
void value_append(struct bump *b, struct value *list, struct value *child);
/* Adds a child at the end, or replaces the child of that key, at the same position. */
void value_put(struct bump *b, struct value *map, const char *key, struct value *child);

/* Returns the grammar of a JSON number, over exactly n bytes. */
bool number_is_json(const char *s, size_t n);
/* Returns the shortest digits that parse to the same double; also ".inf", "-.inf" and ".nan". */
char *number_print(double x, char out[32]);
/* Returns the length of the well-formed UTF-8 sequence at s (1 to 4), 0 if invalid. *code gets the
 * character. */
int utf8_decode(const char *s, size_t n, uint32_t *code);
/* Writes n bytes in double quotes. Characters that are not `plain` are written by `escape`, which
 * formats their code; invalid UTF-8 becomes U+FFFD. */
void value_quote(struct text *out, const char *s, size_t n, bool (*plain)(uint32_t code), const char *escape);

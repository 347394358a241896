/*
 * yaml.h: reading and writing YAML configurations.
 *
 * The data model is JSON's plus .inf and .nan; scalars resolve by the core schema of
 * YAML 1.2 (so `no` and `on` are strings, 1e-4 is a number). Rejected, with the line:
 * anchors and aliases, tags, duplicate keys, keys that are not scalars, several
 * documents, nesting beyond VALUE_DEPTH, NUL characters.
 */
#pragma once

#include "io/value.h"

/* Parses n bytes of UTF-8 into *out, which lives in `b`. An empty document is null.
 * PL_USAGE with the line. */
int yaml_parse(const char *bytes, size_t n, struct bump *b, struct value **out, struct error *e);
int yaml_read_file(const char *path, uint64_t limit, struct bump *b, struct value **out, struct error *e);
/* Resolves one plain scalar by the same rules: "8" is a number, "true" a bool, "" null. Used for
 * key=value on the command line. */
struct value *yaml_scalar(struct bump *b, const char *s);
/* Writes block style, one key per line, lists of scalars in brackets, with a newline at the end.
 * The output parses to an equal tree. */
void yaml_write(const struct value *v, struct text *out);

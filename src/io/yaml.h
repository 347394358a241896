/*
 * yaml.h: reading and writing the YAML that configurations are written in.
 *
 * The data model is JSON's plus .inf and .nan; scalars resolve by the core schema of
 * YAML 1.2 (so `no` and `on` are strings, 1e-4 is a number). Refused, with the line:
 * anchors and aliases, tags, duplicate keys, keys that are not scalars, several
 * documents, nesting beyond VALUE_DEPTH, NUL characters.
 */
#ifndef YAML_TREE_H
#define YAML_TREE_H

#include "io/value.h"

/* Parses n bytes of UTF-8 into *out, which lives in `b`. An empty document is null.
 * PL_USAGE with the line. */
int yaml_parse(const char *bytes, size_t n, struct bump *b, struct value **out, struct error *e);
int yaml_read_file(const char *path, uint64_t limit, struct bump *b, struct value **out,
                   struct error *e);
/* One plain scalar by the same rules: "8" a number, "true" a bool, "" null. For
 * key=value on the command line. */
struct value *yaml_scalar(struct bump *b, const char *s);
/* Block style, one key per line, lists of scalars in brackets; ends with a newline.
 * Reads back equal. */
void yaml_write(const struct value *v, struct text *out);

#endif

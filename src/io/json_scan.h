/*
 * json_scan.h: the tokens of a JSON text, and what makes the tree of it.
 */
#pragma once

#include "io/json.h"

struct span {
    const char *at;
    size_t n;
};

struct json_scan {
    const char *begin, *at, *end;
    VEC(struct span) numbers; /* in the order of the text */
    uint64_t values, most;    /* values and keys so far; bytes that they may take */
    struct error *e;
};

/* Reports "line 3, column 14: ..." for the byte at `at`. */
int json_fail_at(const struct json_scan *s, const char *at, const char *what);

/* Scans from s->at to the end, or with `member` to the comma or brace that ends a member of a
 * map. */
int json_scan_tokens(struct json_scan *s, bool member);

/* Makes the tree of s->begin .. s->end, which is terminated. All tokens are valid, each number is
 * recorded, and the nesting is at most VALUE_DEPTH; whether the tokens form a value is checked
 * here. */
int json_tree(struct json_scan *s, struct bump *b, struct value **out);

/*
 * pickle.h: reads Python pickles as plain data, without executing anything.
 *
 * A pickle is a program for a stack machine that may name any Python function and call it. This
 * machine calls nothing. It builds numbers, strings, lists, tuples and dictionaries. A name
 * stays a name. A call becomes a value of kind PICKLE_CALL with the name and the arguments; the
 * caller interprets the calls that it knows. Everything is bounded by the length of the input
 * and by PICKLE_VALUES.
 */
#pragma once

#include "base/base.h"

/* A checkpoint of a large model has some ten thousand values. */
enum { PICKLE_VALUES = 1 << 22, PICKLE_DEPTH = 64, PICKLE_NAME_MOST = 1024 };

enum pickle_kind {
    PICKLE_NONE, PICKLE_BOOL, PICKLE_INT, PICKLE_FLOAT, PICKLE_STRING, PICKLE_BYTES,
    PICKLE_TUPLE, PICKLE_LIST, PICKLE_DICT, /* items; of a dictionary key, value, key, value ... */
    PICKLE_NAME,                            /* "module name" */
    /* items[0] called with the tuple items[1]; items[2]: state set afterwards */
    PICKLE_CALL,
    PICKLE_PERSISTENT,                      /* items[0]: the persistent id of an object outside the pickle */
};

struct pickle {
    enum pickle_kind kind;
    bool seen, weighed;    /* for walks over the tree: shared values are visited once */
    uint32_t n, room;
    struct pickle **items;
    const char *text;      /* string, bytes, name; terminated */
    size_t length;
    int64_t integer;       /* int, bool; a number beyond 64 bits is a float */
    double real;
};

/* Reads one pickle from the front of bytes; *used is its length. The tree lives in `b`. PL_USAGE
 * with the offset when the pickle is damaged, too deep, too large or of an unknown format. */
int pickle_read(const uint8_t *bytes, size_t n, size_t *used, struct bump *b, struct pickle **out, struct error *e);

/* Returns the value of a string key in a dictionary; NULL: no such key, or not a dictionary. */
struct pickle *pickle_get(const struct pickle *dict, const char *key);
bool pickle_is_name(const struct pickle *p, const char *module, const char *name);

/*
 * config_rows.h: the rows of config.def, group.def, module.def and form.def as data, only for the
 * config*.c files. Other files use the members of struct config.
 */
#pragma once

#include "io/value.h"
#include "config/config.h"

enum config_row_type {
    ROW_STRING,
    ROW_LIST,
    ROW_INT,
    ROW_INTS,
    ROW_AUTO_INT,
    ROW_REAL,
    ROW_RANGE,
    ROW_BOOL,
    ROW_CHOICE,
    ROW_BUDGET,
    ROW_GROUPS,
    ROW_MODULES,
    ROW_FORMS,
    ROW_SETTING,
    ROW_NAMES,
    ROW_NUMBERS,
    ROW_MAP
};

struct config_row {
    const char *section, *path; /* "train", "train.steps" */
    enum config_row_type type;
    size_t offset;              /* of the member in its struct */
    const char *standard, *allowed, *doc, *needs;
};
extern const struct config_row config_rows[CONFIG_KEYS];

/* Pairs of keys that exclude each other. */
enum config_pair { PAIR_MODEL, PAIR_LENGTH, PAIR_DROPS, PAIR_WARMUP, CONFIG_PAIRS };
extern const enum config_key config_pairs[CONFIG_PAIRS][2];

/* Returns what a key needs to have an effect: its column, or the models of a technique. */
const char *config_needs(enum config_key key, char room[64]);

/* Returns the last component of a row's path. */
const char *config_leaf(const struct config_row *r);

/* Words separated by |: the index of a word, or -1; the word at an index. */
int config_word_index(const char *words, const char *word);
const char *config_word_at(const char *words, int index, char out[32]);

/* Reports whether x is in the interval of a numeric row. NaN and infinities are not. */
bool config_in_range(const struct config_row *r, double x);
/* Returns the number that means auto in an AUTO_INT row. */
int64_t config_auto(const struct config_row *r);
/* Prints the allowed values of the row in words: "a number, at least 0 and below 1". */
void config_expect(const struct config_row *r, struct text *out);

/* Reports whether a known name at that edit distance from a word is probably what was meant. */
bool config_near(const char *word, int distance);

/* Converts a node to the member at `to`; false if the row does not allow the value, and then
 * nothing is changed. config_row_value converts back. */
bool config_convert(struct config *c, const struct config_row *r, void *to, const struct value *v);
struct value *config_row_value(const struct config_row *r, const void *from, struct bump *b);
/* The message for a value that is not allowed, with its location; only the prefix "run.yaml:7:
 * ". */
int config_refuse(const struct config *c, const struct config_row *r, const struct value *v, enum config_source source,
                  struct error *e);
int config_at_node(const struct config *c, const struct value *v, enum config_source source, struct error *e);

/* Returns the key with this path, or -1. */
int config_find(const char *path);
/* Sets a key from another program's configuration. `v->line` is in `file`, which the caller keeps.
 * Messages have no location. */
int config_set_imported(struct config *c, enum config_key key, const struct value *v, const char *file,
                        struct error *e);
/* Restores the default. */
void config_reset(struct config *c, enum config_key key);

/* The keys that are lists of maps, and the members of an item (config_groups.c). */
struct config_maps {
    enum config_row_type type;
    const struct config_row *rows; /* offsets in the item's struct; the first is `match` */
    int members;
    size_t size, given;            /* bytes of an item; offset of its `given` */
    const char *what, *expected;   /* what the patterns match; the settings of an item */
};
extern const struct config_maps config_maps[];
extern const size_t config_maps_count;

/* The same for lists of maps, with messages about their items; `to` is the key's member. */
int config_convert_maps(struct config *c, const struct config_row *r, void *to, const struct value *v,
                        enum config_source source, struct error *e);
struct value *config_maps_value(struct bump *b, enum config_row_type type, const void *from);

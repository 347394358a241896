/*
 * config_rows.h: the rows of config.def, group.def and module.def as data, for the config*.c
 * alone. Others use the members of struct config.
 */
#ifndef CONFIG_ROWS_H
#define CONFIG_ROWS_H

#include "io/value.h"
#include "train/config.h"

enum config_row_type {
    ROW_STRING, ROW_LIST, ROW_INT, ROW_INTS, ROW_AUTO_INT, ROW_REAL, ROW_RANGE, ROW_BOOL, ROW_CHOICE, ROW_BUDGET, ROW_GROUPS,
    ROW_REBUILD, ROW_MODULES
};

struct config_row {
    const char *section, *path; /* "train", "train.steps" */
    enum config_row_type type;
    size_t offset;              /* of the member in its struct */
    const char *standard, *allowed, *doc;
};
extern const struct config_row config_rows[CONFIG_KEYS];

/* The member of a key, and the last part of a row's path. */
void *config_member(const struct config *c, enum config_key key);
const char *config_leaf(const struct config_row *r);

/* Words with | between them: the place of one, or -1; the one at a place. */
int config_word_index(const char *words, const char *word);
const char *config_word_at(const char *words, int index, char out[32]);

/* Whether the interval of a number's row holds x. NaN and infinities are out. */
bool config_in_range(const struct config_row *r, double x);
/* What the row expects, in words: "a number, at least 0 and below 1". */
void config_expect(const struct config_row *r, struct text *out);

/* Whether a known name at that distance from a word is what a typing error left of it. */
bool config_near(const char *word, int distance);

/* A list of whatever kind: without a value it is empty, not missing. */
bool config_is_list(const struct config_row *r);

/* From a node to the member at `to`: false when the row does not allow it, and then
 * nothing changed. And back. */
bool config_take(struct config *c, const struct config_row *r, void *to, const struct value *v);
struct value *config_row_value(const struct config_row *r, const void *from, struct bump *b);
/* The message of a value that was not assigned, with its place; "run.yaml:7: " alone. */
int config_refuse(const struct config *c, const struct config_row *r, const struct value *v, enum config_source source,
                  struct error *e);
int config_at_node(const struct config *c, const struct value *v, enum config_source source, struct error *e);

/* The keys that are lists of maps, and what is in an item (config_groups.c). */
struct config_maps {
    enum config_row_type type;
    const struct config_row *rows; /* offsets in the item's struct; the first is `match` */
    int members;
    size_t size, given;            /* of an item; of its `given` in it */
    const char *what, *expected;   /* what patterns match; what an item may say of it */
};
extern const struct config_maps config_maps[];
extern const size_t config_maps_count;

/* The same for lists of maps, which complain of their parts; `to` is the key's member. */
int config_take_maps(struct config *c, const struct config_row *r, void *to, const struct value *v, enum config_source source, struct error *e);
struct value *config_maps_value(struct bump *b, enum config_row_type type, const void *from);

#endif

/*
 * config_rows.h: the rows of config.def as data, for config.c and config_print.c
 * alone. Others use the members of struct config.
 */
#ifndef CONFIG_ROWS_H
#define CONFIG_ROWS_H

#include "train/config.h"

enum config_row_type {
    ROW_STRING, ROW_LIST, ROW_INT, ROW_INTS, ROW_AUTO_INT, ROW_REAL, ROW_BOOL, ROW_CHOICE, ROW_BUDGET
};

struct config_row {
    const char *section, *path; /* "train", "train.steps" */
    enum config_row_type type;
    size_t offset;              /* of the member in struct config */
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

#endif

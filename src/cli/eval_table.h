/*
 * eval_table.h: the scores of `plimsoll eval` at the image's own size: options, table, files and
 * page.
 */
#ifndef CLI_EVAL_TABLE_H
#define CLI_EVAL_TABLE_H

#include "infer/own_size.h"

struct eval_table {
    const char *images, *structures, *spacing; /* as given */
    bool wanted;                               /* --own-size */
    double tolerance, mm[2];
    bool open;
    struct own_size own;
};

bool eval_table_wanted(const struct eval_table *t);
/* Reads --spacing and --tolerance. */
int eval_table_options(struct eval_table *t, struct error *e);
/* Does nothing unless wanted. PL_USAGE: the model's masks are not promptable. */
int eval_table_open(struct eval_table *t, const struct run *r, const struct feed *f, const char *const *prompts,
                    struct error *e);
void eval_table_close(struct eval_table *t);

/* These do nothing unless open. */
void eval_table_print(const struct eval_table *t, struct text *out);
struct json_writer;
void eval_table_json(const struct eval_table *t, struct json_writer *w);
int eval_table_write(const struct eval_table *t, struct error *e);
/* The table as HTML. */
void eval_table_page(const struct mask_table *t, struct text *out);

#endif

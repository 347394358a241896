/*
 * parquet_rows.h: the rows of a table, each as the text of a JSON object.
 *
 *     structs are objects, lists are lists, a value that is not there is null
 *     bytes, and {bytes, path} whose bytes are there, are references to them: the string parquet:FILE/ROW/COLUMN/ITEM
 *
 * Rows and items count from 1, columns (parquet.h) from 0. A row group's columns are read side by side, a page at a time.
 */
#ifndef PARQUET_ROWS_H
#define PARQUET_ROWS_H

#include "io/parquet_cell.h"

#define PARQUET_REFERENCE "parquet:"

struct parquet_rows {
    const struct parquet *p;
    struct parquet_cursor **cursors; /* [columns] NULL: the column is not read */
    uint32_t group;
    uint64_t row, group_row;         /* the next one */
};

/* Reads the columns of the table whose names `wanted` accepts. */
void parquet_rows_open(struct parquet_rows *r, const struct parquet *p, bool (*wanted)(const char *name));
void parquet_rows_close(struct parquet_rows *r);
/* Replaces `out` by the next row; *more is false after the last. PL_USAGE, with path and row: it is damaged or too long. */
int parquet_rows_next(struct parquet_rows *r, struct text *out, bool *more, struct error *e);

/* Takes a reference apart; the path is copied to `path`. False: it is none. */
bool parquet_reference(const char *reference, char *path, size_t room, struct parquet_cell *out);

#endif

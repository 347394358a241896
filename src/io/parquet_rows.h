/*
 * parquet_rows.h: the rows of a table, each as the text of a JSON object.
 *
 *     structs are objects, lists are lists, a value that is not there is null; so is one without a
 *     form in JSON: decimals, INT96, fixed bytes bytes, and {bytes, path} whose bytes are there,
 *     are references to them: the string parquet:FILE/ROW/COLUMN/ITEM
 *
 * Rows and items count from 1, columns (parquet.h) from 0. A row group's columns are read side by
 * side, a page at a time.
 */
#ifndef PARQUET_ROWS_H
#define PARQUET_ROWS_H

#include "io/parquet_cell.h"
#include "io/parquet_cursor.h"

#define PARQUET_REFERENCE "parquet:"

struct parquet_rows {
    const struct parquet *p;
    struct parquet_cursor **cursors; /* [columns] NULL: the column is not read */
    uint32_t group;
    uint64_t row, group_row;         /* the next one */
    uint64_t
        times; /* rows that the last one stands for: it and those that follow it, where no column has a value in any */
    struct parquet_room room;        /* of all cursors */
};

/* Reads the columns of the table whose names `wanted` accepts. `most`: bytes of memory for all
 * columns, and of a row's text. Must not be moved while it is open. */
void parquet_rows_open(struct parquet_rows *r, const struct parquet *p, bool (*wanted)(const char *name),
                       uint64_t most);
void parquet_rows_close(struct parquet_rows *r);
/* Replaces `out` by the next row; *more is false after the last. PL_USAGE, with path and row: it is
 * damaged, or takes more memory. */
int parquet_rows_next(struct parquet_rows *r, struct text *out, bool *more, struct error *e);

/* Takes a reference apart; the path is copied to `path`. False: it is none. */
bool parquet_reference(const char *reference, char *path, size_t room, struct parquet_cell *out);

#endif

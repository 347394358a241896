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
#pragma once

#include "io/parquet_cell.h"
#include "io/parquet_page.h"

/* ---- A cursor in a column ----
 *
 * the entries of a column, one after the other (parquet.h). In memory are the
 * levels of a page, the dictionary of a row group, and the current value. All columns that are read
 * side by side have one room for these, which is asked before memory is taken.
 */

struct parquet_room {
    uint64_t most, used; /* bytes */
};

struct parquet_cursor {
    const struct parquet_node *node;
    bool ended;              /* of the row group */
    uint32_t rep, def;       /* of the next entry, after cursor_peek; 0 at the end */
    uint32_t item;           /* its number in its row, from 0 */
    /* The value of the entry that was taken, by the column's type. */
    struct text bytes;       /* PARQUET_BYTES */
    int64_t whole;           /* PARQUET_INT32, PARQUET_INT64, PARQUET_BOOLEAN */
    double number;           /* PARQUET_FLOAT, PARQUET_DOUBLE, float16 */

    /* private */
    const struct parquet *p;
    const struct parquet_chunk *chunk;
    struct parquet_room *room;
    uint64_t of_page, of_dictionary, of_value; /* bytes of the room */
    uint32_t column, left;   /* left: entries of the page */
    uint64_t at;             /* the next page */
    bool values, peeked;
    struct page_stream page;
    struct hybrid levels[2], index;
    uint8_t *level_bytes[2];
    uint8_t *words;          /* the dictionary... */
    uint32_t *starts, n_words; /* ...PARQUET_BYTES: where each begins */
    uint32_t bits, n_bits;   /* of booleans */
};

/* Opens a cursor. `values`: they are read; else only whether they are there. `room` must stay. */
struct parquet_cursor *cursor_open(const struct parquet *p, uint32_t column, bool values, struct parquet_room *room);
void cursor_close(struct parquet_cursor *c);
/* Goes to the beginning of a row group. */
void cursor_start(struct parquet_cursor *c, uint32_t group);
/* Reads the levels of the next entry; at the end of the row group sets `ended`. */
int cursor_peek(struct parquet_cursor *c, struct error *e);
/* Takes the next entry. *there: it has a value, which is read if it was asked for. */
int cursor_take(struct parquet_cursor *c, bool *there, struct error *e);
/* Returns how many entries follow the one that was taken that are known to be like it: in the same
 * page, each the only one of its row, without a value. */
uint64_t cursor_empty(const struct parquet_cursor *c);
/* Takes n of them. */
void cursor_skip(struct parquet_cursor *c, uint64_t n);

#define PARQUET_REFERENCE "parquet:"

struct parquet_rows {
    const struct parquet *p;
    struct parquet_cursor **cursors; /* [columns] NULL: the column is not read */
    uint32_t group;
    uint64_t row, group_row;         /* the next one */
    uint64_t
        times; /* rows that the last one counts as: it and those that follow it, where no column has a value in any */
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

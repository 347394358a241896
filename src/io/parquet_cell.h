/*
 * parquet_cell.h: one value of a column of bytes, by its row: the file of an image.
 *
 * An index says which page a row is in. Reading decodes that page, and of a dictionary as much as
 * is before the value, without keeping it: `datasets` may write a hundred images as one page.
 * Reading allocates nothing but what a codec's library does.
 */
#pragma once

#include "io/parquet.h"

/* Indexes a column: reads the headers of its pages and, below a list, their repetition levels.
 * Nobody else may use the table meanwhile. */
int parquet_index(struct parquet *p, uint32_t column, struct error *e);
void parquet_index_free(struct parquet *p);

struct parquet_cell {
    uint32_t column;  /* indexed, of type PARQUET_BYTES */
    uint64_t row;
    uint32_t item;    /* of the row's list; 0: its first, or the column is not in a list */
};

enum cell_state { CELL_THERE, CELL_NULL, CELL_NONE }; /* NONE: the row has no such item */

/* Reads a value into to[room]. *n is its length; `to` NULL: only that. PL_NOFIT: it is longer than
 * the room. PL_USAGE, with the path: the page is damaged. */
int parquet_cell(const struct parquet *p, struct parquet_cell at, void *to, size_t room, size_t *n,
                 enum cell_state *state, struct error *e);

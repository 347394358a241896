/*
 * csv.h: tables as RFC 4180 has them: fields between commas, quoted where they hold commas,
 * quotes or line ends. Parsed in place: quotes are taken out of the caller's text, fields
 * are terminated in it.
 */
#ifndef CSV_H
#define CSV_H

#include "base/base.h"

enum { CSV_COLUMNS = 256 };

struct csv {
    char *at, *end;
    uint32_t line; /* of the row that was given last, from 1 */
    uint32_t next; /* of the row to come */
    uint32_t n;    /* its fields */
    char *fields[CSV_COLUMNS];
};

/* `text` has n bytes and a 0 behind them. A byte-order mark is passed over. */
void csv_begin(struct csv *c, char *text, size_t n);
/* The next row that is not empty; *more is false at the end. PL_USAGE with the line when a quote
 * is not closed or something follows it, when there is a 0 inside, or too many columns. */
int csv_next(struct csv *c, bool *more, struct error *e);
/* The column of that name in the row at hand, or -1. */
int csv_column(const struct csv *c, const char *name);

#endif

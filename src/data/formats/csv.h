/*
 * csv.h: tables of RFC 4180: fields separated by commas, semicolons or tabs, quoted if they contain
 * separators, quotes or line ends. Parsed in place: quotes are removed from the caller's text, and
 * fields are terminated in it.
 */
#pragma once

#include "base/base.h"

enum { CSV_COLUMNS = 256 };

struct csv {
    char *at, *end;
    char separator;
    uint32_t line; /* of the last row returned, from 1 */
    uint32_t next; /* of the next row */
    uint32_t n;    /* its fields */
    char *fields[CSV_COLUMNS];
};

/* Begins to read `text`, which has n bytes followed by a 0. A byte-order mark is skipped. The
 * separator is the one that occurs most in the first line. */
void csv_begin(struct csv *c, char *text, size_t n);
/* Reads the next row that is not empty; *more is false at the end. PL_USAGE with the line when a
 * quote is not closed or something follows it, for a zero byte, and for too many columns. */
int csv_next(struct csv *c, bool *more, struct error *e);
/* Returns the index of the column of that name in the current row, or -1. */
int csv_column(const struct csv *c, const char *name);
/* The index of the column that has a usual name for images, masks, splits, questions, answers,
 * classes or captions, in any case, with or without _ - and blanks: image, img_path, File Name;
 * mask, label, seg_path; split, subset. -1: none. */
enum csv_usual { CSV_IMAGE, CSV_MASK, CSV_SPLIT, CSV_QUESTION, CSV_ANSWER, CSV_CLASS, CSV_CAPTION };
int csv_usual_column(const struct csv *c, enum csv_usual what);
/* Does the same among n names; "" is none. */
int usual_column(const char *const *names, uint32_t n, enum csv_usual what);

/*
 * records.h: the JSON objects of a file, one at a time: a list of objects, or objects one after the
 * other, usually one a line. The rows of a Parquet table are such objects too (io/parquet_rows.h),
 * of the columns that conversations have; their lines are their numbers.
 *
 * Plain text is read as objects {"text": ...} of its lines, TEXT_MOST bytes at most: a larger file
 * is cut after an empty line, or else at the end of a line, of a word or of a character.
 *
 * The file may have any size: only the object that is being read is in memory, and an object has at
 * most data.sample_memory bytes. The scan knows only brackets and strings; json_parse checks the
 * rest.
 */
#pragma once

#include "base/base.h"

#define RECORD_MOST ((uint64_t)64 << 20) /* data.sample_memory where it is not set */

enum { TEXT_MOST = 1 << 20 };

struct records {
    const char *path;
    int fd;
    char *buffer;
    size_t from, n, room;  /* buffer[from .. n) is read and not yet used */
    uint64_t most;         /* bytes of an object */
    uint64_t line;         /* of buffer[from], from 1 */
    uint64_t objects, last; /* objects so far, and the line of the last one */
    uint64_t bytes;        /* used so far, for progress */
    uint64_t size;         /* of the file */
    struct record_table *table; /* Parquet; NULL: JSON */
    bool any;              /* all columns of a table are read */
    bool plain;            /* plain text; `object` has it as JSON */
    struct text object;
    bool begun, list, after; /* after: an object of the list was read, so a comma or the end follows */
};

struct record {
    const char *text; /* from { to }; valid until the next call */
    size_t n;
    uint64_t line;    /* of its first byte, for record_place */
    uint64_t times; /* equal samples, from `line` on: more than 1 for rows of a table without any value */
};

/* Where a record is: "12", or, where it is not the first one in its line, "1 (sample 4)". */
struct record_place { char text[32]; };
struct record_place record_place(uint64_t line);
uint64_t record_line(uint64_t line); /* only the line */

/* Opens a file of records. `path` must outlive `r`. `most`: bytes of an object, or of a table's
 * columns together. PL_USAGE: there is no such file, it is empty, or it is something else than
 * JSON or Parquet (gzip, ...). The caller calls records_close after success. */
int records_open(struct records *r, const char *path, uint64_t most, struct error *e);
/* Does the same with all columns of a table, not only those of conversations. */
int records_open_any(struct records *r, const char *path, uint64_t most, struct error *e);
/* Does the same for plain text. PL_USAGE also: the file is JSON or a table, which data.format:
 * conversations reads. */
int records_open_text(struct records *r, const char *path, struct error *e);
/* Reads the next object; *more is false after the last one. PL_USAGE, with file and line: something
 * else than an object, an object that does not end or is too long, a list that does not end. */
int records_next(struct records *r, struct record *out, bool *more, struct error *e);
void records_close(struct records *r);

/* Returns the rows of a Parquet table; UINT64_MAX: the file is something else. */
uint64_t records_rows(const char *path);

/* Returns the kind of JSON that the first bytes of a file begin: '[' or '{'; 0: neither. */
char records_peek(const char *path);

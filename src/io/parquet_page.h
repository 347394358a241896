/*
 * parquet_page.h: the pages of a column (parquet.h), as streams: repetition levels, definition
 * levels, values.
 *
 *     version 1   all three are compressed together; levels begin with their length
 *     version 2   levels are not compressed, their lengths are in the header
 *
 * Levels and indices into dictionaries are runs (struct hybrid): equal values, or numbers of a few
 * bits side by side.
 */
#pragma once

#include "io/parquet.h"
#include "base/base.h"

/* Encodings of the format that are read. */
enum { PARQUET_PLAIN = 0, PARQUET_PLAIN_DICTIONARY = 2, PARQUET_RLE = 3, PARQUET_RLE_DICTIONARY = 8 };
/* Returns the format's name of any encoding: "DELTA_BYTE_ARRAY". */
const char *parquet_encoding(int32_t encoding);

struct parquet_page {
    bool dictionary, v2, compressed;
    const uint8_t *body;
    uint32_t size, full_size;      /* bytes in the file, and decompressed */
    uint32_t entries;              /* of a dictionary: values */
    uint32_t rep_bytes, def_bytes; /* version 2 */
    int32_t encoding;
    int32_t def_encoding, rep_encoding; /* version 1 states them also for levels that the column does not have */
};

/* Reads the header of the page at *at, and moves on to the next one. *more is false at the end of
 * the chunk. PL_USAGE: the header is damaged, or the page reaches beyond its column. */
int page_next(const struct parquet *p, const struct parquet_chunk *c, uint64_t *at, struct parquet_page *out,
              bool *more, struct error *e);

struct hybrid {
    const uint8_t *at;
    uint64_t left;          /* bytes */
    struct codec *from;     /* they come from a stream; NULL: from `at` */
    uint32_t bits;          /* of a number */
    uint64_t run;           /* numbers that are left in the run */
    bool packed;            /* side by side; else `value` again and again */
    uint32_t value;
    uint64_t held;          /* bits that are read ahead... */
    uint32_t n_held;        /* ...and their number */
};

/* Opens a run of n bytes at `at`, or from a stream (`at` NULL). */
void hybrid_open(struct hybrid *h, const uint8_t *at, struct codec *from, uint64_t n, uint32_t bits);
/* Takes the next number, and with it those that are equal because they are in the same run: *n of
 * them, from 1 to `most`. PL_USAGE: there is none. */
int hybrid_take(struct hybrid *h, uint64_t most, uint32_t *out, uint64_t *n, struct error *e);
/* Takes the next number. */
int hybrid_next(struct hybrid *h, uint32_t *out, struct error *e);
/* Takes n numbers; *found of them are `value`. A run takes the time of one number. */
int hybrid_count(struct hybrid *h, uint64_t n, uint32_t value, uint64_t *found, struct error *e);

struct page_stream {
    struct parquet_page page;
    const struct parquet_node *node;
    struct codec codec;
    struct hybrid levels;
    const uint8_t *released; /* the file's bytes before it are not kept in memory */
    bool open;
};

/* Begins to read a page of a column's chunk; page_stream_close may follow a failure. */
int page_stream_open(struct page_stream *s, const struct parquet *p, uint32_t column, const struct parquet_chunk *c,
                     const struct parquet_page *page, struct error *e);
void page_stream_close(struct page_stream *s);
/* Returns the bytes that a library allocates while the page is open. */
uint64_t page_stream_memory(const struct parquet_chunk *c, const struct parquet_page *page);
/* Gives the memory of the file's bytes back that are used, up to `end`, so that a process has no
 * more of a large page than it is reading. The system may keep them in its cache. */
void page_stream_release(struct page_stream *s, const uint8_t *end);
/* Reads one after the other: the length of the levels (0: the column has none, or all are 0),
 * which are then read from `levels`, or by the caller from the codec, or at *at if they are in
 * memory; and the values, from the codec. */
int page_stream_levels(struct page_stream *s, bool def, const uint8_t **at, uint64_t *n, struct error *e);

/* Returns the bits of numbers from 0 to `most`. */
static inline uint32_t bits_for(uint32_t most) { return most ? 32u - (uint32_t)__builtin_clz(most) : 0; }

/* ---- Thrift ----
 *
 * reads structs in Thrift's compact protocol, in which Parquet writes its headers.
 *
 *     for (struct thrift_field f = {0}; thrift_next(&t, &f);)
 *         if (f.id == 3 && f.type == THRIFT_I64) rows = thrift_int(&t);
 *         else thrift_skip(&t, f.type);
 *
 * The first malformed byte sets `bad`; from then on there are no fields, numbers are 0 and lists
 * are empty.
 */

enum thrift_type {
    THRIFT_STOP, THRIFT_TRUE, THRIFT_FALSE, THRIFT_I8, THRIFT_I16, THRIFT_I32, THRIFT_I64,
    THRIFT_DOUBLE, THRIFT_BINARY, THRIFT_LIST, THRIFT_SET, THRIFT_MAP, THRIFT_STRUCT
};

struct thrift {
    const uint8_t *at, *end;
    bool bad;
};

struct thrift_field {
    int64_t id;
    enum thrift_type type;
};

/* Reads a field's head: a byte with the distance of its number from the last one, or 0 and the
 * number follows; and its type. */
bool thrift_next(struct thrift *t, struct thrift_field *f);
/* Returns an i16, i32 or i64. */
int64_t thrift_int(struct thrift *t);
/* Returns the bytes of a binary or string, in place. */
const char *thrift_bytes(struct thrift *t, size_t *n);
/* Returns the number of elements of a list, which is at most the bytes that are left. */
uint32_t thrift_list(struct thrift *t, enum thrift_type *type);
void thrift_skip(struct thrift *t, enum thrift_type type);

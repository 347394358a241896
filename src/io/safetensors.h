/*
 * safetensors.h: reading and writing .safetensors files.
 *
 *   [ 8 bytes: header length, little-endian | header: JSON | data ]
 *
 * The header maps each name to {dtype, shape, data_offsets: [begin, end]}, offsets
 * counted from the start of the data; "__metadata__" is a map of strings. Tensors lie
 * back to back: no holes, no overlaps.
 */
#pragma once

#include "base/dtype.h"

enum { ST_HEADER_MOST = 100 << 20 }; /* the limit that the format sets */

struct st_pair {
    const char *key, *value;
};

/* One tensor. An unsupported dtype is DT_NONE and keeps its name, so that only a user of the
 * tensor reports an error. The same holds for a large rank. */
struct st_entry {
    const char *name;
    const char *dtype_name;  /* as in the file: "F32" */
    enum dtype dtype;
    int rank;
    const int64_t *dims;     /* [rank] */
    int64_t elements;
    uint64_t begin, bytes;   /* from the start of the data */
};

/* ---- reading ---- */

/* An open file. Entries are in the order of their data. */
struct st_file {
    char *path;
    int fd;                  /* -1 when closed */
    uint64_t data_begin, data_bytes;
    struct st_entry *entries;
    uint32_t n_entries;
    uint32_t *by_name;       /* entry indices sorted by name */
    struct st_pair *metadata;
    uint32_t n_metadata;
    struct bump bump;        /* owns all of the above except path and fd */
};

/* Opens the file and checks the whole header. PL_USAGE when the file is malformed or missing,
 * PL_FAIL when it cannot be read. On failure nothing needs closing. */
int st_open(const char *path, struct st_file *f, struct error *e);
void st_close(struct st_file *f);
const struct st_entry *st_find(const struct st_file *f, const char *name); /* NULL: none */
const char *st_metadata(const struct st_file *f, const char *key);         /* NULL: none */
/* Reads bytes [offset, offset + n) of the tensor into dst. Thread-safe. */
int st_read(const struct st_file *f, const struct st_entry *t, uint64_t offset, uint64_t n, void *dst, struct error *e);
/* Reads elements [at, at + n) of the transpose of a matrix into dst. Thread-safe. */
int st_read_transposed(const struct st_file *f, const struct st_entry *t, int64_t at, int64_t n, void *dst,
                       struct error *e);
/* Parses only the header, n bytes of JSON before data_bytes of data: fills the entries and the
 * metadata of `f`, in f->bump. st_open and the fuzzer call it. */
int st_parse_header(const char *header, size_t n, uint64_t data_bytes, struct st_file *f, struct error *e);

/* ---- writing ---- */

/* A tensor to write. The writer computes its offset and size. */
struct st_spec {
    const char *name;
    enum dtype dtype;
    int rank;
    const int64_t *dims;     /* [rank] */
};

struct st_writer {
    char *path;
    int fd;                  /* -1 when not open */
    bool is_regular;         /* a regular file, which abort may remove */
    uint64_t wanted, written; /* data bytes */
};

/* Creates the file at exactly `path` (the caller handles temporary names), writes the header and
 * reserves the disk space. Tensors lie in the given order. */
int st_write_begin(struct st_writer *w, const char *path, const struct st_spec *specs, uint32_t n,
                   const struct st_pair *metadata, uint32_t n_metadata, struct error *e);
/* Writes the next n bytes of data, in order, across tensor borders if needed. After a failure
 * only st_write_abort may follow. */
int st_write_bytes(struct st_writer *w, const void *data, uint64_t n, struct error *e);
/* Checks that all data was written, syncs, closes. On failure the file is removed. */
int st_write_end(struct st_writer *w, struct error *e);
/* Ends a file that was written with the result `rc`: as st_write_end, or as st_write_abort if that
 * is an error. Returns the code. */
int st_write_finish(struct st_writer *w, int rc, struct error *e);
/* Closes and removes the file. Allowed after a failed begin or end, or an earlier abort. */
void st_write_abort(struct st_writer *w);

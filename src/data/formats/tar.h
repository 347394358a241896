/*
 * tar.h: tar archives: an index of offsets for reading, and a plain writer.
 *
 * The reader goes from header to header and does not read the data: it returns the offset of each
 * regular file, so that members can be read in any order later. It supports ustar with prefixes,
 * GNU long names and base-256 sizes, pax headers (size= and path=), and old archives without a
 * magic. It continues after damage: zero blocks between members are skipped, and a header with a
 * wrong checksum loses only the members up to the next valid header.
 */
#pragma once

#include "base/base.h"

enum { TAR_BLOCK = 512, TAR_NAME = 1024, TAR_WINDOW = 64 << 10 };

/* The type of a file, by its first bytes. */
enum tar_kind { TAR_PLAIN, TAR_GZIP, TAR_ZSTD };
enum tar_kind tar_sniff(const void *head, size_t n);

struct tar_member {
    char name[TAR_NAME]; /* as in the archive, "./a/b.jpg" */
    uint64_t offset;     /* of its bytes in the archive */
    uint64_t size;
};

/* The contents of pax headers for the members after them. */
struct tar_pax {
    bool has_path, has_size;
    char path[TAR_NAME];
    uint64_t size;
};

struct tar {
    int fd;
    const uint8_t *memory; /* instead of fd, for an archive in memory */
    uint64_t size, at;     /* of the archive; of the next header */

    /* The report: complete when the last member has been returned. */
    uint64_t members;   /* regular files */
    uint64_t others;    /* folders, links and the like, skipped */
    uint64_t damaged;   /* positions without an expected header */
    uint64_t lost;      /* bytes skipped there */
    uint64_t first_bad; /* offset of the first of these */
    bool partial;       /* the archive ends inside a member or header */

    struct tar_pax next, global; /* for the next member; for all that follow */
    uint64_t window_at, window_n;
    uint8_t window[TAR_WINDOW];
};

/* Opens the archive in an open file of `size` bytes, or in memory (fd -1). struct tar is too large
 * for the stack: allocate it. The caller closes the file. */
void tar_open(struct tar *t, int fd, const void *memory, uint64_t size);
/* Reads the next complete regular file; *more is false at the end. PL_FAIL when the file cannot be
 * read. */
int tar_next(struct tar *t, struct tar_member *m, bool *more, struct error *e);

/* Plain ustar: mode 644, no times, no owners, so equal members make equal archives. A name that
 * does not fit into a header gets a pax header. */
struct tar_writer {
    int fd;
    uint64_t at; /* bytes written so far */
    const char *path; /* for messages; NULL: "the tar" */
};
/* Writes a member. PL_USAGE for an empty name and for one of TAR_NAME bytes or more, which the
 * reader would cut. */
int tar_write_member(struct tar_writer *w, const char *name, const void *bytes, size_t n, struct error *e);
/* Writes the two zero blocks at the end. */
int tar_write_end(struct tar_writer *w, struct error *e);

/*
 * tar.h: tar archives, read by position and written plainly.
 *
 * The reader goes from header to header and never through the data: it says where each
 * regular file lies, so that members can be read in any order later. It knows ustar with
 * prefixes, GNU long names and base-256 sizes, pax headers (size= and path=), and old
 * archives without a magic. It goes on where others stop: zero blocks between members are
 * passed over, and a header whose checksum is wrong costs the members up to the next
 * right one and no more.
 */
#ifndef TAR_H
#define TAR_H

#include "base/base.h"

enum { TAR_BLOCK = 512, TAR_NAME = 1024, TAR_WINDOW = 64 << 10 };

/* What a file is by its first bytes. */
enum tar_kind { TAR_PLAIN, TAR_GZIP, TAR_ZSTD };
enum tar_kind tar_sniff(const void *head, size_t n);

struct tar_member {
    char name[TAR_NAME]; /* as it stands there, "./a/b.jpg" */
    uint64_t offset;     /* of its bytes in the archive */
    uint64_t size;
};

/* What pax headers said about the members behind them. */
struct tar_pax {
    bool has_path, has_size;
    char path[TAR_NAME];
    uint64_t size;
};

struct tar {
    int fd;
    const uint8_t *memory; /* instead of fd, for an archive in memory */
    uint64_t size, at;     /* of the archive; of the next header */

    /* The report: whole when the last member has been given. */
    uint64_t members;   /* regular files */
    uint64_t others;    /* folders, links and the like, passed over */
    uint64_t damaged;   /* places where a header was expected and none was */
    uint64_t lost;      /* bytes passed over there */
    uint64_t first_bad; /* where the first of these was */
    bool partial;       /* it ends inside a member or header */

    struct tar_pax next, global; /* for the next member; for all that follow */
    uint64_t window_at, window_n;
    uint8_t window[TAR_WINDOW];
};

/* The archive in an open file of `size` bytes, or in memory (fd -1). Larger than a stack
 * wants: allocate it. Closing the file is the caller's. */
void tar_open(struct tar *t, int fd, const void *memory, uint64_t size);
/* The next regular file whose bytes are all there; *more is false at the end. PL_FAIL when
 * the file cannot be read. */
int tar_next(struct tar *t, struct tar_member *m, bool *more, struct error *e);

/* Plain ustar: mode 644, no times, no owners, so equal members make equal archives. A name that
 * does not fit a header has a pax header before it. */
struct tar_writer {
    int fd;
    uint64_t at; /* bytes written so far */
    const char *path; /* for messages; NULL: "the tar" */
};
/* PL_USAGE for a name that the reader would cut, of TAR_NAME bytes and more, and for none.
 * The header alone; then exactly `size` bytes follow by tar_write_data, and tar_write_pad. */
int tar_write_header(struct tar_writer *w, const char *name, uint64_t size, struct error *e);
int tar_write_data(struct tar_writer *w, const void *bytes, size_t n, struct error *e);
int tar_write_pad(struct tar_writer *w, struct error *e);
/* All three. */
int tar_write_member(struct tar_writer *w, const char *name, const void *bytes, size_t n, struct error *e);
/* The two zero blocks of the end. */
int tar_write_end(struct tar_writer *w, struct error *e);

#endif

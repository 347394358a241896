/*
 * mapped.h: memory maps of files that fail with an error, not with a signal.
 *
 * When a page of a mapped file cannot be read or written, because the file became shorter or its
 * disk failed, the kernel sends SIGBUS, which ends a process without a message. Here the page is
 * replaced by zeros and the map is marked. The reader goes on with the zeros, and asks
 * mapped_failed before it trusts what it has read since it asked last.
 */
#pragma once

#include <stdatomic.h>

#include "base/base.h"

/* Must not be moved while it is open. */
struct mapped {
    char *at;           /* NULL: not open */
    size_t bytes;
    atomic_bool failed;
    struct mapped *next; /* of the open maps */
};

/* Does as mmap(NULL, bytes, protection, flags, fd, 0). Returns -1 with errno on failure. The caller
 * may close `fd`. */
int mapped_open(struct mapped *m, int fd, size_t bytes, int protection, int flags);
/* Reports whether a page could not be read or written since mapped_open. */
bool mapped_failed(const struct mapped *m);
/* Returns PL_FAIL if mapped_failed; the message says what to do. */
int mapped_check(const struct mapped *m, const char *path, struct error *e);
/* Does nothing if the map is not open. */
void mapped_close(struct mapped *m);

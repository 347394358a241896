/*
 * gunzip.h: decompresses gzip files, damaged ones as far as possible. Only gunzip.c uses zlib; it
 * also decodes blocks in memory (codec.h) and compresses files.
 */
#pragma once

#include "base/base.h"

struct gunzip_report {
    uint64_t in, out; /* bytes read and written */
    bool damaged;     /* the file ends early or cannot be decoded to its end; `out` counts the bytes before that */
    char reason[96];
};
/* Decompresses all members of the gzip file at descriptor `from`, from its position on, to
 * descriptor `to`. Damage is not an error: the decoded bytes stay. PL_FAIL when reading or
 * writing fails. */
int gunzip(int from, int to, struct gunzip_report *r, struct error *e);
/* Does the same without progress, and writes at most `most` bytes: it stops when there are more.
 * r->out counts the bytes written. */
int gunzip_at_most(int from, int to, uint64_t most, struct gunzip_report *r, struct error *e);
/* Decompresses the first n bytes of a file; returns their number, less if the file ends or is
 * damaged, 0 if it is no gzip file. */
size_t gunzip_peek(const char *path, void *to, size_t n);
/* Compresses what descriptor `from` has, from its position on, to descriptor `to`, without a time
 * stamp: equal bytes give equal files. */
int gzip(int from, int to, struct error *e);

/*
 * gunzip.h: decompresses gzip files, damaged ones as far as possible. Only gunzip.c uses zlib; it also
 * decodes blocks in memory (codec.h).
 */
#ifndef GUNZIP_H
#define GUNZIP_H

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

#endif

/*
 * gunzip.h: gzip files to plain ones, damaged or not. The one door to zlib.
 */
#ifndef GUNZIP_H
#define GUNZIP_H

#include "base/base.h"

struct gunzip_report {
    uint64_t in, out; /* bytes read and written */
    bool damaged;     /* it ends early or does not decode to its end: `out` is what came before */
    char reason[96];
};
/* All members of the gzip file at descriptor `from`, from its position on, to descriptor `to`.
 * Damage is no error: what was decoded stands. PL_FAIL when reading or writing fails. */
int gunzip(int from, int to, struct gunzip_report *r, struct error *e);

#endif

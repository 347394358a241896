/*
 * snappy.h: decompresses a block of snappy as a stream, in the memory of its window.
 *
 * A block is a list of literals, which are bytes of the input, and of copies, which repeat bytes of
 * the output. Compressors work in blocks of 64 KiB, so that a copy reaches back less than that; one
 * that reaches back further is refused. libsnappy decodes only whole blocks: a Parquet page of a
 * hundred images would need its hundreds of MiB in every reader thread.
 */
#ifndef SNAPPY_H
#define SNAPPY_H

#include "base/base.h"

enum { SNAPPY_WINDOW = 1 << 16 };

struct snappy {
    const uint8_t *at, *end;
    uint8_t *window;        /* [SNAPPY_WINDOW] the last bytes of the output, byte i at i % SNAPPY_WINDOW */
    uint64_t out;           /* bytes so far */
    uint32_t literal, copy; /* bytes that are left of the element */
    uint32_t offset;        /* of the copy */
};

/* Reads the length of the output, which must be `expected`. */
int snappy_open(struct snappy *s, const uint8_t *in, size_t n, uint8_t *window, uint64_t expected, struct error *e);
/* Decodes the next n bytes; `to` NULL: skips them. PL_USAGE: the input is damaged, or it ends
 * before. */
int snappy_read(struct snappy *s, uint8_t *to, uint64_t n, struct error *e);

#endif

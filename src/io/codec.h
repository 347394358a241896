/*
 * codec.h: the bytes of a compressed block in memory, as a stream: parts that nobody wants are
 * skipped, and memory is that of a window. codec.c decodes snappy; zlib (gunzip.c) and libzstd
 * (zstd.c) decode gzip and zstd.
 */
#pragma once

#include "base/base.h"

enum { SNAPPY_WINDOW = 1 << 16 };

struct snappy {
    const uint8_t *at, *end;
    uint8_t *window;        /* [SNAPPY_WINDOW] the last bytes of the output, byte i at i % SNAPPY_WINDOW */
    uint64_t out;           /* bytes so far */
    uint32_t literal, copy; /* bytes that are left of the element */
    uint32_t offset;        /* of the copy */
};

enum codec_kind { CODEC_NONE, CODEC_SNAPPY, CODEC_GZIP, CODEC_ZSTD };

enum { CODEC_ROOM = 32, CODEC_WINDOW_MOST = 32 << 20 };

struct codec {
    enum codec_kind kind;
    const uint8_t *at, *end; /* of the input */
    uint64_t left;           /* bytes of the output that are to come */
    struct snappy snappy;
    void *state;             /* a library's */
    uint64_t room[CODEC_ROOM]; /* for the state */
    uint8_t window[SNAPPY_WINDOW]; /* of snappy; else what is skipped */
};

/* Opens a stream. `out`: the bytes of the output. The input must stay. The caller calls
 * codec_close after success. PL_USAGE: the beginning is damaged, or its window is larger than
 * CODEC_WINDOW_MOST; PL_FAIL: the program is built without the library. */
int codec_open(struct codec *c, enum codec_kind kind, const void *in, size_t n, uint64_t out, struct error *e);
void codec_close(struct codec *c);
/* Reads the next n bytes; `to` NULL: skips them. PL_USAGE: the input is damaged, or has fewer. */
int codec_read(struct codec *c, void *to, uint64_t n, struct error *e);
/* Returns how far the input is used. */
const uint8_t *codec_at(const struct codec *c);

/* Returns the bytes of memory that a library takes to decode the input to `out` bytes: the window
 * that the input states, and its tables. */
uint64_t codec_memory(enum codec_kind kind, const void *in, size_t n, uint64_t out);

/* A library's decoder. `open` NULL: the program is built without it. */
struct codec_library {
    const char *name;
    uint64_t (*window)(const uint8_t *at, const uint8_t *end); /* that the input states */
    void *(*open)(uint64_t room[CODEC_ROOM],
                  bool bounded); /* the state, which may be in the room; NULL: there is no memory. bounded: no window
                                    may exceed CODEC_WINDOW_MOST */
    void (*close)(void *state);
    /* Decodes into to[n], from *at on, as far as it gets, and returns the number of bytes; -1: the
     * input is damaged. */
    int64_t (*read)(void *state, const uint8_t **at, const uint8_t *end, uint8_t *to, size_t n);
};
extern const struct codec_library codec_gzip, codec_zstd;
/* Returns the version of libzstd; NULL: this build has none. */
const char *zstd_version(void);

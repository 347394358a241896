/*
 * decoder.h: tokens back to text, as a stream: each token is put in, and what is final comes out.
 */
#ifndef DECODER_H
#define DECODER_H

#include "text/tokenizer/finder.h"

enum decode_kind {
    DECODE_BYTE_LEVEL,
    DECODE_REPLACE,
    DECODE_BYTE_FALLBACK,
    DECODE_FUSE,
    DECODE_STRIP,
    DECODE_METASPACE,
    DECODE_SENTENCEPIECE,
    DECODE_WORDPIECE,
    DECODE_SUFFIX,
    DECODE_SPACES
};

struct decode_step {
    enum decode_kind kind;
    bool fused;              /* the input is one string that comes in parts, not one token at a time */
    struct finder find;      /* DECODE_REPLACE */
    /* DECODE_REPLACE, DECODE_STRIP; DECODE_METASPACE: what becomes a blank; DECODE_WORDPIECE: the
     * prefix; DECODE_SUFFIX: the suffix */
    const char *content;
    bool cleanup;            /* DECODE_WORDPIECE: no blank before marks of punctuation and short forms */
    uint32_t start, stop;    /* DECODE_STRIP: characters, at most */
    bool strip_first;        /* DECODE_METASPACE, DECODE_SENTENCEPIECE */
    bool strip_all;          /* DECODE_SENTENCEPIECE: all blanks at the begin */
};

/* Steps, one after the other, at most so many. */
enum { DECODE_STEPS_MOST = 64 };
struct decoder {
    VEC(struct decode_step) steps;
};

/* Reads the "decoder" of a tokenizer.json; null puts a blank between tokens. */
int decoder_read(struct decoder *d, const struct value *v, struct bump *memory, struct error *e);
void decoder_free(struct decoder *d);

/* A text in the making. `whole`: nothing is given out before it is certain that a run of byte
 * tokens is UTF-8. */
struct decoding;
struct decoding *decoding_begin(const struct decoder *d, bool whole);
void decoding_put(struct decoding *s, const char *token, size_t n, struct text *out);
/* Frees `s` as well. */
void decoding_end(struct decoding *s, struct text *out);

#endif

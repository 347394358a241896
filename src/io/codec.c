/*
 * codec.c: see codec.h.
 */
#include "io/codec.h"

/* --- snappy ---------------------------------------------------------------------------------- */

/*
 * This decompresses a block of snappy as a stream, in the memory of its window.
 *
 * A block is a list of literals, which are bytes of the input, and of copies, which repeat bytes of
 * the output. Compressors work in blocks of 64 KiB, so that a copy reaches back less than that; one
 * that reaches back further is refused. libsnappy decodes only whole blocks: a Parquet page of a
 * hundred images would need its hundreds of MiB in every reader thread.
 */

static int damaged(struct error *e, const char *why)
{
    return error_set(e, PL_USAGE, "its snappy data is damaged: %s", why);
}

/* Reads the length of the output, which must be `expected`. */
static int snappy_open(struct snappy *s, const uint8_t *in, size_t n, uint8_t *window, uint64_t expected,
                       struct error *e)
{
    uint64_t length = 0;
    int shift = 0;
    *s = (struct snappy){.at = in, .end = in + n, .window = window};
    do {
        if (s->at == s->end || shift > 28) return damaged(e, "it has no length");
        length |= (uint64_t)(*s->at & 127) << shift;
        shift += 7;
    } while (*s->at++ & 128);
    if (length != expected) return damaged(e, "its length is not that of the page");
    return PL_OK;
}

/* Reads a little-endian number of n bytes. */
static uint32_t number(struct snappy *s, uint32_t n)
{
    uint32_t x = 0;
    for (uint32_t i = 0; i < n; i++) x |= (uint32_t)*s->at++ << 8 * i;
    return x;
}

/* Reads the head of the next element: its kind is in the low two bits of its first byte. */
static int next_element(struct snappy *s, struct error *e)
{
    if (s->at == s->end) return damaged(e, "it ends too early");
    const uint8_t tag = *s->at++, kind = tag & 3;
    const uint32_t extra = kind == 3 ? 4 : kind ? kind : tag >> 2 >= 60 ? (tag >> 2) - 59u : 0;
    if ((size_t)(s->end - s->at) < extra) return damaged(e, "it ends too early");
    if (!kind) {
        s->literal = extra ? number(s, extra) : tag >> 2;
        if (s->literal >= (size_t)(s->end - s->at)) return damaged(e, "a literal is longer than the input");
        s->literal++;
        return PL_OK;
    }
    s->copy = kind == 1 ? (tag >> 2 & 7) + 4u : (tag >> 2) + 1u;
    s->offset = number(s, extra) | (kind == 1 ? (uint32_t)(tag >> 5) << 8 : 0);
    if (!s->offset || s->offset > s->out) return damaged(e, "a copy begins before the output");
    if (s->offset >= SNAPPY_WINDOW) return damaged(e, "a copy reaches back more than 64 KiB");
    return PL_OK;
}

/* Keeps n bytes of output in the window, of a long literal only the end. */
static void remember(struct snappy *s, const uint8_t *from, uint64_t n)
{
    uint64_t begin = n > SNAPPY_WINDOW ? n - SNAPPY_WINDOW : 0;
    for (uint64_t i = begin; i < n;) {
        const size_t at = (s->out + i) % SNAPPY_WINDOW, k = min_u64(n - i, SNAPPY_WINDOW - at);
        memcpy(s->window + at, from + i, k);
        i += k;
    }
    s->out += n;
}

static void take_literal(struct snappy *s, uint8_t *to, uint32_t n)
{
    if (to) memcpy(to, s->at, n);
    remember(s, s->at, n);
    s->at += n;
    s->literal -= n;
}

/* Copies byte by byte, since source and target may overlap: a copy repeats what it has just
 * written. */
static void take_copy(struct snappy *s, uint8_t *to, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++, s->out++) {
        const uint8_t b = s->window[s->out % SNAPPY_WINDOW] = s->window[(s->out - s->offset) % SNAPPY_WINDOW];
        if (to) to[i] = b;
    }
    s->copy -= n;
}

/* Decodes the next n bytes; `to` NULL: skips them. PL_USAGE: the input is damaged, or it ends
 * before. */
static int snappy_read(struct snappy *s, uint8_t *to, uint64_t n, struct error *e)
{
    while (n) {
        if (!s->literal && !s->copy && next_element(s, e)) return e->code;
        const uint32_t k = (uint32_t)min_u64(n, s->literal ? s->literal : s->copy);
        if (s->literal) take_literal(s, to, k);
        else take_copy(s, to, k);
        if (to) to += k;
        n -= k;
    }
    return PL_OK;
}

/* --- streams --------------------------------------------------------------------------------- */

static const struct codec_library *library_of(enum codec_kind kind)
{
    return kind == CODEC_GZIP ? &codec_gzip : &codec_zstd;
}

int codec_open(struct codec *c, enum codec_kind kind, const void *in, size_t n, uint64_t out, struct error *e)
{
    c->kind = kind;
    c->at = in;
    c->end = c->at + n;
    c->left = out;
    c->state = NULL;
    if (kind == CODEC_NONE)
        return n == out ? PL_OK
                        : error_set(e, PL_USAGE, "a block has %zu bytes and claims %llu", n, (unsigned long long)out);
    if (kind == CODEC_SNAPPY) return snappy_open(&c->snappy, in, n, c->window, out, e);
    const struct codec_library *l = library_of(kind);
    if (!l->open)
        return error_set(
            e, PL_FAIL,
            "it is compressed with %s, and the program is built without %s: install lib%s-dev and build it again",
            l->name, l->name, l->name);
    const uint64_t window = l->window(in, c->end);
    if (window > CODEC_WINDOW_MOST && out > CODEC_WINDOW_MOST)
        return error_set(e, PL_USAGE,
                         "its %s data has a window of %llu MiB; expected at most 32: write it again with a lower level "
                         "of compression",
                         l->name, (unsigned long long)(window >> 20));
    c->state = l->open(c->room, out > CODEC_WINDOW_MOST);
    return c->state ? PL_OK : error_set(e, PL_FAIL, "%s has no memory", l->name);
}

uint64_t codec_memory(enum codec_kind kind, const void *in, size_t n, uint64_t out)
{
    enum { TABLES = 128 << 10, BLOCK = 128 << 10 };
    if ((kind != CODEC_GZIP && kind != CODEC_ZSTD) || !library_of(kind)->open) return 0;
    const uint64_t window = min_u64(library_of(kind)->window(in, (const uint8_t *)in + n), out);
    return TABLES + window + 2 * min_u64(window, BLOCK);
}

void codec_close(struct codec *c)
{
    if (c->state) library_of(c->kind)->close(c->state);
    c->state = NULL;
}

static int read_library(struct codec *c, uint8_t *to, uint64_t n, struct error *e)
{
    const struct codec_library *l = library_of(c->kind);
    while (n) {
        const size_t k = (size_t)(to ? n : min_u64(n, sizeof c->window));
        const int64_t got = l->read(c->state, &c->at, c->end, to ? to : c->window, k);
        if (got <= 0) return error_set(e, PL_USAGE, "its %s data is damaged or ends too early", l->name);
        if (to) to += got;
        n -= (uint64_t)got;
    }
    return PL_OK;
}

int codec_read(struct codec *c, void *to, uint64_t n, struct error *e)
{
    if (n > c->left) return error_set(e, PL_USAGE, "a value is longer than its page");
    c->left -= n;
    if (c->kind == CODEC_SNAPPY) return snappy_read(&c->snappy, to, n, e);
    if (c->kind != CODEC_NONE) return read_library(c, to, n, e);
    if (to && n) memcpy(to, c->at, n);
    c->at += n;
    return PL_OK;
}

const uint8_t *codec_at(const struct codec *c) { return c->kind == CODEC_SNAPPY ? c->snappy.at : c->at; }

/*
 * codec.c: see codec.h.
 */
#include "io/codec.h"

#include <string.h>

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

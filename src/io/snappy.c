/*
 * snappy.c: see snappy.h.
 */
#include "io/snappy.h"

#include <string.h>

static int damaged(struct error *e, const char *why)
{
    return error_set(e, PL_USAGE, "its snappy data is damaged: %s", why);
}

int snappy_open(struct snappy *s, const uint8_t *in, size_t n, uint8_t *window, uint64_t expected, struct error *e)
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

int snappy_read(struct snappy *s, uint8_t *to, uint64_t n, struct error *e)
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

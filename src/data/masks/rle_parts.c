/*
 * rle_parts.c: counts the connected parts of a mask of run lengths.
 *
 * A run is cut at the ends of columns into segments. A segment belongs to the same part as each
 * segment of the column before it that it touches, by a side or a corner of a pixel. Parts are
 * trees of segments: `up` leads to the root.
 */
#include "data/masks/rle.h"

struct segment {
    uint32_t x, from, to; /* column; rows from .. to - 1 */
    uint32_t up;          /* index of a segment of the same part; its own: the root */
};

typedef VEC(struct segment) segments;

/* Shortens the way to the root as it goes. */
static uint32_t root(segments *s, uint32_t i)
{
    while (s->at[i].up != i) i = s->at[i].up = s->at[s->at[i].up].up;
    return i;
}

/* Adds a segment, with *before at the first segment of the column before that may touch it. The
 * number of parts grows by one less the parts that it joins. */
static void add(segments *s, uint32_t *before, uint32_t x, uint32_t from, uint32_t to, uint32_t *parts)
{
    const uint32_t n = s->n;
    struct segment fresh = {x, from, to, n};
    vec_push(s, fresh);
    ++*parts;
    while (*before < n && (s->at[*before].x + 1 < x || (s->at[*before].x + 1 == x && s->at[*before].to < from)))
        ++*before;
    for (uint32_t k = *before; k < n && s->at[k].x + 1 == x && s->at[k].from <= to; k++) {
        uint32_t a = root(s, k), b = root(s, n);
        if (a == b) continue;
        s->at[b].up = a;
        --*parts;
    }
}

enum rle_status rle_parts(const struct rle *m, uint32_t *parts)
{
    struct rle_reader r;
    segments s = {0};
    uint32_t at = 0, run, before = 0;
    bool on = false;
    *parts = 0;
    enum rle_status status = rle_open(&r, m);
    for (; !status && !(status = rle_next(&r, &run)); on = !on)
        for (uint32_t end = at + run; at < end;) {
            uint32_t x = at / m->h, stop = (x + 1) * m->h < end ? (x + 1) * m->h : end;
            if (on) add(&s, &before, x, at - x * m->h, stop - x * m->h, parts);
            at = stop;
        }
    vec_free(&s);
    return status == RLE_END ? RLE_OK : status;
}

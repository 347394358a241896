/*
 * reader.c: see reader.h.
 */
#include "data/reader.h"

struct reader {
    const struct reader_kind *kind;
    void *options;
    struct ring *ring;
    void *source;          /* of the last seek */
};

static struct ring_options ring_of(const struct reader_kind *k, const void *options)
{
    struct ring_options o = {.kind = &k->ring, .options = options};
    memcpy(&o.threads, (const char *)options + k->threads, sizeof o.threads);
    memcpy(&o.slots, (const char *)options + k->slots, sizeof o.slots);
    return o;
}

uint64_t reader_bytes(const struct reader_kind *k, const void *options)
{
    const struct ring_options o = ring_of(k, options);
    return ring_bytes(&o);
}

int reader_open(struct reader **out, const struct reader_kind *k, const void *options, void *memory, struct error *e)
{
    struct reader *r = mem_alloc(sizeof *r);
    *r = (struct reader){.kind = k, .options = memcpy(mem_alloc(k->options), options, k->options)};
    const struct ring_options o = ring_of(k, r->options);
    const int rc = ring_open(&r->ring, &o, memory, e);
    if (rc) reader_close(r);
    else *out = r;
    return rc;
}

void reader_close(struct reader *r)
{
    if (!r) return;
    ring_close(r->ring);
    mem_free(r->options);
    mem_free(r);
}

void reader_seek(struct reader *r, void *source, uint64_t position)
{
    const struct sample_order *s = r->source = source;
    ring_seek_part(r->ring, source, (struct ring_part){position, s->each, s->every},
                   s->once ? r->kind->count(source) : UINT64_MAX);
}

bool reader_at(const struct reader *r, const void *source, uint64_t position)
{
    return ring_at(r->ring, source, position);
}

const void *reader_next(struct reader *r, struct error *e)
{
    const void *slot = ring_next(r->ring);
    return r->kind->take(r->source, slot, e) ? NULL : slot;
}

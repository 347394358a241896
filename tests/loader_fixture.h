/*
 * loader_fixture.h: a loader in a block of memory between guards, which close checks.
 */
#pragma once

#include "data/loader.h"
#include "guarded.h"

struct loader_fixture {
    struct reader *l;
    char *at;
    uint64_t bytes;
};

static inline struct loader_fixture loader_fixture_open(const struct loader_options *o)
{
    struct error e = {0};
    struct loader_fixture b = {.bytes = reader_bytes(&loader_kind, o)};
    b.at = guarded_new(NULL, b.bytes);
    must(reader_open(&b.l, &loader_kind, o, b.at, &e), &e);
    return b;
}

static inline void loader_fixture_close(struct loader_fixture *b)
{
    reader_close(b->l);
    guarded_check("loader", "its block", b->at, b->bytes);
    guarded_free(b->at);
}

static inline const struct loader_sample *next_sample(struct loader_fixture *b)
{
    const struct loader_sample *x;
    struct error e = {0};
    if (!(x = reader_next(b->l, &e))) fail_msg("%s", e.text);
    return x;
}

/*
 * fuzz_packed.c: any bytes as a packed store. The checksums are corrected first, so that the checks after
 * them are tested. Every byte that the index of an accepted store points to is read.
 */
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "data/packed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A small input becomes a large file: the header, with version 2 the description of embeddings, then the
 * bytes from PACKED_DATA on. */
static uint8_t *build_store(const uint8_t *data, size_t size, size_t *n)
{
    struct packed_header h = {0};
    struct packed_embeddings x = {0};
    size_t head = size < sizeof h ? size : sizeof h, more = 0;
    memcpy(&h, data, head);
    if (h.version == PACKED_WITH_EMBEDDINGS) {
        more = size - head < sizeof x ? size - head : sizeof x;
        memcpy(&x, data + head, more);
        x.sum = crc32c(0, &x, offsetof(struct packed_embeddings, sum));
    }
    data += more, size -= more;
    *n = PACKED_DATA + (size - head);
    uint8_t *bytes = aligned_alloc(PACKED_ALIGN, align_up(*n, PACKED_ALIGN));
    CHECK(bytes);
    memset(bytes, 0, *n);
    memcpy(bytes + sizeof h, &x, sizeof x);
    memcpy(bytes + PACKED_DATA, data + head, size - head);
    if (h.index <= *n) h.index_sum = crc32c(0, bytes + h.index, *n - (size_t)h.index);
    h.bytes = *n;
    h.header_sum = crc32c(0, &h, offsetof(struct packed_header, header_sum));
    memcpy(bytes, &h, sizeof h);
    return bytes;
}

static uint64_t read_all(const struct packed_file *f, size_t n)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < f->header.samples; i++) {
        const struct packed_sample *s = &f->samples[i];
        size_t bytes = f->head_bytes + s->masks * f->mask_bytes;
        CHECK(!f->embeddings || packed_embedding_bytes(f->embeddings) <= f->embedding_bytes);
        CHECK(s->at <= n && bytes <= n - s->at);
        sum += crc32c(0, f->at + s->at, bytes) + strlen(f->names + s->name) + strlen(f->names + s->key);
        for (uint32_t k = 0; k < s->masks; k++) sum += (uint64_t)f->masks[s->first + k].id;
    }
    if (f->embeddings) sum += strlen(f->embeddings->model);
    for (uint64_t i = 0; i < f->header.categories; i++) sum += strlen(f->names + f->categories[i].name);
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t n;
    struct packed_file f;
    struct error e;
    static volatile uint64_t seen __attribute__((unused));
    uint8_t *bytes = build_store(data, size, &n);
    if (!packed_parse(&f, bytes, n, &e) && f.header.samples < 1000) seen += read_all(&f, n);
    free(bytes);
    return 0;
}

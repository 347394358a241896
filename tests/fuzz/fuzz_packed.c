/*
 * fuzz_packed.c: any bytes as a packed store. The sums are made right first, so that what they
 * guard is tried; of what is accepted every byte that the index points to is read.
 */
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "data/packed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Small inputs stand for large files: the header, with version 2 what is said of embeddings, then
 * what goes from PACKED_DATA on. */
static uint8_t *spread(const uint8_t *data, size_t size, size_t *n)
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
    for (uint64_t i = 0; i < f->header->samples; i++) {
        const struct packed_sample *s = &f->samples[i];
        size_t bytes = f->head_bytes + s->masks * f->mask_bytes;
        CHECK(!f->embeddings || packed_embedding_bytes(f->embeddings) <= f->embedding_bytes);
        CHECK(s->at <= n && bytes <= n - s->at);
        sum += crc32c(0, f->at + s->at, bytes) + strlen(f->names + s->name) + strlen(f->names + s->key);
        for (uint32_t k = 0; k < s->masks; k++) sum += (uint64_t)f->masks[s->first + k].id;
    }
    if (f->embeddings) sum += strlen(f->embeddings->model);
    for (uint64_t i = 0; i < f->header->categories; i++) sum += strlen(f->names + f->categories[i].name);
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t n;
    struct packed_file f;
    struct error e;
    static volatile uint64_t seen __attribute__((unused));
    uint8_t *bytes = spread(data, size, &n);
    if (!packed_parse(&f, bytes, n, &e) && f.header->samples < 1000) seen += read_all(&f, n);
    free(bytes);
    return 0;
}

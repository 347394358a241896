/*
 * fuzz_safetensors.c: any bytes as a header. The input's first 8 bytes are the size of
 * the data, the rest is the JSON. An accepted header must keep the invariants of safetensors.c: the
 * entries tile the data, and every name is found. Built like fuzz_json.c.
 */

#include "io/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_entries(const struct st_file *f)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < f->n_entries; i++) {
        const struct st_entry *t = &f->entries[i];
        CHECK(t->begin == at && t->bytes <= f->data_bytes - at, "a tensor outside of its place");
        at += t->bytes;
        CHECK(st_find(f, t->name) == t, "a tensor that is not found by its name");
        CHECK(t->dtype == DT_NONE || t->bytes == (uint64_t)t->elements * dtype_size(t->dtype), "a wrong length");
        for (int d = 0; d < t->rank; d++) CHECK(t->dims[d] >= 0, "a negative dimension");
    }
    CHECK(at == f->data_bytes, "data that belongs to no tensor");
    for (uint32_t i = 0; i < f->n_metadata; i++)
        CHECK(!strcmp(st_metadata(f, f->metadata[i].key), f->metadata[i].value), "metadata that is not found");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t data_bytes;
    if (size < sizeof data_bytes) return 0;
    memcpy(&data_bytes, data, sizeof data_bytes);
    struct st_file f = {.fd = -1};
    struct error e = {0};
    if (!st_parse_header((const char *)data + 8, size - 8, data_bytes, &f, &e)) check_entries(&f);
    else CHECK(e.code == PL_USAGE && e.text[0], "a failure without a message");
    st_close(&f);
    return 0;
}

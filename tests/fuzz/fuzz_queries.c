/*
 * fuzz_queries.c: any bytes as a file of queries, a table or JSON. Every query has an image and a
 * text, and a failure has a message.
 */

#include "data/formats/queries.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = mem_alloc(size + 1), key[64];
    if (size) memcpy(text, data, size);
    struct queries q;
    struct error e = {0};
    const int rc = queries_parse(&q, text, size, "fuzz", &e);
    CHECK(rc ? rc == PL_USAGE && e.text[0] : q.list.n > 0, "a failure without a message, or nothing at all");
    for (uint32_t i = 0; i < q.list.n; i++) {
        CHECK(*q.list.at[i].image && *q.list.at[i].text && q.list.at[i].line);
        query_image_key(q.list.at[i].image, key, sizeof key);
    }
    queries_free(&q);
    mem_free(text);
    return 0;
}

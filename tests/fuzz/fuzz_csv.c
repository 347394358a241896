/*
 * fuzz_csv.c: any bytes as a CSV table. Every field lies within the text, and the rows come to an
 * end.
 */

#include "data/formats/csv.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = mem_alloc(size + 1);
    if (size) memcpy(text, data, size);
    struct csv c;
    struct error e = {0};
    bool more = true;
    uint32_t line = 0;
    csv_begin(&c, text, size);
    for (;;) {
        if (csv_next(&c, &more, &e)) {
            CHECK(e.code == PL_USAGE && e.text[0], "a failure without a message");
            break;
        }
        if (!more) break;
        CHECK(c.n >= 1 && c.n <= CSV_COLUMNS && c.line > line);
        line = c.line;
        for (uint32_t i = 0; i < c.n; i++)
            CHECK(c.fields[i] >= text && c.fields[i] + strlen(c.fields[i]) <= text + size,
                  "a field outside of the text");
    }
    mem_free(text);
    return 0;
}

/*
 * fuzz_choices.c: any bytes into choices_parse. Each accepted choice is found by its key and
 * survives being written and read back; their number stays within CHOICES_MOST.
 */

#include "cuda/products/autotune_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct choices c = {.lock = -1}, d = {.lock = -1};
    struct text t = {0};
    choices_parse(&c, (const char *)data, size);
    CHECK(c.list.n <= CHOICES_MOST);
    for (uint32_t i = 0; i < c.list.n; i++) {
        CHECK(choices_find(&c, c.list.at[i].key) == &c.list.at[i], "a key twice");
        choice_print(&c.list.at[i], &t);
    }
    if (t.n) choices_parse(&d, t.at, t.n);
    CHECK(d.list.n == c.list.n && !d.skipped && !d.torn, "%u of %u were read back", d.list.n, c.list.n);
    for (uint32_t i = 0; i < d.list.n; i++)
        CHECK(!strcmp(c.list.at[i].key, d.list.at[i].key) &&
              !memcmp(c.list.at[i].number, d.list.at[i].number, sizeof d.list.at[i].number));
    text_free(&t);
    choices_free(&c);
    choices_free(&d);
    return 0;
}

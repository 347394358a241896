/*
 * fuzz_events.c: any bytes as a TensorBoard event file that a resumed run cuts back. The first byte
 * is the step. What is kept is a beginning of the file, and cutting it again keeps all of it. A Git
 * LFS pointer is refused.
 */
#include "train/folder.h"
#include "files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char name[] = "events.out.tfevents.0000000000.plimsoll";
    struct events w;
    struct error e;
    char path[256], *kept, *again;
    size_t n, m;
    fuzz_begin();
    if (!size) return 0;
    const int64_t step = 1 + data[0] % 16;
    snprintf(path, sizeof path, "%s", fuzz_put(name, data + 1, size - 1));
    if (events_open(&w, fuzz_dir, step, &e)) {
        CHECK(strstr(e.text, "Git LFS pointer"), "%s", e.text);
        return 0;
    }
    CHECK(!file_read(path, UINT64_MAX, &kept, &n, &e), "%s", e.text);
    events_close(&w);
    CHECK(n < size && !memcmp(kept, data + 1, n));
    CHECK(!events_open(&w, fuzz_dir, step, &e) && !file_read(path, UINT64_MAX, &again, &m, &e) && m == n);
    CHECK(!events_write(&w, step + 1, &(struct scalar){"loss", 1}, 1, &e));
    events_abandon(&w);
    mem_free(kept);
    mem_free(again);
    return 0;
}

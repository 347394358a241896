/*
 * fuzz_tar.c: any bytes as a tar archive. Every member lies inside the archive, members do not
 * overlap, and reading comes to an end.
 */

#include "data/formats/tar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct tar t;
    struct tar_member m;
    struct error e;
    bool more = true;
    uint64_t end = 0, members = 0;
    tar_open(&t, -1, data, size);
    for (;;) {
        CHECK(!tar_next(&t, &m, &more, &e), "%s", e.text);
        if (!more) break;
        CHECK(m.offset >= end && m.offset <= size && m.size <= size - m.offset, "a member outside of the archive");
        CHECK(memchr(m.name, 0, sizeof m.name), "a name without an end");
        end = m.offset + m.size;
        members++;
    }
    CHECK(t.at >= size - size % TAR_BLOCK && members == t.members && t.lost <= size);
    return 0;
}

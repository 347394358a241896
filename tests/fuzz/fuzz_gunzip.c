/*
 * fuzz_gunzip.c: any bytes as a gzip file. Decompression always ends, and the reported size is the
 * written size. Built like fuzz_json.c.
 */
#include <sys/mman.h>
#include <unistd.h>

#include "io/gunzip.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int from = -1, to = -1;
    if (from < 0) from = memfd_create("in", 0), to = memfd_create("out", 0);
    CHECK(from >= 0 && to >= 0, "no files in memory");
    CHECK(!ftruncate(from, 0) && !ftruncate(to, 0));
    CHECK(pwrite(from, data, size, 0) == (ssize_t)size);
    lseek(from, 0, SEEK_SET);
    lseek(to, 0, SEEK_SET);
    struct gunzip_report r;
    struct error e = {0};
    CHECK(!gunzip(from, to, &r, &e), "%s", e.text);
    CHECK(r.damaged == (r.reason[0] != 0) && lseek(to, 0, SEEK_CUR) == (off_t)r.out, "a wrong report");
    return 0;
}

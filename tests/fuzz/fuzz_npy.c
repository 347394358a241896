/*
 * fuzz_npy.c: any bytes as a .npy file. An accepted header describes bytes of the file.
 */
#include <fcntl.h>
#include <unistd.h>

#include "data/formats/npy.h"
#include "files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct npy_header h = {0};
    struct error e;
    fuzz_begin();
    int fd = open(fuzz_put("a.npy", data, size), O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    if (!npy_read_header(fd, size, &h, &e)) {
        CHECK(h.rank <= NPY_MAX_DIMS && h.data <= size && h.size);
        CHECK(h.count <= (size - h.data) / h.size, "%llu elements", (unsigned long long)h.count);
    }
    close(fd);
    return 0;
}

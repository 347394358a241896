/*
 * fuzz_jpeg.c: any bytes as a JPEG, strictly and tolerantly, at full size and at a quarter.
 * What the reader accepts has the size that the peek at the header told. Built as
 * fuzz_json.c is.
 */
#include "data/jpeg.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_decode(struct jpg *j, const uint8_t *data, size_t size, uint32_t divisor)
{
    struct jpg_header h;
    struct error e = {0};
    uint32_t w, hi;
    uint8_t *p;
    if (jpg_decode(j, data, size, divisor, &w, &hi, &p, &e)) {
        CHECK(e.code == PL_USAGE && e.text[0] && !p, "a failure without a message");
        return;
    }
    if (!jpg_peek(data, size, &h, &e))
        CHECK(w == (h.width + divisor - 1) / divisor && hi == (h.height + divisor - 1) / divisor, "a picture of a wrong size");
    mem_free(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (int tolerant = 0; tolerant < 2; tolerant++) {
        struct jpg *j = jpg_new(&(struct jpg_limits){.pixels = 1 << 18, .memory = 4 << 20, .scans = 8, .tolerant = tolerant});
        try_decode(j, data, size, 1);
        try_decode(j, data, size, 4);
        jpg_free(j);
    }
    return 0;
}

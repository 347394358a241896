/*
 * fuzz_jpeg.c: any bytes as a JPEG, strictly and tolerantly, at full size and at a quarter.
 * An accepted image has the size that jpg_peek found in the header. The strict reader accepts
 * exactly the files that the tolerant one decodes without a warning, and both give the same pixels.
 * Built like fuzz_json.c.
 */

#include "data/images/jpeg.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Returns the pixels, or NULL if the file is refused. */
static uint8_t *decode(struct jpg *j, const uint8_t *data, size_t size, uint32_t divisor, size_t *n)
{
    struct jpg_header h;
    struct error e = {0};
    uint32_t w, hi;
    uint8_t *p;
    if (jpg_decode(j, data, size, divisor, &w, &hi, &p, &e)) {
        CHECK(e.code == PL_USAGE && e.text[0] && !p, "a failure without a message");
        return NULL;
    }
    if (!jpg_peek(data, size, &h, &e))
        CHECK(w == (h.width + divisor - 1) / divisor && hi == (h.height + divisor - 1) / divisor,
              "an image of a wrong size");
    *n = (size_t)w * hi * 3;
    return p;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct jpg_limits limits = {.pixels = 1 << 18, .memory = 4 << 20, .scans = 8};
    struct jpg *strict = jpg_new(&limits);
    limits.tolerant = true;
    struct jpg *tolerant = jpg_new(&limits);
    for (uint32_t divisor = 1; divisor <= 4; divisor *= 2) {
        size_t n, m;
        uint8_t *p = decode(strict, data, size, divisor, &n), *q = decode(tolerant, data, size, divisor, &m);
        CHECK(!p == (!q || jpg_warnings(tolerant)), "one reader takes what the other one refuses");
        CHECK(!p || (n == m && !memcmp(p, q, n)), "two readers give two images");
        mem_free(p);
        mem_free(q);
    }
    jpg_free(strict);
    jpg_free(tolerant);
    return 0;
}

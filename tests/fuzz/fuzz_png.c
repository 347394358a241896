/*
 * fuzz_png.c: any bytes as a PNG, in all modes of png_decode. A decoded image must have the size in
 * its header and survive being written and read back. Built like fuzz_json.c.
 */

#include "io/png.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PIXELS = 1 << 16 };

static void check_round_trip(const struct png_pixels *p)
{
    struct text t = {0};
    struct png_pixels again;
    struct error e;
    enum png_kind kind = p->channels == 1 ? PNG_GREY : p->channels == 3 ? PNG_RGB : PNG_RGBA;
    CHECK(!png_encode(&t, kind, p->width, p->height, p->at, 0, &e), "%s", e.text);
    CHECK(!png_decode(t.at, t.n, PNG_AS_STORED, 0, NULL, 0, &again, &e), "%s", e.text);
    CHECK(again.bytes == p->bytes && !memcmp(again.at, p->at, p->bytes), "a PNG that does not come back equal");
    mem_free(again.at);
    text_free(&t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (enum png_as as = PNG_AS_STORED; as <= PNG_AS_RGBA; as++) {
        struct png_pixels p;
        struct error e = {0};
        if (png_decode(data, size, as, PIXELS, NULL, 0, &p, &e)) {
            CHECK(e.code == PL_USAGE && e.text[0] && !p.at, "a failure without a message");
            continue;
        }
        CHECK(p.bytes == (size_t)p.width * p.height * p.channels * (p.depth / 8), "an image of a wrong size");
        CHECK(as != PNG_AS_LABELS || p.channels == 1, "labels of %u channels", p.channels);
        if (p.depth == 8 && p.channels != 2) check_round_trip(&p);
        mem_free(p.at);
    }
    return 0;
}

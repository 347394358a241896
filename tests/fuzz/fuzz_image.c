/*
 * fuzz_image.c: any bytes as an image of any format. The first byte chooses what becomes of alpha. A decoded
 * image has the size that image_peek found, in a buffer of the bytes that it asked for. Built like fuzz_json.c.
 */
#include "data/image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PIXELS = 1 << 16 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size) return 0;
    const struct image_options o = {.on_white = data[0] & 1, .range = {.kind = data[0] & 2 ? RANGE_FULL : RANGE_AUTO}};
    struct image i;
    struct error e = {0};
    uint32_t w, h;
    size_t room;
    data++, size--;
    if (image_peek(data, size, &o, &w, &h, &room, &e)) {
        CHECK(e.code == PL_USAGE && e.text[0], "a failure without a message");
        return 0;
    }
    CHECK(w && h && room >= (size_t)w * h * 3, "too little room for %ux%u", w, h);
    if ((uint64_t)w * h > PIXELS) return 0;
    uint8_t *to = mem_alloc(room);
    if (image_decode(&i, data, size, &o, to, room, &e)) CHECK((e.code == PL_USAGE || e.code == PL_NOFIT) && e.text[0] && !i.rgb, "a failure without a message");
    else CHECK(i.width == w && i.height == h && i.rgb == to, "an image of a wrong size");
    mem_free(to);
    return 0;
}

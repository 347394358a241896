/*
 * fuzz_image.c: any bytes as an image of any format, or as base64. The first byte chooses, and what
 * becomes of alpha. A decoded image has the size that image_peek found, in a buffer of the bytes
 * that it asked for. What base64 gives survives being encoded and decoded. Built like fuzz_json.c.
 */

#include "base/coding.h"
#include "data/images/image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PIXELS = 1 << 16 };

static void check_base64(const char *text, size_t n)
{
    size_t bad;
    char *bytes = mem_alloc(n / 4 * 3 + 3);
    int64_t got = base64_decode(bytes, text, n, &bad);
    CHECK(got <= (int64_t)(n / 4 * 3 + 3) && (got >= 0 || bad <= n), "base64 of %zu characters gives %lld bytes", n,
          (long long)got);
    if (got > 0) {
        struct text t = {0};
        base64_encode(&t, bytes, (size_t)got);
        char *again = mem_alloc(t.n / 4 * 3 + 3);
        CHECK(base64_decode(again, t.at, t.n, &bad) == got && !memcmp(again, bytes, (size_t)got),
              "base64 does not come back");
        mem_free(again);
        text_free(&t);
    }
    mem_free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size) return 0;
    if (data[0] & 4) {
        check_base64((const char *)data + 1, size - 1);
        return 0;
    }
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
    if (image_decode(&i, data, size, &o, to, room, &e))
        CHECK((e.code == PL_USAGE || e.code == PL_NOFIT) && e.text[0] && !i.rgb, "a failure without a message");
    else CHECK(i.width == w && i.height == h && i.rgb == to, "an image of a wrong size");
    mem_free(to);
    return 0;
}

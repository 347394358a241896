/*
 * fuzz_tiff.c: any bytes as a TIFF: every page that is listed has a size, and its decoding stays
 * inside of the room that it asked for.
 */

#include "data/images/tiff.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 4 << 20, PAGES = 4 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct tiff_source s = {.bytes = data, .n = size};
    struct tiff_pages l;
    struct error e = {0};
    if (tiff_list(&l, &s, &e)) {
        CHECK(e.code == PL_USAGE && e.text[0] && !l.pages.n, "a failure without a message");
        return 0;
    }
    for (uint32_t i = 0; i < l.pages.n && i < PAGES; i++) {
        const struct tiff_page *p = &l.pages.at[i];
        CHECK(p->w && p->h && (p->channels == 1 || p->channels == 3), "a page of %ux%ux%u", p->w, p->h, p->channels);
        for (int labels = 0; labels < 2; labels++) {
            const size_t room = tiff_room(p, labels);
            if (room > MOST) continue;
            void *to = mem_alloc(room);
            struct plane plane;
            if (!tiff_read(&s, p, labels, to, room, &plane, &e)) {
                uint8_t *rgb = mem_alloc((size_t)plane.w * plane.h * 3);
                const double window[2] = {0, 255};
                int bytes;
                plane_to_rgb(&plane, window, -1, rgb);
                plane_to_labels(&plane, &bytes, &e);
                mem_free(rgb);
            }
            mem_free(to);
        }
    }
    vec_free(&l.pages);
    return 0;
}

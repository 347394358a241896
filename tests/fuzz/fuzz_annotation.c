/*
 * fuzz_annotation.c: any bytes as an annotation file. In an accepted file the shapes point into the
 * text and have the image's size; a refused file gives an error message.
 */
#include "data/masks/annotation.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { ROOM = 32 };
    struct mask masks[ROOM];
    struct annotation a;
    struct error e = {0};
    const char *text = (const char *)data;
    enum data_fault f = annotation_read(text, size, &a, masks, ROOM, &e);
    CHECK(a.masks <= ROOM);
    if (f) {
        CHECK(e.code == PL_USAGE && e.text[0], "a failure without a message");
        return 0;
    }
    for (uint32_t i = 0; i < a.masks; i++) {
        const struct shape *s = &masks[i].shape;
        const char *at = s->rle.at;
        CHECK(s->kind == SHAPE_RLE && s->h == a.h && s->w == a.w && at >= text &&
              s->rle.n <= size - (size_t)(at - text));
        struct rle_facts facts;
        if (!rle_measure(&s->rle, &facts)) CHECK(facts.area <= s->h * s->w);
    }
    return 0;
}

/*
 * fuzz_coco.c: any bytes as an instances file. Every annotation that is kept lies in the text and
 * belongs to an image; its shape becomes a mask or a fault.
 */

#include "data/masks/annotation.h"
#include "data/formats/coco.h"
#include "data/masks/polygon.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_mask(const char *text, const struct coco_annotation *a, const struct coco_image *image)
{
    static uint32_t memory[3 * 256];
    struct polygon_scratch p;
    struct mask m;
    struct scan s = scan_begin(text + a->at, a->bytes);
    struct rle runs;
    struct rle_facts f;
    CHECK(annotation_scan_mask(&s, &m) && scan_finish(&s) && m.image == image->id, "an annotation that is another");
    polygon_init(&p, memory, 256);
    if (m.shape.kind != SHAPE_POLYGONS || (uint64_t)image->w * image->h > 1 << 16) return;
    if (polygons_union(m.shape.polygons.at, m.shape.polygons.n, image->h, image->w, &p, &runs)) return;
    CHECK(!rle_measure(&runs, &f) && f.area <= image->w * image->h, "a mask that is none");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct coco_table t;
    struct error e = {0};
    char *only[] = {"cat"};
    struct coco_filter f = {only, size % 2, size % 3 == 0};
    const char *text = (const char *)data;
    int rc = coco_parse(text, size, &f, &t, &e);
    if (rc) CHECK(rc == PL_USAGE && e.text[0], "a failure without a message");
    for (uint32_t i = 0; i < t.images.n && !rc; i++) {
        const struct coco_image *m = &t.images.at[i];
        CHECK(m->n && m->first <= t.annotations.n && m->n <= t.annotations.n - m->first && m->name < t.names.n);
        for (uint32_t k = 0; k < m->n; k++) {
            const struct coco_annotation *a = &t.annotations.at[m->first + k];
            CHECK(a->at <= size && a->bytes <= size - a->at && a->image == m->id);
            check_mask(text, a, m);
        }
    }
    coco_free(&t);
    return 0;
}

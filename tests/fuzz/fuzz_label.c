/*
 * fuzz_label.c: any bytes as a label image, PNG or JPEG. The first byte chooses the meaning of its
 * values. The boxes and areas of all masks lie inside of the image.
 */
#include "data/masks/label.h"
#include "files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SCRATCH = 4 << 20, MASKS = 300 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct mask masks[MASKS];
    static struct label_facts facts;
    static uint64_t scratch[SCRATCH / sizeof(uint64_t)];
    static const int64_t values[] = {1, 2, 255, 40000};
    struct dataset_masks found = {0};
    struct label_image image;
    struct error e;
    fuzz_begin();
    if (!size) return 0;
    const char *path = fuzz_put("a.png", data + 1, size - 1);
    struct label_options o = {.kind = 1 + data[0] % 3, .ignore = data[0] & 4 ? 255 : 0,
                              .threshold = data[0] & 8 ? 100 : 0, .one_value = data[0] & 16};
    if (data[0] & 32) o.values = values, o.n_values = COUNT(values);
    if (!label_read(path, &o, scratch, SCRATCH, masks, MASKS, &found, &e)) {
        CHECK(found.n <= MASKS && found.h && found.w);
        for (uint32_t i = 0; i < found.n; i++) {
            const struct mask *m = &masks[i];
            CHECK(m->area > 0 && m->area <= (double)found.h * found.w && m->box[0] >= 0 && m->box[1] >= 0 &&
                  m->box[0] + m->box[2] <= found.w && m->box[1] + m->box[3] <= found.h);
        }
    }
    if (!label_decode(path, scratch, SCRATCH, &image, &e)) label_look(&image, o.ignore, &facts);
    return 0;
}

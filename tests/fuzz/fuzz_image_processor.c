/*
 * fuzz_image_processor.c: any text as preprocessor_config.json or processor_config.json; the first
 * byte chooses the family. A processor that is accepted processes images of any shape. Built like
 * fuzz_json.c.
 */
#include "data/images/image_processor.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 1 << 22 };

static void process(const struct image_processor *p, uint32_t width, uint32_t height)
{
    uint32_t rows, columns, h, w, count = image_processor_count(p, width, height, &rows, &columns);
    size_t room = image_processor_scratch(p, width, height);
    image_processor_size(p, &h, &w);
    CHECK(count >= 1 && h && w && (count == 1 || count == rows * columns + 1), "%u images of %ux%u", count, w, h);
    if (room > MOST || (uint64_t)count * h * w > MOST / 256) return;
    uint8_t *rgb = mem_alloc((size_t)width * height * 3);
    void *scratch = mem_alloc(room);
    uint8_t *to = mem_alloc((size_t)count * 3 * h * w);
    image_processor_run(p, rgb, width, height, scratch, room, to);
    mem_free(rgb);
    mem_free(scratch);
    mem_free(to);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct image_processor p;
    struct error e = {0};
    if (!size) return 0;
    if (image_processor_parse(&p, (const char *)data + 1, size - 1, "p.json", (enum image_family)(data[0] % 7), 0,
                              &e)) {
        CHECK(e.code == PL_USAGE && e.text[0], "a failure without a message");
        return 0;
    }
    for (int beside = 0; beside < 2; beside++) {
        process(&p, 1, 1);
        process(&p, 7, 3);
        process(&p, 1, 40);
        process(&p, 33, 20);
        p = image_processor_beside(&p);
    }
    return 0;
}

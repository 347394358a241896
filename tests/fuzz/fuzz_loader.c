/*
 * fuzz_loader.c: the loader over hostile samples: any bytes as the annotations of a sound image, or
 * as the image of sound annotations; the first byte chooses, and sets strategy and augmentation.
 * Masks lie on the grid.
 */
#include <sys/stat.h>

#include "data/loader.h"
#include "files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SIDE = 32, CELLS = 16, MASKS = 4, ROOM = 1 << 18, SAMPLES = 3 };

/* Grey, 16 x 8 pixels, all of one value. */
static const uint8_t image[] = {
    0xff, 0xd8, 0xff, 0xdb, 0,  67,   0, 1, 1,    1,    1,  1,  1,    1,    1,    1, 1,  1, 1, 1,    1,
    1,    1,    1,    1,    1,  1,    1, 1, 1,    1,    1,  1,  1,    1,    1,    1, 1,  1, 1, 1,    1,
    1,    1,    1,    1,    1,  1,    1, 1, 1,    1,    1,  1,  1,    1,    1,    1, 1,  1, 1, 1,    1,
    1,    1,    1,    1,    1,  1,    1, 1, 0xff, 0xc0, 0,  11, 8,    0,    8,    0, 16, 1, 1, 0x11, 0,
    0xff, 0xc4, 0,    20,   0,  1,    0, 0, 0,    0,    0,  0,  0,    0,    0,    0, 0,  0, 0, 0,    0,
    0,    0xff, 0xc4, 0,    20, 0x10, 1, 0, 0,    0,    0,  0,  0,    0,    0,    0, 0,  0, 0, 0,    0,
    0,    0,    0xff, 0xda, 0,  8,    1, 1, 0,    0,    63, 0,  0x0f, 0xff, 0xd9,
};
static const char text[] =
    "{\"image\": {\"image_id\": 1, \"width\": 16, \"height\": 8, \"file_name\": \"a.jpg\"}, \"annotations\": [{\"id\": "
    "7, \"segmentation\": {\"size\": [8, 16], \"counts\": [40, 8, 80]}, "
    "\"bbox\": [5, 0, 1, 8], \"area\": 8, \"predicted_iou\": 0.9, \"stability_score\": 0.9, \"crop_box\": [0, 0, 16, "
    "8], \"point_coords\": [[5, 4]]}]}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void *memory;
    const struct loader_options o =
        {.side = SIDE, .cells = CELLS, .masks = MASKS, .threads = 1, .slots = 2, .room = ROOM, .least = 0.5};
    char path[128], *paths[] = {path};
    struct dataset *set;
    struct reader *l;
    struct error e;
    snprintf(path, sizeof path, "%s/data", fuzz_dir);
    if (fuzz_begin()) {
        snprintf(path, sizeof path, "%s/data", fuzz_dir);
        CHECK(!mkdir(path, 0777));
        memory = aligned_alloc(64, align_up(reader_bytes(&loader_kind, &o), 64));
        CHECK(memory);
        fuzz_put("data/a.jpg", image, sizeof image), fuzz_put("data/a.json", text, sizeof text - 1);
    }
    if (!size) return 0;
    const bool as_image = data[0] & 1;
    fuzz_put(as_image ? "data/b.jpg" : "data/b.json", data + 1, size - 1);
    fuzz_put(as_image ? "data/b.json" : "data/b.jpg", as_image ? (const void *)text : image,
             as_image ? sizeof text - 1 : sizeof image);
    CHECK(!dataset_open(&set, &(struct dataset_options){.format = "sa1b", .paths = paths, .n_paths = 1}, &e), "%s",
          e.text);
    CHECK(!reader_open(&l, &loader_kind, &o, memory, &e), "%s", e.text);
    struct loader_source s = {.set = set, .order.seed = 3, .order.shuffle = data[0] & 2, .order.once = data[0] & 4,
                              .interior = true, .order.max_bad = 1, .order.quiet = true,
                              .sampler = {.strategy = data[0] >> 5 > SAMPLE_ALL ? SAMPLE_RANDOM : data[0] >> 5,
                                          .max_masks = MASKS}};
    if (data[0] & 8) s.augment = (struct loader_augment){.flip = 0.5, .scale = 0.5, .crop = 0.5};
    reader_seek(l, &s, 0);
    for (int i = 0; i < SAMPLES - (s.order.once ? 1 : 0); i++) {
        const struct loader_sample *x;
        if (!(x = reader_next(l, &e))) break;
        CHECK(x->n <= MASKS && x->rows <= SIDE && x->columns <= SIDE && x->mask_rows <= CELLS &&
              x->mask_columns <= CELLS);
        for (uint32_t k = 0; k < x->n; k++) {
            const struct loader_mask *m = &x->masks[k];
            CHECK(m->area && m->w && m->h && m->x + m->w <= CELLS && m->y + m->h <= CELLS && m->interior[0] < CELLS &&
                  m->interior[1] < CELLS);
        }
    }
    reader_close(l);
    dataset_close(set);
    return 0;
}

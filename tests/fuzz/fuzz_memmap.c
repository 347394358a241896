/*
 * fuzz_memmap.c: any bytes as the index of a memory map, with a file of masks beside it. Every mask
 * of an accepted index is read.
 */

#include "data/formats/memmap.h"
#include "io/file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MASKS = 64, BYTES = 4096 };
static char dir[64], index_path[96];

static void clean(void)
{
    struct error ignored;
    tree_remove(dir, &ignored);
}

static void put(const char *name, const void *bytes, size_t n)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(bytes, 1, n, f) == n && !fclose(f));
}

/* Writes the file of masks: empty masks, full masks (as 1 and as 255), and one with two values. */
static void begin(void)
{
    static uint8_t masks[BYTES];
    static const uint8_t jpg[] = {0xff, 0xd8, 0xff, 0xc0, 0,    17, 8, 0,    20, 0,    30,  3,
                                  1,    0x22, 0,    2,    0x11, 1,  3, 0x11, 1,  0xff, 0xd9};
    strcpy(dir, "/tmp/plimsoll-fuzz-XXXXXX");
    CHECK(mkdtemp(dir));
    atexit(clean);
    memset(masks + BYTES / 4, 1, BYTES / 4);
    memset(masks + BYTES / 2, 255, BYTES / 4);
    masks[BYTES - 1] = 1, masks[BYTES - 2] = 2;
    put("masks.u8", masks, sizeof masks);
    put("a.jpg", jpg, sizeof jpg);
    snprintf(index_path, sizeof index_path, "%s/index.json", dir);
    log_quiet(true);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct mask masks[MASKS];
    char *paths[] = {index_path};
    struct dataset *d;
    struct error e;
    if (!*dir) begin();
    put("index.json", data, size);
    if (dataset_open(&d, &(struct dataset_options){.format = "packed", .paths = paths, .n_paths = 1}, &e)) return 0;
    for (uint64_t i = 0; i < dataset_count(d) && i < 100; i++) {
        struct dataset_masks found;
        if (dataset_masks(d, i, NULL, 0, masks, MASKS, &found, &e)) continue;
        CHECK(found.n <= MASKS && found.h && found.w);
        for (uint32_t k = 0; k < found.n; k++) CHECK(masks[k].area > 0 && masks[k].shape.cells.id);
    }
    dataset_close(d);
    return 0;
}

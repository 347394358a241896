/*
 * fuzz_table.c: any bytes as a table of images, questions and answers (data/formats/csv_set.c). It
 * becomes samples with texts, or a message.
 */
#include "data/dataset.h"
#include "files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (fuzz_begin()) {
        struct error e;
        char folder[128];
        static const char *const folders[] = {"a", "a/images", "a/masks"};
        for (size_t i = 0; i < COUNT(folders); i++) {
            snprintf(folder, sizeof folder, "%s/%s", fuzz_dir, folders[i]);
            CHECK(!dir_make(folder, &e), "%s", e.text);
        }
        fuzz_put("a/images/1.jpg", "i", 1);
        fuzz_put("a/masks/1.png", "m", 1);
    }
    char path[256];
    snprintf(path, sizeof path, "%s", fuzz_put("t.csv", data, size));
    char *paths[] = {path};
    struct dataset_options o = {.format = "csv",
                                .paths = paths,
                                .n_paths = 1,
                                .texts = size % 2,
                                .labels = LABELS_BINARY};
    struct dataset *d;
    struct error e = {0};
    if (dataset_open(&d, &o, &e)) {
        CHECK(e.code == PL_USAGE && e.text[0], "a failure without a message");
        return 0;
    }
    for (uint64_t i = 0; i < dataset_count(d); i++)
        for (enum dataset_text k = 0; k < DATASET_TEXTS; k++)
            CHECK(!o.texts || (dataset_text(d, i, k) && *dataset_text(d, i, k)), "a sample without a text");
    dataset_close(d);
    return 0;
}

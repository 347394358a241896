/*
 * fuzz_packed.c: any bytes as a packed store. The checksums are corrected first, so that the checks
 * after them are tested. Every byte that the index of an accepted store points to is read; then the
 * store is opened as the file of a dataset, and every sample is read as training reads it;
 * only embeddings by the references of their images.
 */
#include "base/coding.h"
#include "data/dataset.h"
#include "data/formats/packed.h"
#include "data/images/image_files.h"
#include "files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A small input becomes a large file: the header, with versions 2 to 4 the description of
 * embeddings, then the bytes from PACKED_DATA on. */
static uint8_t *build_store(const uint8_t *data, size_t size, size_t *n)
{
    struct packed_header h = {0};
    struct packed_embeddings x = {0};
    size_t head = size < sizeof h ? size : sizeof h, more = 0;
    memcpy(&h, data, head);
    if (h.version >= PACKED_WITH_EMBEDDINGS && h.version <= PACKED_ANY_SIZE) {
        more = size - head < sizeof x ? size - head : sizeof x;
        memcpy(&x, data + head, more);
        x.sum = crc32c(0, &x, offsetof(struct packed_embeddings, sum));
    }
    data += more, size -= more;
    *n = PACKED_DATA + (size - head);
    uint8_t *bytes = aligned_alloc(PACKED_ALIGN, align_up(*n, PACKED_ALIGN));
    CHECK(bytes);
    memset(bytes, 0, *n);
    memcpy(bytes + sizeof h, &x, sizeof x);
    memcpy(bytes + PACKED_DATA, data + head, size - head);
    if (h.index <= *n) h.index_sum = crc32c(0, bytes + h.index, *n - (size_t)h.index);
    h.bytes = *n;
    h.header_sum = crc32c(0, &h, offsetof(struct packed_header, header_sum));
    memcpy(bytes, &h, sizeof h);
    return bytes;
}

static uint64_t read_all(const struct packed_file *f, size_t n)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < f->header.samples; i++) {
        const struct packed_sample *s = &f->samples[i];
        const bool alone = f->header.version >= PACKED_EMBEDDINGS_ALONE;
        size_t bytes = !alone     ? f->head_bytes + s->masks * f->mask_bytes
                       : s->fault ? 0
                                  : s->count * packed_embedding_bytes(f->embeddings);
        CHECK(!f->embeddings || packed_embedding_bytes(f->embeddings) <= f->embedding_bytes);
        CHECK(s->at <= n && bytes <= n - s->at);
        sum += crc32c(0, f->at + s->at, bytes) + strlen(f->names + s->name) + strlen(f->names + s->key);
        for (uint32_t k = 0; k < s->masks; k++) sum += (uint64_t)f->masks[s->first + k].id;
    }
    if (f->embeddings) sum += strlen(f->embeddings->model);
    for (uint64_t i = 0; i < f->header.categories; i++) sum += strlen(f->names + f->categories[i].name);
    return sum;
}

/* All samples through the dataset; `by_category`: only masks of a category of the store. */
static uint64_t read_dataset(char *path, const struct packed_file *f, bool by_category)
{
    enum { MASKS = 64 };
    static struct mask masks[MASKS];
    char *categories[] = {f->header.categories ? (char *)f->names + f->categories[0].name : "1"};
    struct dataset *d;
    struct error e;
    uint64_t sum = 0;
    if (dataset_open(&d,
                     &(struct dataset_options){.format = "packed",
                                               .paths = &path,
                                               .n_paths = 1,
                                               .categories = categories,
                                               .n_categories = by_category},
                     &e)) {
        CHECK(*e.text);
        return 0;
    }
    CHECK(dataset_count(d) == f->header.samples);
    for (uint64_t i = 0; i < dataset_count(d); i++) {
        struct dataset_image image;
        struct dataset_masks found;
        char name[64];
        dataset_name(d, i, name, sizeof name);
        dataset_prefetch(d, i);
        sum += (uint64_t)dataset_check(d, i, &e) + strlen(name);
        if (!dataset_image(d, i, NULL, 0, &image, &e))
            for (uint32_t y = 0; y < image.h; y++)
                sum += crc32c(0, image.pixels + y * image.stride, (size_t)image.w * 3);
        if (!dataset_masks(d, i, NULL, 0, masks, MASKS, &found, &e))
            for (uint32_t k = 0; k < found.n; k++) {
                const char *category = dataset_category(d, masks[k].category);
                sum += category ? strlen(category) : 0;
            }
        if (dataset_embeddings(d))
            sum += crc32c(0, dataset_embedding(d, i), packed_embedding_bytes(dataset_embeddings(d)));
    }
    CHECK(!dataset_intact(d, &e), "%s", e.text);
    dataset_close(d);
    return sum;
}

/* A store of only embeddings, as where conversations have their images. */
static uint64_t read_outputs(const char *path, const struct packed_file *f)
{
    struct image_files *files;
    struct error e;
    uint64_t sum = 0, bytes;
    if (image_files_open(&files, &(struct image_scope){.where = path}, &e)) {
        CHECK(*e.text);
        return 0;
    }
    for (uint64_t i = 0; i < f->header.samples; i++) {
        const char *name = f->names + f->samples[i].name;
        struct packed_output x;
        uint32_t replaced;
        CHECK(packed_find(image_files_store(files), name, &x) || !strncmp(name, "data:", 5) || strlen(name) > 1024);
        if (image_files_output(files, name, &x, &e)) continue;
        const size_t n = x.count * packed_embedding_bytes(f->embeddings);
        void *to = x.fault ? NULL : mem_alloc(n);
        const enum data_fault fault = image_files_embeddings(files, name, x.count, to, n, &replaced, &e);
        sum += fault ? strlen(e.text) : crc32c(0, to, n);
        sum += (uint64_t)image_files_find(files, name, &bytes, &e) +
               (uint64_t)image_files_read(files, name, NULL, 0, &(size_t){0}, &e);
        mem_free(to);
    }
    image_files_close(files);
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t n;
    struct packed_file f;
    struct error e;
    static volatile uint64_t seen __attribute__((unused));
    uint8_t *bytes = build_store(data, size, &n);
    fuzz_begin();
    if (!packed_parse(&f, bytes, n, &e) && f.header.samples < 1000) {
        struct packed_header header;
        struct packed_embeddings embeddings;
        char *path = mem_string(fuzz_put("a.pack", bytes, n));
        seen += read_all(&f, n);
        CHECK(!packed_peek(path, &header, &embeddings, &e) && header.samples == f.header.samples, "%s", e.text);
        seen += read_dataset(path, &f, false) + read_dataset(path, &f, true);
        if (f.header.version >= PACKED_EMBEDDINGS_ALONE) seen += read_outputs(path, &f);
        mem_free(path);
    }
    free(bytes);
    return 0;
}

/*
 * test_packed.c: a packed store gives the batches of the files that it was made from, bit for bit;
 * damage is rejected; an index with a memory map reads as it was written.
 */
#include <fcntl.h>

#include "base/coding.h"
#include "cli/data.h"
#include "data/masks/grid.h"
#include "data/loader.h"
#include "data/formats/packed.h"
#include "data/prepare/prepare.h"
#include "data/formats/tar.h"
#include "data/images/image_files.h"
#include "io/file.h"

#include "loader_fixture.h"

enum { N = 24, W = 200, H = 150, SIDE = 96, CELLS = 48, M = 5 };

static char dir[64], tar[128], store[128], map[128];

static int pack(char *const *more)
{
    char *argv[16] = {tar, NULL};
    int argc = 1;
    struct error e = {0};
    while (more[argc - 1]) argv[argc] = more[argc - 1], argc++;
    int rc = command_run(&data_pack, argc, argv, &e);
    if (rc) print_message("%s\n", e.text);
    return rc;
}

/* Landscape and portrait images, larger and smaller than the canvas. */
static int setup(void **state)
{
    struct error e;
    log_quiet(true);
    strcpy(dir, "/tmp/plimsoll-packed-XXXXXX");
    if (!mkdtemp(dir)) return -1;
    snprintf(tar, sizeof tar, "%s/sa.tar", dir);
    snprintf(store, sizeof store, "%s/sa.pack", dir);
    snprintf(map, sizeof map, "%s/map", dir);
    struct tar_writer w = {.fd = open(tar, O_CREAT | O_TRUNC | O_WRONLY, 0666)};
    for (uint64_t i = 0; i < N; i++) {
        struct synth_scene scene;
        struct text half[2] = {{0}};
        uint32_t shrink = i % 3 ? 1 : 4;
        struct synth_options o = {.seed = 3,
                                  .width = (i % 2 ? W : H) / shrink,
                                  .height = (i % 2 ? H : W) / shrink,
                                  .masks = 9};
        char member[64];
        synth_draw(&scene, &o, i);
        synth_json(&scene, &half[1]);
        if (synth_jpeg(&scene, &half[0], &e)) fail_msg("%s", e.text);
        for (int k = 0; k < 2; k++) {
            snprintf(member, sizeof member, "./sa_%d.%s", (int)i + 1, k ? "json" : "jpg");
            if (tar_write_member(&w, member, half[k].at, half[k].n, &e)) fail_msg("%s", e.text);
            text_free(&half[k]);
        }
        synth_free(&scene);
    }
    assert_int_equal(tar_write_end(&w, &e), PL_OK);
    close(w.fd);
    char *packed[] = {"-o", store, "--size", "96", "--masks-size", "48", NULL},
         *mapped[] = {"-o", map, "--size", "96", "--masks-size", "48", "--layout", "memmap", NULL};
    return pack(packed) || pack(mapped);
}

static int teardown(void **state)
{
    struct error e;
    tree_remove(dir, &e);
    return 0;
}

static struct dataset *open_dataset(const char *format, char *path, double fraction)
{
    struct dataset *d;
    struct error e;
    struct dataset_options o = {.format = format, .paths = &path, .n_paths = 1,
                                .split = {.fraction = fraction, .rest = true, .seed = 4}};
    if (dataset_open(&d, &o, &e)) fail_msg("%s", e.text);
    return d;
}

static struct loader_fixture open_loader(uint32_t side, uint32_t cells)
{
    struct loader_options o = {.side = side, .cells = cells, .masks = M, .threads = 2, .slots = 3, .room = 1 << 20,
                               .least = 0.5, .moves = true};
    return loader_fixture_open(&o);
}

/* --- the tests ---------------------------------------------------------------------------- */

TEST(test_same_batches)
{
    const enum sampler_strategy strategies[] = {SAMPLE_RANDOM, SAMPLE_DIVERSE, SAMPLE_QUALITY, SAMPLE_SIZE_BALANCED};
    struct dataset *from = open_dataset("sa1b", tar, 0.25), *to = open_dataset("packed", store, 0.25);
    assert_int_equal(dataset_count(from), dataset_count(to));
    struct loader_fixture a = open_loader(SIDE, CELLS), b = open_loader(SIDE, CELLS);
    struct loader_source s[COUNT(strategies)], t[COUNT(strategies)]; /* threads read a source until the next seek */
    for (size_t k = 0; k < COUNT(strategies); k++) {
        s[k] = (struct loader_source){.set = from, .order.seed = 5, .order.shuffle = true, .interior = true,
                                      .order.max_bad = 0,
                                      .sampler = {.strategy = strategies[k], .max_masks = M, .min_iou = 0.9f,
                                                  .max_area = 0.5}};
        t[k] = s[k];
        t[k].set = to;
        reader_seek(a.l, &s[k], 0);
        reader_seek(b.l, &t[k], 0);
        uint64_t before = mem_allocations();
        for (uint64_t i = 0; i < 2 * dataset_count(from); i++) {
            const struct loader_sample *x = next_sample(&a), *y = next_sample(&b);
            assert_memory_equal(x->image, y->image, SIDE * SIDE * 3);
            assert_memory_equal(x->bits, y->bits, M * grid_mask_bytes(CELLS, CELLS));
            assert_int_equal(x->n, y->n);
            assert_memory_equal(x->masks, y->masks, x->n * sizeof *x->masks);
            assert_true(x->rows == y->rows && x->columns == y->columns && x->height == y->height &&
                        x->width == y->width);
            assert_true(x->mask_rows == y->mask_rows && x->mask_columns == y->mask_columns && x->sample == y->sample &&
                        !y->fault);
        }
        assert_int_equal(mem_allocations(), before);
    }
    loader_fixture_close(&a);
    loader_fixture_close(&b);
    dataset_close(from);
    dataset_close(to);
}

static double overlap(const uint8_t *a, const uint8_t *b, size_t n)
{
    uint64_t both = 0, either = 0;
    for (size_t i = 0; i < n; i++)
        both += (uint64_t)__builtin_popcount(a[i] & b[i]), either += (uint64_t)__builtin_popcount(a[i] | b[i]);
    return either ? (double)both / (double)either : 1;
}

/* Another size, or random augmentation: the store is resampled. Images that are only mirrored are
 * bit-equal; masks differ at their edges, by a cell. */
static void compare_loosely(struct loader_augment augment, uint32_t side, uint32_t cells, bool mirrored, double least)
{
    struct dataset *from = open_dataset("sa1b", tar, 0), *to = open_dataset("packed", store, 0);
    struct loader_fixture a = open_loader(side, cells), b = open_loader(side, cells);
    struct loader_source s = {.set = from, .order.seed = 9, .order.shuffle = true,
                              .sampler = {.strategy = SAMPLE_QUALITY, .max_masks = M, .min_area = 0.02},
                              .augment = augment};
    s.sampler.max_area = 1;
    s.order.max_bad = 1;
    struct loader_source t = s;
    double sum = 0;
    uint32_t n = 0;
    t.set = to;
    reader_seek(a.l, &s, 0);
    reader_seek(b.l, &t, 0);
    for (int i = 0; i < N; i++) {
        const struct loader_sample *x = next_sample(&a), *y = next_sample(&b);
        assert_true(x->sample == y->sample && x->rows == y->rows && x->columns == y->columns &&
                    x->mask_rows == y->mask_rows);
        if (mirrored) assert_memory_equal(x->image, y->image, (size_t)side * side * 3);
        if (x->n != y->n) continue;
        size_t bytes = grid_mask_bytes(cells, cells);
        for (uint32_t k = 0; k < x->n; k++, n++) sum += overlap(x->bits + k * bytes, y->bits + k * bytes, bytes);
    }
    if (n < N || sum / n < least) fail_msg("%u masks overlap by %g, expected %g", n, sum / n, least);
    loader_fixture_close(&a);
    loader_fixture_close(&b);
    dataset_close(from);
    dataset_close(to);
}

TEST(test_other_geometry)
{
    compare_loosely((struct loader_augment){.flip = 0.5}, SIDE, CELLS, true, 0.8);
    compare_loosely((struct loader_augment){.flip_vertical = 0.5, .turn = 0.5, .noise = 0.1, .gamma = 0.5}, SIDE, CELLS,
                    true, 0.8);
    compare_loosely((struct loader_augment){.rotate = 20}, SIDE, CELLS, true, 0.8);
    compare_loosely((struct loader_augment){0}, 64, 32, false, 0.8);
    compare_loosely((struct loader_augment){0}, 128, 64, false, 0.8);
    compare_loosely((struct loader_augment){0.5, 0.6, 0.6}, SIDE, CELLS, false, 0.7);
}

/* --- damage ------------------------------------------------------------------------------- */

static int try_open(const char *bytes, size_t n, struct dataset **d, struct error *e)
{
    char path[128], *paths[] = {path};
    snprintf(path, sizeof path, "%s/damaged.pack", dir);
    if (file_write_atomic(path, bytes, n, e)) fail_msg("%s", e->text);
    return dataset_open(d, &(struct dataset_options){.format = "packed", .paths = paths, .n_paths = 1}, e);
}

TEST(test_damage)
{
    char *bytes;
    size_t n;
    struct error e;
    struct dataset *d;
    if (file_read(store, 1 << 30, &bytes, &n, &e)) fail_msg("%s", e.text);
    struct packed_header h;
    memcpy(&h, bytes, sizeof h);
    for (size_t at = 0; at < sizeof h; at++) { /* any byte of the header */
        bytes[at] ^= 0x10;
        assert_int_equal(try_open(bytes, n, &d, &e), PL_USAGE);
        bytes[at] ^= 0x10;
    }
    for (size_t at = h.index; at < n; at += 61) {
        bytes[at] ^= 4;
        assert_int_equal(try_open(bytes, n, &d, &e), PL_USAGE);
        bytes[at] ^= 4;
    }
    const size_t cuts[] = {0, 1, sizeof h, PACKED_DATA, n / 2, n - 1};
    for (size_t i = 0; i < COUNT(cuts); i++) assert_int_equal(try_open(bytes, cuts[i], &d, &e), PL_USAGE);
    bytes[PACKED_DATA + 100] ^= 1; /* a pixel: only the samples' checksums detect it */
    assert_int_equal(try_open(bytes, n, &d, &e), PL_OK);
    assert_int_equal(dataset_check(d, 0, &e), PL_USAGE);
    assert_int_equal(dataset_check(d, 1, &e), PL_OK);
    dataset_close(d);
    mem_free(bytes);
}

TEST(test_nothing_left)
{
    char path[128];
    struct error e;
    struct packed_writer *w;
    struct names before, during, after;
    assert_int_equal(dir_list(dir, &before, &e), PL_OK);
    snprintf(path, sizeof path, "%s/never.pack", dir);
    assert_int_equal(packed_create(&w, path, 32, 8, &e), PL_OK);
    assert_int_equal(dir_list(dir, &during, &e), PL_OK);
    assert_true(during.n == before.n + 1 && !file_exists(path));
    packed_abandon(w);
    assert_int_equal(dir_list(dir, &after, &e), PL_OK);
    assert_int_equal(after.n, before.n);
    names_free(&before), names_free(&during), names_free(&after);
}

TEST(test_categories)
{
    char path[128], *paths[] = {path}, *names[] = {"cat"};
    static uint8_t image[32 * 32 * 3];
    static uint64_t bits[2][8];
    struct mask masks[2] = {{.id = 1, .category = 7, .area = 4, .predicted_iou = 1, .stability = 1},
                            {.id = 2, .category = 9, .area = 4, .predicted_iou = 1, .stability = 1}},
                got[2];
    struct packed_writer *w;
    struct dataset *d;
    struct dataset_masks found;
    struct error e;
    snprintf(path, sizeof path, "%s/categories.pack", dir);
    assert_int_equal(packed_create(&w, path, 32, 8, &e), PL_OK);
    assert_int_equal(packed_add(w,
                                &(struct packed_new){.name = "a/b",
                                                     .key = "b",
                                                     .h = 32,
                                                     .w = 32,
                                                     .rows = 32,
                                                     .columns = 32,
                                                     .image = image,
                                                     .masks = masks,
                                                     .bits = (const uint8_t *)bits,
                                                     .n = 2},
                                &e),
                     PL_OK);
    packed_category(w, 9, "cat");
    assert_int_equal(packed_finish(w, &e), PL_OK);
    struct dataset_options o = {.format = "packed",
                                .paths = paths,
                                .n_paths = 1,
                                .categories = names,
                                .n_categories = 1};
    if (dataset_open(&d, &o, &e)) fail_msg("%s", e.text);
    assert_int_equal(dataset_masks(d, 0, NULL, 0, got, 2, &found, &e), FAULT_NONE);
    assert_true(found.n == 1 && got[0].id == 2);
    assert_string_equal(dataset_category(d, 9), "cat");
    assert_null(dataset_category(d, 7));
    dataset_close(d);
    names[0] = "dog";
    assert_int_equal(dataset_open(&d, &o, &e), PL_USAGE);
}

/* Writes 5 slices of each of 8 volumes. */
static void write_slices(const char *path, bool grouped)
{
    static uint8_t image[32 * 32 * 3];
    static uint64_t bits[8];
    struct mask mask = {.id = 1, .area = 4, .predicted_iou = 1, .stability = 1};
    struct packed_writer *w;
    struct error e;
    assert_int_equal(packed_create(&w, path, 32, 8, &e), PL_OK);
    for (int i = 0; i < 40; i++) {
        char name[64], group[32];
        snprintf(group, sizeof group, "case_%d", i / 5);
        snprintf(name, sizeof name, "%s_z%03d", group, i % 5);
        assert_int_equal(packed_add(w,
                                    &(struct packed_new){.name = name, .key = name, .group = grouped ? group : NULL,
                                                         .h = 32, .w = 32, .rows = 32, .columns = 32, .image = image,
                                                         .masks = &mask, .bits = (const uint8_t *)bits, .n = 1},
                                    &e),
                         PL_OK);
    }
    assert_int_equal(packed_finish(w, &e), PL_OK);
}

/* Slices of a volume are on one side of a split of the store, whatever the fraction and the seed;
 * by the volume's name lists find them too. */
TEST(test_groups)
{
    char path[128], *paths[] = {path}, name[64], group[64];
    struct dataset *d;
    struct error e;
    snprintf(path, sizeof path, "%s/groups.pack", dir);
    write_slices(path, true);
    for (uint64_t seed = 0; seed < 20; seed++) {
        uint32_t sides[8] = {0};
        uint64_t counts[2];
        for (int rest = 0; rest < 2; rest++) {
            const struct dataset_options o = {.format = "packed",
                                              .paths = paths,
                                              .n_paths = 1,
                                              .split = {.fraction = 0.3, .seed = seed, .rest = rest}};
            if (dataset_open(&d, &o, &e)) fail_msg("%s", e.text);
            counts[rest] = dataset_count(d);
            for (uint64_t i = 0; i < counts[rest]; i++) {
                dataset_name(d, i, name, sizeof name);
                assert_true(dataset_split_group(d, i, group, sizeof group) && !strncmp(name, group, strlen(group)));
                sides[group[5] - '0'] |= 1u << rest;
            }
            dataset_close(d);
        }
        for (int k = 0; k < 8; k++) assert_true(sides[k] == 1 || sides[k] == 2);
        assert_true(counts[0] == 10 && counts[1] == 30); /* the border nearest to 12 */
    }
    struct text warning = {0};
    if (dataset_open(&d,
                     &(struct dataset_options){.format = "packed",
                                               .paths = paths,
                                               .n_paths = 1,
                                               .split = {.glob = "case_3"}},
                     &e))
        fail_msg("%s", e.text);
    assert_int_equal(dataset_count(d), 5);
    assert_int_equal(dataset_held_out(d, 0.3, 0, &warning), 2);
    assert_non_null(strstr(warning.at, "all 5 samples are of one group, case_3"));
    dataset_close(d);
    write_slices(path, false); /* as stores were before */
    warning.n = 0;
    if (dataset_open(&d, &(struct dataset_options){.format = "packed", .paths = paths, .n_paths = 1}, &e))
        fail_msg("%s", e.text);
    assert_int_equal(dataset_held_out(d, 0.3, 0, &warning), 12);
    assert_non_null(strstr(warning.at, "its samples look like slices of volumes, such as case_"));
    dataset_close(d);
    text_free(&warning);
}

/* --- only embeddings ------------------------------------------------------------------------- */

enum { TOKENS = 3, WIDTH = 5 };

/* A store of these references, each with `counts` embeddings, all numbers of which are its index
 * and the embedding's; 0: broken. */
static void write_outputs(const char *path, const char *const *references, const uint32_t *counts, uint32_t n)
{
    static float values[4][TOKENS * WIDTH];
    struct packed_writer *w;
    struct error e;
    assert_int_equal(packed_create(&w, path, 32, 0, &e), PL_OK);
    packed_embed(w, &(struct packed_embeddings){.type = PACKED_F32, .channels = WIDTH, .tokens = TOKENS, .weights = 1,
                                                .layers = 2,
                                                .model = "tower"});
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < counts[i]; k++)
            for (uint32_t p = 0; p < TOKENS * WIDTH; p++) values[k][p] = (float)(10 * i + k);
        const struct packed_output sound = {.at = values, .count = counts[i], .rows = counts[i] > 1,
                                            .columns = counts[i] > 1 ? counts[i] - 1 : 0};
        const struct packed_output broken = {.fault = FAULT_IMAGE, .why = "it is cut", .count = 1};
        assert_int_equal(packed_add_output(w, references[i], counts[i] ? &sound : &broken, &e), PL_OK);
    }
    assert_int_equal(packed_finish(w, &e), PL_OK);
}

TEST(test_embeddings_alone)
{
    static const char *const references[] = {"a.png", "b.png", "data:image/png;base64,AAAA", "video:c"};
    static const uint32_t counts[] = {1, 0, 3, 2};
    char path[128];
    struct packed_output x;
    struct image_files *f;
    struct error e;
    float got[3][TOKENS * WIDTH];
    uint32_t replaced;
    snprintf(path, sizeof path, "%s/alone.pack", dir);
    write_outputs(path, references, counts, 3);
    if (image_files_open(&f, &(struct image_scope){.where = path}, &e)) fail_msg("%s", e.text);
    const struct dataset *d = image_files_store(f);
    assert_int_equal(dataset_count(d), 3);
    assert_int_equal(dataset_embeddings(d)->tokens, TOKENS);
    assert_false(packed_find(d, "c.png", &x) || packed_find(d, "data:image/png;base64,AAAB", &x) ||
                 packed_find(d, "", &x));
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(packed_find(d, references[i], &x) && x.sample == i && x.count == (counts[i] ? counts[i] : 1) &&
                    !x.at == !counts[i]);
        const enum data_fault fault =
            image_files_embeddings(f, references[i], x.count, got, x.count * sizeof *got, &replaced, &e);
        assert_int_equal(fault, counts[i] ? FAULT_NONE : FAULT_IMAGE);
        for (uint32_t k = 0; k < counts[i]; k++)
            assert_true(got[k][0] == (float)(10 * i + k) && got[k][TOKENS * WIDTH - 1] == got[k][0]);
    }
    assert_int_equal(image_files_embeddings(f, "a.png", 2, got, sizeof got, &replaced, &e), FAULT_SIZE);
    assert_int_equal(image_files_embeddings(f, "b.png", 1, got, sizeof got, &replaced, &e), FAULT_IMAGE);
    assert_string_equal(e.text, "it is cut");
    assert_int_equal(image_files_embeddings(f, "c.png", 1, got, sizeof got, &replaced, &e), FAULT_READ);
    image_files_close(f);
}

/* Images of any size: as many embeddings as rows and columns, else the index is invalid. */
TEST(test_any_size)
{
    static float values[6][TOKENS * WIDTH];
    for (uint32_t columns = 2; columns <= 3; columns++) {
        char path[128];
        struct packed_writer *w;
        struct packed_output x;
        struct image_files *f;
        struct error e;
        snprintf(path, sizeof path, "%s/sized.pack", dir);
        assert_int_equal(packed_create(&w, path, 14, 0, &e), PL_OK);
        packed_embed(w, &(struct packed_embeddings){
                            .type = PACKED_F32, .channels = WIDTH, .tokens = TOKENS, .any_size = 1, .model = "tower"});
        const struct packed_output sound = {.at = values, .count = 6, .rows = 2, .columns = columns};
        const struct packed_output broken = {.fault = FAULT_IMAGE, .why = "it is cut", .count = 1};
        assert_int_equal(packed_add_output(w, "a.png", &sound, &e), PL_OK);
        assert_int_equal(packed_add_output(w, "b.png", &broken, &e), PL_OK);
        assert_int_equal(packed_finish(w, &e), PL_OK);
        if (columns == 2) {
            assert_int_equal(image_files_open(&f, &(struct image_scope){.where = path}, &e), PL_USAGE);
            assert_non_null(strstr(e.text, "sample 0 of its index is invalid"));
            continue;
        }
        if (image_files_open(&f, &(struct image_scope){.where = path}, &e)) fail_msg("%s", e.text);
        assert_true(dataset_embeddings(image_files_store(f))->any_size);
        assert_true(packed_find(image_files_store(f), "a.png", &x) && x.rows == 2 && x.columns == 3 && x.count == 6);
        assert_true(packed_find(image_files_store(f), "b.png", &x) && x.fault == FAULT_IMAGE);
        image_files_close(f);
    }
}

/* Names that are not ascending, or not unique, and the two kinds of stores in each other's
 * place. */
TEST(test_other_stores)
{
    static const char *const order[] = {"b.png", "a.png"}, *const twice[] = {"a.png", "a.png"};
    static const uint32_t counts[] = {1, 1};
    char path[128], *paths[] = {path}, *masks[] = {store};
    struct dataset *d;
    struct error e;
    snprintf(path, sizeof path, "%s/order.pack", dir);
    for (int i = 0; i < 2; i++) {
        write_outputs(path, i ? twice : order, counts, 2);
        assert_int_equal(dataset_open(&d,
                                      &(struct dataset_options){.format = "packed",
                                                                .paths = paths,
                                                                .n_paths = 1,
                                                                .embeddings_alone = true},
                                      &e),
                         PL_USAGE);
        assert_non_null(strstr(e.text, "sample 1 of its index is invalid"));
    }
    write_outputs(path, order, counts, 1);
    assert_int_equal(dataset_open(&d, &(struct dataset_options){.format = "packed", .paths = paths, .n_paths = 1}, &e),
                     PL_USAGE);
    assert_non_null(strstr(e.text, "neither images nor masks"));
    assert_int_equal(dataset_open(&d,
                                  &(struct dataset_options){.format = "packed",
                                                            .paths = masks,
                                                            .n_paths = 1,
                                                            .embeddings_alone = true},
                                  &e),
                     PL_USAGE);
    assert_non_null(strstr(e.text, "a packed store of images with masks"));
}

/* --- an index with a memory map --------------------------------------------------------------- */

TEST(test_memmap)
{
    char index[160];
    static struct mask want[64], got[64];
    static char scratch[1 << 20];
    snprintf(index, sizeof index, "%s/index.json", map);
    struct dataset *from = open_dataset("sa1b", tar, 0), *to = open_dataset("packed", index, 0);
    assert_int_equal(dataset_count(to), N);
    struct grid g;
    void *memory = mem_alloc(grid_bytes(W, CELLS));
    grid_init(&g, memory, W, CELLS);
    static uint64_t bits[2][CELLS];
    for (uint64_t i = 0; i < N; i++) {
        struct dataset_masks a, b;
        struct error e;
        char x[64], y[64];
        dataset_name(from, i, x, sizeof x);
        dataset_name(to, i, y, sizeof y);
        assert_string_equal(x, y);
        assert_int_equal(dataset_masks(from, i, scratch, sizeof scratch, want, 64, &a, &e), FAULT_NONE);
        assert_int_equal(dataset_masks(to, i, NULL, 0, got, 64, &b, &e), FAULT_NONE);
        assert_true(a.h == b.h && a.w == b.w);
        struct grid_geometry at = {.h = a.h, .w = a.w, .resized_w = CELLS, .resized_h = CELLS, .canvas_w = CELLS,
                                   .canvas_h = CELLS, .gw = CELLS, .gh = CELLS};
        assert_int_equal(grid_set(&g, &at, &e), PL_OK);
        for (uint32_t k = 0, m = 0; k < a.n; k++) {
            assert_int_equal(mask_raster(&want[k], &g, NULL, bits[0], &e), FAULT_NONE);
            if (!grid_count(&g, bits[0])) continue; /* too small for a cell: empty there */
            assert_true(m < b.n);
            const uint8_t *cells = got[m].shape.cells.at;
            for (uint32_t c = 0; c < CELLS * CELLS; c++)
                assert_int_equal(cells[c], bits[0][c / CELLS] >> c % CELLS & 1);
            m++;
        }
    }
    mem_free(memory);
    dataset_close(from);
    dataset_close(to);
    struct error e;
    char *paths[] = {index}, *five[] = {"5"};
    assert_int_equal(dataset_open(&to,
                                  &(struct dataset_options){.format = "packed",
                                                            .paths = paths,
                                                            .n_paths = 1,
                                                            .categories = five,
                                                            .n_categories = 1},
                                  &e),
                     PL_USAGE);
    assert_non_null(strstr(e.text, "no categories"));
}

static int open_index(const char *json, size_t mask_bytes, struct error *e)
{
    char index[160], masks[160], *paths[] = {index}, *zeros = mem_alloc(mask_bytes);
    struct dataset *d;
    memset(zeros, 255, mask_bytes);
    snprintf(index, sizeof index, "%s/images/plain.json", map);
    snprintf(masks, sizeof masks, "%s/images/plain.dat", map);
    if (file_write_atomic(index, json, strlen(json), e) || file_write_atomic(masks, zeros, mask_bytes, e))
        fail_msg("%s", e->text);
    int rc = dataset_open(&d, &(struct dataset_options){.format = "packed", .paths = paths, .n_paths = 1}, e);
    mem_free(zeros);
    if (!rc) {
        struct mask m[4];
        struct dataset_masks found;
        assert_int_equal(dataset_masks(d, 0, NULL, 0, m, 4, &found, e), FAULT_NONE);
        assert_true(found.n == 2 && m[1].area == (double)found.h * found.w && m[1].id == 1);
        dataset_close(d);
    }
    return rc;
}

/* An index with only the three required keys, and errors in other keys. */
TEST(test_memmap_plain)
{
    struct error e;
    assert_int_equal(open_index("[{\"image_path\": \"000000_sa_1.jpg\", \"mask_start_idx\": 0, \"mask_end_idx\": 2}]",
                                2 * 16 * 16, &e),
                     PL_OK);
    assert_int_equal(open_index("[{\"image_path\": \"000000_sa_1.jpg\", \"mask_start_idx\": 0, \"mask_end_idx\": 2}]",
                                500, &e),
                     PL_USAGE);
    assert_non_null(strstr(e.text, "square"));
    assert_int_equal(open_index("[{\"image_path\": \"000000_sa_1.jpg\", \"mask_start_idx\": 3, \"mask_end_idx\": 2}]",
                                512, &e),
                     PL_USAGE);
    assert_int_equal(open_index("[{\"image_path\": \"000000_sa_1.jpg\", \"mask_start_idx\": 0, \"mask_end_idx\": 2, "
                                "\"mask_height\": 16, \"mask_width\": 32}]",
                                512, &e),
                     PL_USAGE);
    assert_int_equal(open_index("[{\"image_path\": \"000000_sa_1.jpg\", \"mask_end_idx\": 2}]", 512, &e), PL_USAGE);
    assert_int_equal(open_index("{}", 512, &e), PL_USAGE);
}

MAIN(setup, teardown)

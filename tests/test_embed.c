/*
 * test_embed.c: embeddings in a packed store: a loader returns what was written, damage is
 * rejected, and the two hashes distinguish encoders. Whole runs are in run_embed.sh.
 */
#include "base/random.h"
#include "data/loader.h"
#include "data/formats/packed.h"
#include "io/file.h"
#include "batch/embed.h"

#include "loader_fixture.h"

enum { N = 6, SIDE = 32, CELLS = 8, C = 3, GRID = 4, ELEMENTS = C * GRID * GRID, M = 2 };
#define MODEL "tests/golden/predict/model"

static char dir[64];

static int setup(void **state)
{
    log_quiet(true);
    strcpy(dir, "/tmp/plimsoll-embed-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    struct error e;
    tree_remove(dir, &e);
    return 0;
}

static struct packed_embeddings about(uint64_t weights)
{
    return (struct packed_embeddings){.type = PACKED_F32, .channels = C, .grid = GRID, .weights = weights, .layers = 5,
                                      .model = "some/model"};
}

static void embedding(uint64_t i, float out[ELEMENTS])
{
    random_normal(out, random_key(7, "embedding"), i * ELEMENTS, ELEMENTS, 1);
}

/* N samples of noise, each with two masks. x NULL: without embeddings. */
static char *write_store(const char *name, const struct packed_embeddings *x, char path[128])
{
    static uint8_t image[SIDE * SIDE * 3];
    struct packed_writer *w;
    struct error e;
    snprintf(path, 128, "%s/%s", dir, name);
    if (packed_create(&w, path, SIDE, CELLS, &e)) fail_msg("%s", e.text);
    if (x) packed_embed(w, x);
    for (uint64_t i = 0; i < N; i++) {
        float values[ELEMENTS];
        uint64_t bits[M][CELLS] = {{0xf, 0xf}, {0, 0x30, 0x30 + i % 2}};
        struct mask masks[M] = {{.id = 1, .area = 128, .predicted_iou = 1, .stability = 1},
                                {.id = 2, .area = 64, .predicted_iou = 1, .stability = 1}};
        char key[16];
        embedding(i, values);
        random_words((uint32_t *)(void *)image, random_key(3, "pixels"), i * sizeof image / 4, sizeof image / 4);
        snprintf(key, sizeof key, "%d", (int)i);
        struct packed_new s = {.name = key, .key = key, .h = SIDE, .w = SIDE, .rows = SIDE, .columns = SIDE,
                               .image = image, .embedding = values, .masks = masks, .bits = (const uint8_t *)bits,
                               .n = M};
        if (packed_add(w, &s, &e)) fail_msg("%s", e.text);
    }
    if (packed_finish(w, &e)) fail_msg("%s", e.text);
    return path;
}

static struct dataset *open_sets(char *const *paths, uint32_t n)
{
    struct dataset *d;
    struct error e;
    if (dataset_open(&d, &(struct dataset_options){.format = "packed", .paths = paths, .n_paths = n}, &e))
        fail_msg("%s", e.text);
    return d;
}

static struct loader_fixture open_loader(uint64_t embedding_bytes)
{
    struct loader_options o = {.side = SIDE, .cells = CELLS, .masks = M, .threads = 2, .slots = 3, .room = 1 << 16,
                               .embedding = embedding_bytes};
    return loader_fixture_open(&o);
}

/* --- the store ---------------------------------------------------------------------------- */

/* The same samples, masks and geometry as with images, which the same store still contains. */
TEST(test_loader)
{
    char with[128], without[128], *paths[2] = {with, without};
    struct packed_embeddings x = about(1);
    write_store("with.pack", &x, with);
    write_store("without.pack", NULL, without);
    struct dataset *a = open_sets(paths, 1), *b = open_sets(paths + 1, 1);
    assert_int_equal(packed_embedding_bytes(dataset_embeddings(a)), ELEMENTS * sizeof(float));
    assert_null(dataset_embeddings(b));
    struct loader_fixture images = open_loader(0), other = open_loader(0),
                          embedded = open_loader(ELEMENTS * sizeof(float));
    assert_true(embedded.bytes < images.bytes);
    struct loader_source s = {.set = a, .order.seed = 5, .order.shuffle = true, .interior = true,
                              .sampler = {.strategy = SAMPLE_RANDOM, .max_masks = M, .max_area = 1}},
                         t = s, u = s;
    u.set = b;
    reader_seek(images.l, &s, 0);
    reader_seek(embedded.l, &t, 0);
    reader_seek(other.l, &u, 0);
    uint64_t before = mem_allocations();
    for (int i = 0; i < 3 * N; i++) {
        const struct loader_sample *p = next_sample(&images), *q = next_sample(&embedded), *r = next_sample(&other);
        float want[ELEMENTS];
        embedding(q->sample, want);
        assert_memory_equal(q->embedding, want, sizeof want);
        assert_true(!q->image && !p->embedding && !q->fault);
        assert_memory_equal(p->image, r->image, SIDE * SIDE * 3);
        assert_memory_equal(p->bits, q->bits, M * grid_mask_bytes(CELLS, CELLS));
        assert_memory_equal(p->masks, q->masks, p->n * sizeof *p->masks);
        assert_true(p->sample == q->sample && p->n == q->n && p->rows == q->rows && p->columns == q->columns &&
                    p->mask_rows == q->mask_rows);
    }
    assert_int_equal(mem_allocations(), before);
    loader_fixture_close(&images);
    loader_fixture_close(&other);
    loader_fixture_close(&embedded);
    dataset_close(a);
    dataset_close(b);
}

TEST(test_several_files)
{
    char one[128], same[128], other[128], none[128];
    struct packed_embeddings x = about(1), y = about(2);
    write_store("one.pack", &x, one);
    write_store("same.pack", &x, same);
    write_store("other.pack", &y, other);
    write_store("none.pack", NULL, none);
    char *lists[][3] = {{one, same, same}, {one, same, other}, {one, none, one}, {none, one, same}};
    for (size_t i = 0; i < COUNT(lists); i++) {
        struct dataset *d = open_sets(lists[i], 3);
        assert_int_equal(dataset_embeddings(d) != NULL, i == 0);
        if (!i) {
            float want[ELEMENTS];
            embedding(2, want);
            assert_memory_equal(dataset_embedding(d, N + 2), want, sizeof want);
        }
        dataset_close(d);
    }
}

TEST(test_damage)
{
    char path[128], *paths[] = {path}, *bytes;
    size_t n;
    struct error e;
    struct dataset *d;
    struct packed_header h;
    struct packed_embeddings x = about(1), y;
    write_store("damaged.pack", &x, path);
    assert_int_equal(packed_peek(path, &h, &y, &e), PL_OK);
    assert_true(h.side == SIDE && y.weights == 1 && y.layers == 5 && !strcmp(y.model, "some/model"));
    if (file_read(path, 1 << 30, &bytes, &n, &e)) fail_msg("%s", e.text);
    const struct dataset_options o = {.format = "packed", .paths = paths, .n_paths = 1};
    for (size_t at = 0; at < sizeof h + sizeof x; at++) { /* any byte of their description */
        bytes[at] ^= 0x10;
        if (file_write_atomic(path, bytes, n, &e)) fail_msg("%s", e.text);
        assert_int_equal(dataset_open(&d, &o, &e), PL_USAGE);
        assert_int_equal(packed_peek(path, &h, &y, &e), PL_USAGE);
        bytes[at] ^= 0x10;
    }
    bytes[PACKED_DATA + SIDE * SIDE * 3 + 5] ^= 1; /* of an embedding: only the samples' checksums detect it */
    if (file_write_atomic(path, bytes, n, &e)) fail_msg("%s", e.text);
    d = open_sets(paths, 1);
    assert_int_equal(dataset_check(d, 0, &e), PL_USAGE);
    assert_int_equal(dataset_check(d, 1, &e), PL_OK);
    dataset_close(d);
    mem_free(bytes);
}

/* --- the hashes ---------------------------------------------------------------------------- */

static struct packed_embeddings describe(const char *folder, int64_t side)
{
    struct model m;
    struct error e;
    struct packed_embeddings x = {0};
    if (model_open(&m, folder, &e) || embed_describe(NULL, &m, side, &x, &e)) fail_msg("%s", e.text);
    model_close(&m);
    return x;
}

/* A copy of the model with one byte range of one file changed. */
static char *changed(const char *name, const char *file, size_t at, const char *from, const char *to, char path[256])
{
    struct error e;
    static const char *const files[] = {"config.json", "model.safetensors", "preprocessor_config.json"};
    snprintf(path, 256, "%s/%s", dir, name);
    if (dir_make(path, &e)) fail_msg("%s", e.text);
    for (size_t i = 0; i < COUNT(files); i++) {
        char source[256], target[512], *bytes, *place = NULL;
        size_t n;
        snprintf(source, sizeof source, MODEL "/%s", files[i]);
        snprintf(target, sizeof target, "%s/%s", path, files[i]);
        if (file_read(source, 1 << 30, &bytes, &n, &e)) fail_msg("%s", e.text);
        if (!strcmp(files[i], file)) {
            place = from ? strstr(bytes, from) : bytes + n - at;
            assert_non_null(place);
            memcpy(place, to, strlen(to));
        }
        if (file_write_atomic(target, bytes, n, &e)) fail_msg("%s", e.text);
        mem_free(bytes);
    }
    return path;
}

/* The offset of a weight in the file, from its end. */
static size_t offset_of_weight(const char *name)
{
    struct st_file f;
    struct error e;
    if (st_open(MODEL "/model.safetensors", &f, &e)) fail_msg("%s", e.text);
    const struct st_entry *t = st_find(&f, name);
    assert_non_null(t);
    size_t at = (size_t)(f.data_bytes - t->begin);
    st_close(&f);
    return at;
}

TEST(test_hashes)
{
    char path[256];
    struct packed_embeddings x = describe(MODEL, 64), again = describe(MODEL, 64), larger = describe(MODEL, 128);
    assert_true(x.channels == 16 && x.grid == 8 && larger.grid == 16);
    assert_memory_equal(&x, &again, sizeof x);
    assert_true(larger.weights == x.weights && larger.layers != x.layers);

    struct packed_embeddings eps = describe(changed("eps", "config.json", 0, "\"model_type\": \"sam_vision_model\"",
                                                    "\"layer_norm_eps\": 0.001         ", path),
                                            64);
    assert_true(eps.weights == x.weights && eps.layers != x.layers);
    struct packed_embeddings norm = describe(changed("norm", "preprocessor_config.json", 0, "0.4,", "0.3,", path), 64);
    assert_true(norm.weights == x.weights && norm.layers != x.layers);
    struct packed_embeddings bias =
        describe(changed("bias", "model.safetensors", offset_of_weight("vision_encoder.neck.layer_norm2.bias"), NULL,
                         "\x01\x02", path),
                 64);
    assert_true(bias.weights != x.weights && bias.layers == x.layers);
    struct packed_embeddings decoder =
        describe(changed("decoder", "model.safetensors", offset_of_weight("mask_decoder.iou_token.weight"), NULL,
                         "\x01\x02", path),
                 64);
    assert_true(decoder.weights == x.weights && decoder.layers == x.layers);
}

/* An image's embedding depends only on that image, and on all of it. */
TEST(test_embedder)
{
    enum { PIXELS = 64 * 64 * 3 };
    struct embedder m;
    struct names set = {0};
    struct error e;
    static uint8_t image[PIXELS];
    if (embed_open(&m, MODEL, 64, "f32", &set, &e)) fail_msg("%s", e.text);
    assert_int_equal(m.bytes, 16 * 8 * 8 * sizeof(float));
    void *first = mem_alloc(m.bytes), *other = mem_alloc(m.bytes), *again = mem_alloc(m.bytes);
    random_words((uint32_t *)(void *)image, random_key(1, "pixels"), 0, PIXELS / 4);
    assert_int_equal(embed_image(&m, image, 64, 64, first, &e), PL_OK);
    image[PIXELS - 1] ^= 0x40;
    assert_int_equal(embed_image(&m, image, 64, 64, other, &e), PL_OK);
    assert_true(memcmp(first, other, m.bytes));
    image[PIXELS - 1] ^= 0x40;
    assert_int_equal(embed_image(&m, image, 40, 64, other, &e), PL_OK);
    assert_true(memcmp(first, other, m.bytes));
    assert_int_equal(embed_image(&m, image, 64, 64, again, &e), PL_OK);
    assert_memory_equal(first, again, m.bytes);
    mem_free(first);
    mem_free(other);
    mem_free(again);
    embed_close(&m);
    assert_int_equal(embed_open(&m, MODEL, 70, "f32", &set, &e), PL_USAGE);
    assert_int_equal(embed_open(&m, MODEL, 64, "f16", &set, &e), PL_USAGE);
    assert_int_equal(embed_open(&m, "tests/golden/clip_vision", 64, NULL, &set, &e), PL_USAGE);
}

MAIN(setup, teardown)

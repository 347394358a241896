/*
 * test_images.c: images among the tokens of a batch (models/images.h): a batch whose samples have
 * room for some images each gives the loss and the gradients of one whose samples share all images,
 * for any room, with and without micro-batches; pixels that are bytes give the bits of their
 * values; where the tower runs; and what image_index writes.
 *
 * Run from the repository's root: the model is a folder of tests/golden.
 */
#include "batch/writer.h"
#include "engine/run.h"
#include "graph/ops.h"
#include "io/file.h"
#include "models/images.h"

#include "harness.h"

#define FOLDER "tests/golden/llava_clip_llama"
enum { B = 3, T = 14, FEATURES = 4, IMAGES = 3, PIXELS = 3 * 8 * 8, VOCABULARY = 61, TOKEN = 60 };
static const int images_of[B] = {2, 0, 1};

/* --- the batch -------------------------------------------------------------------------------- */

/* Text, and the tokens of a sample's images from its second token on. */
static void fill_ids(int b, int32_t ids[T])
{
    for (int t = 0; t < T; t++) ids[t] = t && t <= images_of[b] * FEATURES ? TOKEN : (11 * t + 5 * b) % TOKEN;
}

static void fill_pixels(int image, float x[PIXELS])
{
    for (int i = 0; i < PIXELS; i++) x[i] = (float)sin(0.61 * i + 2.3 * image);
}

static uint8_t byte_of(int image, int i) { return (uint8_t)(37 * i + 101 * image); }

/* Writes the images of a sample as bytes of which `table` has the values, or these values. */
static void put_bytes(struct run *r, int room, const struct pixel_table *table, bool values)
{
    static uint8_t bytes[4 * PIXELS];
    static float x[4 * PIXELS];
    struct error e;
    for (int b = 0, image = 0; b < B; b++) {
        memset(bytes, 0, sizeof bytes);
        for (int k = 0; k < images_of[b]; k++, image++)
            for (int i = 0; i < PIXELS; i++) bytes[k * PIXELS + i] = byte_of(image, i);
        for (int i = 0; i < room * PIXELS; i++) x[i] = table->value[i / (PIXELS / 3) % table->rows][bytes[i]];
        const size_t n = (size_t)room * PIXELS;
        must(run_write_input(r, "pixel_values", b, values ? (void *)x : bytes, values ? n * sizeof *x : n, &e), &e);
    }
}

static void put_text(struct run *r, int room)
{
    struct error e;
    int64_t next = 0;
    for (int b = 0; b < B; b++) {
        int32_t ids[T], labels[T], index[T];
        fill_ids(b, ids);
        for (int t = 0; t < T; t++) labels[t] = ids[t] == TOKEN ? -100 : ids[t];
        if (room) next = 0; /* a sample's indices count from its own room */
        batch_index(&r->planned.model, &(struct batch_record){.feature = &next}, ids, T, index, NULL);
        must(run_write_input(r, "input_ids", b, ids, sizeof ids, &e), &e);
        must(run_write_input(r, "labels", b, labels, sizeof labels, &e), &e);
        must(run_write_input(r, "image_index", b, index, sizeof index, &e), &e);
    }
}

/* room 0: all samples share the images. */
static void put_images(struct run *r, int room)
{
    struct error e;
    static float x[B * 4 * PIXELS];
    if (!room) {
        for (int i = 0; i < IMAGES; i++) fill_pixels(i, x + i * PIXELS);
        must(run_write_input(r, "pixel_values", 0, x, IMAGES * PIXELS * sizeof *x, &e), &e);
        return;
    }
    for (int b = 0, image = 0; b < B; b++) {
        memset(x, 0, sizeof x);
        for (int i = 0; i < images_of[b]; i++) fill_pixels(image++, x + i * PIXELS);
        must(run_write_input(r, "pixel_values", b, x, (size_t)room * PIXELS * sizeof *x, &e), &e);
    }
}

/* --- runs ------------------------------------------------------------------------------------- */

struct gradients {
    float *at;
    int64_t n;
};

static struct gradients read_gradients(struct run *r)
{
    struct error e;
    struct gradients out = {0};
    for (int pass = 0; pass < 2; pass++) {
        int64_t n = 0;
        for (uint32_t i = 0; i < r->planned.graph.params.n; i++) {
            const id grad = r->planned.graph.params.at[i].grad;
            if (grad && pass) must(run_read(r, grad, out.at + n, &e), &e);
            if (grad) n += tensor_elements(tensor_at(&r->planned.graph, grad));
        }
        if (!pass) out = (struct gradients){mem_alloc((size_t)n * sizeof *out.at), n};
    }
    return out;
}

/* `table`: pixels are bytes, or with `values` what the table has for them; NULL: they are those of
 * fill_pixels. */
static struct gradients run_table(int room, int micro_batch, const struct pixel_table *table, bool values, float *loss)
{
    static const char *const sets[] = {("model.path=" FOLDER),    "memory.precision=f32",  "memory.offload=none",
                                       "memory.head_chunks=1",    "memory.recompute=none", "memory.fused_step=off",
                                       "train.effective_batch=3", "data.sequence=14",      "device.threads=2",
                                       "device.kind=cpu"};
    struct config c;
    struct run r;
    struct error e;
    char micro[64];
    int64_t size[OPEN_LETTERS] = {0};
    const struct contents own = {.media = {.images = room},
                                 .pixels = table && !values ? *table : (struct pixel_table){0}};
    size['N'] = IMAGES;
    config_init(&c);
    for (size_t i = 0; i < COUNT(sets); i++) must(config_set(&c, sets[i], &e), &e);
    snprintf(micro, sizeof micro, "memory.micro_batch=%d", micro_batch);
    must(config_set(&c, micro, &e), &e);
    must(run_plan(&r, &c,
                  &(struct run_options){.train = true, .holds = room ? &own : NULL,
                                        .size = room ? NULL : size},
                  &e),
         &e);
    must(run_start(&r, NULL, true, &e), &e);
    put_text(&r, room);
    if (table) put_bytes(&r, room, table, values);
    else put_images(&r, room);
    must(run_put_step(&r, &(struct step_block){.inv_count = {0.05f}, .loss_scale = 1, .step = 1, .adam_t = 1}, &e), &e);
    must(run_program(&r, PROGRAM_STEP, &e), &e);
    must(run_read(&r, graph_find_output(&r.planned.graph, PROGRAM_STEP, "loss"), loss, &e), &e);
    struct gradients out = read_gradients(&r);
    run_close(&r);
    config_free(&c);
    return out;
}

static struct gradients run_once(int room, int micro_batch, float *loss)
{
    return run_table(room, micro_batch, NULL, false, loss);
}

static void assert_near(struct gradients a, struct gradients b)
{
    double norm = 0, off = 0;
    assert_int_equal(a.n, b.n);
    for (int64_t i = 0; i < a.n; i++) {
        norm += (double)a.at[i] * a.at[i];
        off += ((double)a.at[i] - b.at[i]) * ((double)a.at[i] - b.at[i]);
    }
    assert_true(norm > 0);
    if (!(sqrt(off) <= 1e-6 * sqrt(norm))) fail_msg("the gradients differ by %g of their norm", sqrt(off / norm));
}

/* Tables of a channel each, and of a channel of each image. */
TEST(test_bytes)
{
    enum { ROOM = 2 };
    static float value[3 * ROOM][256];
    for (int row = 0; row < 3 * ROOM; row++)
        for (int i = 0; i < 256; i++) value[row][i] = ((float)i / 255 - 0.4f - 0.02f * (float)row) / 0.27f;
    for (int64_t rows = 3; rows <= 3 * ROOM; rows += 3 * (ROOM - 1))
        for (int micro = 1; micro <= 3; micro += 2) {
            const struct pixel_table table = {rows, (const float(*)[256])value};
            float loss, same;
            struct gradients want = run_table(ROOM, micro, &table, true, &loss),
                             got = run_table(ROOM, micro, &table, false, &same);
            assert_true(want.n && want.n == got.n && loss == same);
            assert_memory_equal(want.at, got.at, (size_t)want.n * sizeof *want.at);
            mem_free(want.at);
            mem_free(got.at);
        }
}

TEST(test_rooms)
{
    static const struct {
        int room, micro_batch;
    } with[] = {{2, 3}, {2, 1}, {3, 1}, {4, 3}, {0, 1}};
    float loss, other;
    struct gradients all = run_once(0, 3, &loss);
    for (size_t i = 0; i < COUNT(with); i++) {
        struct gradients g = run_once(with[i].room, with[i].micro_batch, &other);
        assert_float_equal(loss, other, 1e-6f * loss);
        assert_near(all, g);
        mem_free(g.at);
    }
    mem_free(all.at);
}

static bool has_op(const struct graph *g, enum program p, enum op op)
{
    for (uint32_t k = 0; k < g->order[p].nodes.n; k++)
        if (node_at(g, g->order[p].nodes.at[k])->op == op) return true;
    return false;
}

/* Only text: the graph has no images, and nothing of the tower runs. */
TEST(test_no_images)
{
    struct config c;
    struct run r;
    struct error e;
    struct planned_input x;
    config_init(&c);
    must(config_set(&c, "model.path=" FOLDER, &e), &e);
    must(config_set(&c, "data.sequence=14", &e), &e);
    must(run_plan(&r, &c,
                  &(struct run_options){.train = true,
                                        .holds = &(struct contents){0}},
                  &e),
         &e);
    assert_false(planned_input(&r.planned, "image_index", &x));
    assert_false(has_op(&r.planned.graph, PROGRAM_STEP, OP_CONV));
    run_close(&r);
    config_free(&c);
}

/* Generation: the tower runs with the prompt, not with the tokens of the answer. */
TEST(test_generation)
{
    struct config c;
    struct run r;
    struct error e;
    const struct run_generation generation = {.cache = 32, .prompt = 14, .answer = 8, .chunk = 16};
    config_init(&c);
    must(config_set(&c, "model.path=" FOLDER, &e), &e);
    must(config_set(&c, "device.kind=cpu", &e), &e);
    must(run_plan(&r, &c,
                  &(struct run_options){.forward = true, .B = 1, .T = 16, .generate = &generation,
                                        .holds = &(struct contents){.media = {.images = 2}}},
                  &e),
         &e);
    assert_true(has_op(&r.planned.graph, PROGRAM_PROMPT, OP_CONV) &&
                has_op(&r.planned.graph, PROGRAM_PROMPT, OP_REPLACE_ROWS));
    assert_false(has_op(&r.planned.graph, PROGRAM_NEXT, OP_CONV) ||
                 has_op(&r.planned.graph, PROGRAM_NEXT, OP_REPLACE_ROWS));
    run_close(&r);
    config_free(&c);
}

TEST(test_index)
{
    struct model m;
    struct error e;
    int32_t ids[] = {7, TOKEN, TOKEN, 3, TOKEN}, index[5];
    int64_t next = 2;
    must(model_open(&m, FOLDER, &e), &e);
    assert_int_equal(m.images->features, FEATURES);
    const struct batch_record row = {.feature = &next};
    batch_index(&m, &row, ids, 5, index, NULL);
    assert_memory_equal(index, ((int32_t[]){-1, 2, 3, -1, 4}), sizeof index);
    assert_memory_equal(ids, ((int32_t[]){7, TOKEN, TOKEN, 3, TOKEN}), sizeof ids);
    assert_int_equal(next, 5);
    m.images->token = -200; /* no id of the vocabulary: the embedding must not look it up */
    int32_t other[] = {7, -200};
    batch_index(&m, &row, other, 2, index, NULL);
    assert_int_equal(other[1], 0);
    assert_int_equal(index[1], 5);
    model_close(&m);
}

MAIN(make_folder, remove_folder)

/*
 * test_image_rows.c: rows of conversations with images are a function of only source and position;
 * every image stands where its tokens are; a broken image costs only its conversation; the rest of
 * a row's room is zeros, whatever was there.
 */
#include "data/image_rows.h"
#include "io/file.h"
#include "io/png.h"
#include "io/value.h"

#include "harness.h"
#include "guarded.h"

enum { N = 60, SIDE = 4, FEATURES = 3, TOKEN = 7, T = 40, MOST = 4, PIXELS = 3 * SIDE * SIDE };

static char path[300];

/* Sample i has i % 4 images, each of one colour: that of number 4 * i + k. */
static uint32_t images_of(uint32_t i) { return i % 4; }
static uint8_t colour_of(uint32_t i, uint32_t k) { return (uint8_t)(4 * i + k + 1); }

static void image_path(char *out, size_t room, uint32_t i, uint32_t k)
{
    snprintf(out, room, "%s/%u_%u.png", folder, i, k);
}

static void make_images(void)
{
    struct error e;
    for (uint32_t i = 0; i < N; i++)
        for (uint32_t k = 0; k < images_of(i); k++) {
            uint8_t rgb[SIDE * SIDE * 3];
            char file[400];
            memset(rgb, colour_of(i, k), sizeof rgb);
            image_path(file, sizeof file, i, k);
            if (png_write(file, PNG_RGB, SIDE, SIDE, rgb, 0, &e)) fail_msg("%s", e.text);
        }
}

/* Turns of the ids 100 + i, an image, and an answer of two tokens; a sample without images has one
 * turn. */
static void add_sample(struct token_store_writer *w, uint32_t i)
{
    int32_t ids[64];
    struct byte_range answers[4], images[4];
    struct bump b = {0};
    struct error e;
    struct value *media = value_new(&b, VALUE_LIST);
    const uint32_t n = images_of(i), turns = n ? n : 1;
    uint32_t t = 0;
    for (uint32_t k = 0; k < turns; k++) {
        ids[t++] = (int32_t)(100 + i);
        if (n) {
            images[k] = (struct byte_range){t, t + FEATURES};
            for (int f = 0; f < FEATURES; f++) ids[t++] = TOKEN;
            value_append(&b, media, value_string(&b, bump_format(&b, "%u_%u.png", i, k)));
        }
        answers[k] = (struct byte_range){t, t + 2};
        ids[t++] = (int32_t)(200 + i);
        ids[t++] = 99;
    }
    const struct new_sample s = {.ids = ids, .tokens = t, .answers = answers, .n_answers = turns, .media = media,
                                 .images = images, .file = "chats.json", .line = i + 1, .number = i};
    if (token_store_add(w, &s, &e)) fail_msg("%s", e.text);
    bump_free(&b);
}

static int make_all(void **state)
{
    struct token_store_writer *w;
    struct error e;
    int rc = make_folder(state);
    snprintf(path, sizeof path, "%s/store", folder);
    make_images();
    if (token_store_create(&w, path, &(struct token_store_key){1, 2, 3, 4}, TOKEN, &e)) fail_msg("%s", e.text);
    for (uint32_t i = 0; i < N; i++) add_sample(w, i);
    *token_store_report(w) = (struct sample_report){.read = N, .bad = {[SAMPLE_FINE] = N}};
    if (token_store_finish(w, &e)) fail_msg("%s", e.text);
    return rc;
}

/* --- rows of them ----------------------------------------------------------------------------- */

struct fixture {
    struct conversations set;
    struct image_files *files;
    struct image_rows_options o;
    struct reader *rows;
    struct image_rows_source source;
    char *memory;
};

static struct conversations_options row_options(uint32_t most, enum too_many too_many)
{
    return (struct conversations_options){.sequence = T, .packing = true, .max_bad = 1,
                                          .images = {TOKEN, FEATURES, most, too_many}};
}

/* The processor of images that have the tower's size: their bytes. */
static void open_rows(struct fixture *f, uint32_t most, uint32_t threads, uint32_t slots)
{
    struct error e;
    const struct conversations_options o = row_options(most, TOO_MANY_DROP);
    *f = (struct fixture){
        .o = {.sequence = T, .images = most, .threads = threads, .slots = slots, .reader = {.room = 1 << 20}}};
    image_processor_default(&f->o.reader.processor, IMAGES_SIGLIP, SIDE);
    f->o.reader.frame_processor = f->o.reader.processor;
    if (conversations_open(&f->set, path, &o, &e) ||
        image_files_open(&f->files, &(struct image_scope){.where = folder}, &e))
        fail_msg("%s", e.text);
    f->source = (struct image_rows_source){
        .order = {.seed = 3, .shuffle = true, .max_bad = 1}, .set = &f->set, .files = f->files};
    f->memory = guarded_new(NULL, reader_bytes(&image_rows_kind, &f->o));
    if (reader_open(&f->rows, &image_rows_kind, &f->o, f->memory, &e)) fail_msg("%s", e.text);
}

static void close_rows(struct fixture *f)
{
    reader_close(f->rows);
    guarded_check("image rows", "its block", f->memory, reader_bytes(&image_rows_kind, &f->o));
    guarded_free(f->memory);
    image_files_close(f->files);
    conversations_close(&f->set);
}

static const struct image_row *next_row(struct fixture *f)
{
    const struct image_row *x;
    struct error e;
    if (!(x = reader_next(f->rows, &e))) fail_msg("%s", e.text);
    return x;
}

/* Each image token's image has the colour of its sample; there are no others. Marks the samples of
 * the row. */
static void check_row(const struct image_row *x, uint32_t most, uint32_t *seen)
{
    uint32_t image = 0, left = 0;
    for (uint32_t t = 0; t < x->tokens.tokens; t++) {
        const int32_t id = x->tokens.ids[t];
        const bool begins = x->tokens.ranges[2 * t] == (int32_t)t;
        if (begins) seen[id - 100]++, left = images_of((uint32_t)id - 100);
        if (id != TOKEN || x->tokens.ids[t - 1] == TOKEN) continue;
        const uint32_t i = (uint32_t)x->tokens.ids[t - 1] - 100, k = images_of(i) - left--;
        for (uint32_t p = 0; p < PIXELS; p++)
            assert_true(((const uint8_t *)x->pixels)[image * PIXELS + p] == colour_of(i, k));
        image++;
    }
    assert_int_equal(image, x->images);
    for (uint32_t p = image * PIXELS; p < most * PIXELS; p++) assert_true(((const uint8_t *)x->pixels)[p] == 0);
}

static uint64_t digest(const struct image_row *x, uint32_t most)
{
    uint64_t h = hash_bytes(x->tokens.ids, T * sizeof *x->tokens.ids, x->position);
    h = hash_bytes(x->tokens.labels, T * sizeof *x->tokens.labels, h);
    return hash_bytes(x->pixels, most * PIXELS, h);
}

TEST(test_rows)
{
    static const uint32_t beds[][2] = {{1, 2}, {3, 2}, {4, 9}};
    enum { TAKEN = 70 };
    uint64_t want[TAKEN];
    for (size_t i = 0; i < COUNT(beds); i++) {
        struct fixture f;
        uint32_t seen[N] = {0};
        open_rows(&f, MOST, beds[i][0], beds[i][1]);
        assert_true((double)f.set.images > 0.8 * MOST * f.set.rows.n);
        reader_seek(f.rows, &f.source, 0);
        for (int p = 0; p < TAKEN; p++) {
            const struct image_row *x = next_row(&f);
            check_row(x, MOST, seen);
            if (!i) want[p] = digest(x, MOST);
            assert_true(digest(x, MOST) == want[p]);
            if (p + 1 == (int)f.set.rows.n)
                for (uint32_t k = 0; k < N; k++) assert_int_equal(seen[k], 1);
            if (p == 33) assert_int_equal(f.source.order.counts.seen, image_rows_kind.seen(&f.source, 34));
        }
        reader_seek(f.rows, &f.source, 41); /* a resumed run */
        for (int p = 41; p < 50; p++) assert_true(digest(next_row(&f), MOST) == want[p]);
        assert_int_equal(f.source.order.counts.broken, 0);
        close_rows(&f);
    }
}

/* --- faults ----------------------------------------------------------------------------------- */

static void hide(uint32_t i, uint32_t k, bool back)
{
    char file[400], hidden[420];
    image_path(file, sizeof file, i, k);
    snprintf(hidden, sizeof hidden, "%s.hidden", file);
    assert_int_equal(back ? rename(hidden, file) : rename(file, hidden), 0);
}

TEST(test_faults)
{
    struct fixture f;
    uint64_t want[64];
    uint32_t seen[N] = {0}, rows, changed = 0;
    open_rows(&f, MOST, 2, 4);
    rows = f.set.rows.n;
    reader_seek(f.rows, &f.source, 0);
    for (uint32_t p = 0; p < rows; p++) want[p] = digest(next_row(&f), MOST);
    hide(11, 1, false);
    hide(22, 0, false);
    for (int once = 0; once < 2; once++) {
        memset(seen, 0, sizeof seen);
        struct image_rows_source source = f.source;
        source.order.counts = (struct loader_counts){0};
        source.order.once = once;
        reader_seek(f.rows, &source, 0);
        changed = 0;
        for (uint32_t p = 0; p < rows; p++) {
            const struct image_row *x = next_row(&f);
            check_row(x, MOST, seen);
            changed += digest(x, MOST) != want[p];
        }
        uint32_t all = 0;
        for (uint32_t i = 0; i < N; i++) all += seen[i];
        assert_true(!seen[11] && !seen[22]);
        assert_int_equal(source.order.counts.broken, 2);
        assert_int_equal(source.order.counts.seen, N);
        assert_int_equal(source.order.counts.fault[FAULT_READ], 2);
        if (once) assert_int_equal(all, N - 2);
        else assert_true(changed <= 2 && all >= N - 1); /* others replace them where they fit */
        reader_seek(f.rows, &f.source, 0); /* before `source` goes */
    }
    hide(11, 1, true);
    hide(22, 0, true);
    close_rows(&f);
}

TEST(test_too_many_broken)
{
    struct fixture f;
    struct error e = {0};
    open_rows(&f, MOST, 2, 4);
    f.source.order.max_bad = 0.01;
    hide(11, 1, false);
    reader_seek(f.rows, &f.source, 0);
    for (uint32_t p = 0; p < f.set.rows.n && !e.code; p++) reader_next(f.rows, &e);
    assert_int_equal(e.code, PL_FAIL); /* at the end of the epoch */
    assert_non_null(strstr(e.text, "1 of 60 samples are broken, but data.max_bad is 0.01"));
    assert_non_null(strstr(e.text, "chats.json:12: 11_1.png: there is no such file"));
    hide(11, 1, true);
    close_rows(&f);
}

/* --- too many images -------------------------------------------------------------------------- */

TEST(test_too_many)
{
    struct conversations c;
    struct error e;
    struct text left = {0};
    struct conversations_options o = row_options(2, TOO_MANY_DROP);
    if (conversations_open(&c, path, &o, &e)) fail_msg("%s", e.text);
    assert_int_equal(c.too_many, N / 4);
    assert_int_equal(c.used.n, N - N / 4);
    conversations_print_left(&c, &left);
    assert_string_equal(left.at, "15 samples have more images than data.max_images (2; the most are 3) and are left "
                                 "out; data.too_many_images: split makes several of each");
    conversations_close(&c);
    left.n = 0;
    o.images.too_many = TOO_MANY_SPLIT; /* two turns, then one */
    if (conversations_open(&c, path, &o, &e)) fail_msg("%s", e.text);
    assert_int_equal(c.split, N / 4);
    assert_int_equal(c.used.n, N + N / 4);
    assert_int_equal(c.images, (1 + 2 + 3) * N / 4);
    for (uint32_t k = 0; k < c.used.n; k++) {
        const struct used_sample *u = &c.used.at[k];
        if (!u->begin) continue;
        const struct sample_image x = conversations_image(&c, u, 0);
        char want[32];
        assert_int_equal(u->size.images, 1);
        snprintf(want, sizeof want, "%u_2.png", u->sample);
        assert_string_equal(x.reference, want);
        assert_int_equal(x.count, 1);
        assert_int_equal(u->size.tokens, 1 + FEATURES + 2);
    }
    conversations_print_left(&c, &left);
    assert_string_equal(left.at, "15 samples have more images than data.max_images and are split at turns");
    conversations_close(&c);
    o.images.most = 0;
    if (conversations_open(&c, path, &o, &e)) fail_msg("%s", e.text);
    assert_int_equal(c.used.n, N / 4); /* those without an image */
    conversations_close(&c);
    o.images = (struct image_rule){TOKEN, FEATURES + 1, 4, TOO_MANY_DROP};
    assert_int_equal(conversations_open(&c, path, &o, &e), PL_USAGE);
    assert_non_null(strstr(e.text, "chats.json:2: it has 3 image tokens, and an image has 4"));
    text_free(&left);
}

MAIN(make_all, remove_folder)

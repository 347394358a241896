/*
 * test_loader.c: a position's sample is a function of only source and position, for any number of
 * threads, ring size and order of requests. A broken sample changes no other. A running loader
 * allocates nothing and writes nothing outside its block.
 */
#include <fcntl.h>

#include "base/random.h"
#include "data/images/jpeg.h"
#include "data/loader.h"
#include "data/images/resize.h"
#include "data/prepare/prepare.h"
#include "data/formats/tar.h"
#include "io/file.h"
#include "io/png.h"

#include "loader_fixture.h"

enum { N = 100, W = 96, H = 72, SIDE = 64, CELLS = 32, M = 4 };

static char dir[64];
static struct text halves[N][2]; /* jpg and json of each sample, made once */

static int setup(void **state)
{
    struct error e;
    log_quiet(true);
    strcpy(dir, "/tmp/plimsoll-loader-XXXXXX");
    if (!mkdtemp(dir)) return -1;
    for (uint64_t i = 0; i < N; i++) {
        struct synth_scene scene;
        struct synth_options o = {.seed = 7, .width = i % 2 ? W : H, .height = i % 2 ? H : W, .masks = 8};
        synth_draw(&scene, &o, i);
        synth_json(&scene, &halves[i][1]);
        if (synth_jpeg(&scene, &halves[i][0], &e)) fail_msg("%s", e.text);
        synth_free(&scene);
    }
    return 0;
}

static int teardown(void **state)
{
    struct error e;
    for (int i = 0; i < N; i++) text_free(&halves[i][0]), text_free(&halves[i][1]);
    tree_remove(dir, &e);
    return 0;
}

static bool none_broken(int i) { return i < 0; }
static bool one_in_hundred(int i) { return i == 37; }
static bool every_tenth(int i) { return i % 10 == 3; }
static bool every_other(int i) { return i % 2; }

/* A shard of all samples; of a broken one either the image or the annotation is truncated. */
static struct dataset *make_dataset(const char *name, bool (*broken)(int))
{
    char path[128], member[64];
    struct error e = {0};
    snprintf(path, sizeof path, "%s/%s.tar", dir, name);
    struct tar_writer w = {.fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0666)};
    assert_true(w.fd >= 0);
    for (int i = 0; i < N; i++)
        for (int half = 0; half < 2; half++) {
            const struct text *t = &halves[i][half];
            bool cut = broken(i) && half == (i % 3 == 0);
            snprintf(member, sizeof member, "./sa_%d.%s", i + 1, half ? "json" : "jpg");
            if (tar_write_member(&w, member, t->at, cut ? t->n / 2 : t->n, &e)) fail_msg("%s", e.text);
        }
    assert_int_equal(tar_write_end(&w, &e), PL_OK);
    close(w.fd);
    struct dataset *d;
    char *paths[] = {path};
    struct dataset_options o = {.format = "sa1b", .paths = paths, .n_paths = 1};
    if (dataset_open(&d, &o, &e)) fail_msg("%s", e.text);
    assert_int_equal(dataset_count(d), N);
    return d;
}

/* The index in `halves` of a sample: datasets are sorted by name. */
static int number_of(const struct dataset *d, uint64_t sample)
{
    char name[64];
    int i = 0;
    dataset_name(d, sample, name, sizeof name);
    assert_int_equal(sscanf(strchr(name, '/'), "/sa_%d", &i), 1);
    return i - 1;
}

static struct loader_options options(uint32_t threads, uint32_t slots)
{
    return (struct loader_options){
        .side = SIDE, .cells = CELLS, .masks = M, .threads = threads, .slots = slots, .room = 1 << 20, .least = 0.5};
}

static struct loader_source source_of(const struct dataset *d)
{
    return (struct loader_source){.set = d, .order.seed = 5, .order.shuffle = true, .order.max_bad = 1,
                                  .interior = true,
                                  .sampler = {.strategy = SAMPLE_RANDOM, .max_masks = M}};
}

static uint64_t digest(const struct loader_sample *s)
{
    uint64_t h = hash_bytes(s->image, SIDE * SIDE * 3, s->position);
    uint32_t facts[] = {s->rows,         s->columns, s->height, s->width,           s->mask_rows,
                        s->mask_columns, s->n,       s->fault,  (uint32_t)s->sample};
    h = hash_bytes(s->bits, M * grid_mask_bytes(CELLS, CELLS), h);
    for (uint32_t k = 0; k < s->n; k++) {
        const struct loader_mask *m = &s->masks[k];
        uint32_t row[] = {m->x,           m->y,           m->w,           m->h,
                          m->area,        m->interior[0], m->interior[1], (uint32_t)m->category,
                          (uint32_t)m->id};
        h = hash_bytes(row, sizeof row, h);
    }
    return hash_bytes(facts, sizeof facts, h);
}

static void collect(struct loader_fixture *b, struct loader_source *s, uint64_t from, int n, uint64_t *out)
{
    struct error e;
    const struct loader_sample *x;
    if (!reader_at(b->l, s, from)) reader_seek(b->l, s, from);
    for (int i = 0; i < n; i++) {
        if (!(x = reader_next(b->l, &e))) fail_msg("%s", e.text);
        assert_int_equal(x->position, from + (uint64_t)i);
        out[i] = digest(x);
    }
}

/* --- the tests ------------------------------------------------------------------------------- */

TEST(test_threads)
{
    enum { TAKEN = 2 * N };
    static uint64_t want[TAKEN], got[TAKEN];
    const uint32_t beds[][2] = {{1, 2}, {2, 3}, {4, 3}, {4, 16}};
    struct dataset *d = make_dataset("threads", every_tenth);
    for (int augmented = 0; augmented < 3; augmented++)
        for (size_t i = 0; i < COUNT(beds); i++) {
            struct loader_options o = options(beds[i][0], beds[i][1]);
            o.moves = augmented == 2;
            struct loader_fixture b = loader_fixture_open(&o);
            struct loader_source s = source_of(d);
            if (augmented) s.augment = (struct loader_augment){0.5, 0.5, 0.5};
            if (augmented == 2)
                s.augment = (struct loader_augment){.flip = 0.5, .scale = 0.9, .flip_vertical = 0.5, .turn = 0.5,
                                                    .rotate = 10, .brightness = 0.1, .contrast = 0.1, .gamma = 0.2,
                                                    .noise = 0.05};
            collect(&b, &s, 0, TAKEN, i ? got : want);
            if (i) assert_memory_equal(got, want, sizeof want);
            assert_int_equal(s.order.counts.broken, 20);
            loader_fixture_close(&b);
        }
    dataset_close(d);
}

TEST(test_seek)
{
    static uint64_t want[2 * N], got[8];
    struct dataset *d = make_dataset("seek", every_tenth);
    struct loader_options o = options(3, 5);
    struct loader_fixture b = loader_fixture_open(&o);
    struct loader_source s = source_of(d), other = source_of(d);
    other.order.once = true;
    collect(&b, &s, 0, 2 * N, want);
    for (uint64_t at = 0; at + 8 <= 2 * N; at += 3) {
        collect(&b, &s, at, 8, got);
        assert_memory_equal(got, want + at, sizeof got);
        if (at % 2) collect(&b, &other, 1, 3, got); /* an evaluation in between */
    }
    loader_fixture_close(&b);
    dataset_close(d);
}

/* The neighbours of a broken sample are unchanged; another sample replaces it. */
TEST(test_broken)
{
    bool (*const kinds[])(int) = {one_in_hundred, every_tenth};
    static uint64_t clean[2 * N];
    struct loader_options o = options(2, 4);
    struct loader_fixture b = loader_fixture_open(&o);
    struct dataset *whole = make_dataset("whole", none_broken);
    struct loader_source s = source_of(whole);
    collect(&b, &s, 0, 2 * N, clean);
    assert_int_equal(s.order.counts.broken, 0);
    for (size_t k = 0; k < COUNT(kinds); k++) {
        struct dataset *d = make_dataset("broken", kinds[k]);
        struct loader_source c = source_of(d);
        struct error e;
        const struct loader_sample *x;
        int replaced = 0;
        reader_seek(b.l, &c, 0);
        for (uint64_t i = 0; i < 2 * N; i++) {
            if (!(x = reader_next(b.l, &e))) fail_msg("%s", e.text);
            if (!x->fault) assert_int_equal(digest(x), clean[i]);
            else assert_true(x->n > 0 && !kinds[k](number_of(d, x->sample)) && ++replaced);
        }
        assert_int_equal(replaced, k ? 20 : 2);
        assert_int_equal(c.order.counts.broken, replaced);
        assert_int_equal(c.order.counts.seen, 2 * N);
        assert_true(c.order.counts.fault[FAULT_IMAGE] > 0);
        assert_int_equal(c.order.counts.fault[FAULT_IMAGE] + c.order.counts.fault[FAULT_SYNTAX], replaced);
        reader_seek(b.l, &s, 0);
        dataset_close(d);
    }
    loader_fixture_close(&b);
    dataset_close(whole);
}

/* A rank's part of every step: 3 of 10 samples, without a seek between steps. */
TEST(test_part)
{
    uint64_t all[N], own[3];
    struct loader_options o = options(2, 4);
    struct loader_fixture b = loader_fixture_open(&o);
    struct dataset *d = make_dataset("part", none_broken);
    struct loader_source s = source_of(d), part = source_of(d);
    collect(&b, &s, 0, N, all);
    part.order.each = 3, part.order.every = 10;
    reader_seek(b.l, &part, 4);
    for (uint64_t step = 0; step < 4; step++) {
        assert_true(reader_at(b.l, &part, step * 10 + 4));
        collect(&b, &part, step * 10 + 4, 3, own);
        assert_memory_equal(own, all + step * 10 + 4, sizeof own);
    }
    assert_false(reader_at(b.l, &part, 37));
    loader_fixture_close(&b);
    dataset_close(d);
}

static uint64_t take_until_failure(struct loader_source *s, struct error *e)
{
    struct loader_options o = options(2, 4);
    struct loader_fixture b = loader_fixture_open(&o);
    const struct loader_sample *x;
    uint64_t taken = 0;
    reader_seek(b.l, s, 0);
    e->code = PL_OK;
    while (taken < 3 * N && (x = reader_next(b.l, e))) taken++;
    loader_fixture_close(&b);
    return taken;
}

TEST(test_max_bad)
{
    struct error e;
    struct dataset *d = make_dataset("half", every_other), *few = make_dataset("few", every_tenth);
    struct loader_source s = source_of(d), t = source_of(few), u = source_of(few);
    s.order.max_bad = 0.05;
    assert_in_range(take_until_failure(&s, &e), FAULTS_FIRST - 1, N - 1);
    assert_int_equal(e.code, PL_FAIL);
    assert_int_equal(s.order.counts.broken, FAULTS_FIRST);
    assert_non_null(strstr(e.text, "20 of "));
    assert_non_null(strstr(e.text, "data.max_bad"));
    t.order.max_bad = 0.05; /* 10 of 100: too few to end an epoch early, too many at its end */
    assert_int_equal(take_until_failure(&t, &e), N - 1);
    assert_non_null(strstr(e.text, "10 of 100 samples are broken"));
    u.order.max_bad = 0.15;
    assert_int_equal(take_until_failure(&u, &e), 3 * N);
    dataset_close(d);
    dataset_close(few);
}

/* An evaluation sees each sample once, in order; a broken one has weight 0. */
TEST(test_once)
{
    struct error e;
    const struct loader_sample *x;
    struct dataset *d = make_dataset("once", every_tenth);
    struct loader_options o = options(2, 4);
    struct loader_fixture b = loader_fixture_open(&o);
    struct loader_source s = source_of(d);
    s.order.once = true;
    reader_seek(b.l, &s, 0);
    for (int i = 0; i < N; i++) {
        if (!(x = reader_next(b.l, &e))) fail_msg("%s", e.text);
        assert_int_equal(x->sample, i);
        assert_int_equal(x->n == 0, every_tenth(number_of(d, x->sample)));
        for (int k = 0; k < SIDE * SIDE * 3 && !x->n; k++) assert_int_equal(x->image[k], 0);
    }
    assert_int_equal(s.order.counts.broken, 10);
    loader_fixture_close(&b);
    dataset_close(d);
}

TEST(test_memory)
{
    static uint64_t unused[N];
    struct dataset *d = make_dataset("memory", every_tenth);
    struct loader_options o = options(3, 5);
    struct loader_fixture b = loader_fixture_open(&o);
    struct loader_source s = source_of(d);
    uint64_t before = mem_allocations();
    for (uint64_t epoch = 0; epoch < 3; epoch++) collect(&b, &s, epoch * N, N, unused);
    collect(&b, &s, 17, N, unused);
    assert_int_equal(mem_allocations(), before);
    loader_fixture_close(&b);
    dataset_close(d);
}

static bool bit(const uint8_t *bits, uint32_t x, uint32_t y)
{
    return bits[y * grid_stride(CELLS) + x / 8] >> x % 8 & 1;
}

/* Compares the slot with an independent computation: the image decoded whole and resized, and each
 * mask's cells from the scene that it was drawn from. */
static void check_sample(const struct loader_sample *x, uint32_t id)
{
    struct error e;
    struct synth_scene scene;
    uint32_t w = id % 2 ? W : H, h = id % 2 ? H : W, dw, dh, rw, rh;
    struct synth_options o = {.seed = 7, .width = w, .height = h, .masks = 8};
    uint8_t *pixels, want[SIDE * SIDE * 3] = {0};
    struct jpg *j = jpg_new(NULL);
    assert_true(x->width == w && x->height == h);
    resize_longest(w, h, SIDE, &rw, &rh);
    assert_true(x->rows == rh && x->columns == rw);
    if (jpg_decode(j, halves[id][0].at, halves[id][0].n, jpg_divisor(w, h, SIDE), &dw, &dh, &pixels, &e))
        fail_msg("%s", e.text);
    struct resize_view v = {.width = dw, .height = dh, .to_width = rw, .to_height = rh, .to = want, .stride = SIDE * 3};
    struct resize r;
    void *scratch = mem_alloc(resize_scratch(&v));
    resize_begin(&r, &v, scratch, resize_scratch(&v));
    for (uint32_t y = 0; resize_wants(&r); y++) resize_row(&r, pixels + y * dw * 3);
    assert_memory_equal(x->image, want, sizeof want);
    mem_free(scratch);
    mem_free(pixels);
    jpg_free(j);
    synth_draw(&scene, &o, id);
    for (uint32_t k = 0; k < x->n; k++) {
        const struct loader_mask *m = &x->masks[k];
        const uint8_t *bits = x->bits + k * grid_mask_bytes(CELLS, CELLS);
        int owner = -1;
        uint32_t area = 0;
        for (uint32_t y = 0; y < CELLS; y++)
            for (uint32_t c = 0; c < CELLS; c++) {
                uint32_t px = (2 * c + 1) * SIDE * w / (2 * CELLS * rw), py = (2 * y + 1) * SIDE * h / (2 * CELLS * rh);
                bool inside = c < x->mask_columns && y < x->mask_rows;
                assert_true(inside == (px < w && py < h));
                area += bit(bits, c, y);
                if (!inside) assert_false(bit(bits, c, y));
                if (!bit(bits, c, y)) continue;
                if (owner < 0) owner = scene.owner[py * w + px];
                assert_int_equal(scene.owner[py * w + px], owner);
                assert_true(c >= m->x && c < m->x + m->w && y >= m->y && y < m->y + m->h);
            }
        assert_int_equal(m->area, area);
        assert_true(bit(bits, m->interior[0], m->interior[1]));
    }
    synth_free(&scene);
}

TEST(test_content)
{
    struct error e;
    const struct loader_sample *x;
    struct dataset *d = make_dataset("content", none_broken);
    struct loader_options o = options(2, 4);
    struct loader_fixture b = loader_fixture_open(&o);
    struct loader_source s = source_of(d);
    s.order.once = true;
    reader_seek(b.l, &s, 0);
    for (int i = 0; i < 20; i++) {
        if (!(x = reader_next(b.l, &e))) fail_msg("%s", e.text);
        check_sample(x, (uint32_t)number_of(d, x->sample));
    }
    loader_fixture_close(&b);
    dataset_close(d);
}

/* A square PNG of the canvas's size, masks of as many cells: mirrored exactly. The most interior
 * cell of a ring with one thick side is in that side. */
TEST(test_pairs)
{
    enum { S = 32 };
    struct error e;
    char path[128], folder[96];
    static uint8_t rgb[S][S][3], label[S][S];
    for (int y = 0; y < S; y++)
        for (int x = 0; x < S; x++) {
            for (int c = 0; c < 3; c++) rgb[y][x][c] = (uint8_t)(7 * x + 3 * y + 50 * c);
            label[y][x] = x >= 2 && x < 30 && y >= 2 && y < 30 && !(x >= 4 && x < 18 && y >= 4 && y < 28);
        }
    for (int i = 0; i < 2; i++) {
        snprintf(folder, sizeof folder, "%s/pairs/%s", dir, i ? "masks" : "images");
        snprintf(path, sizeof path, "%s/a.png", folder);
        assert_int_equal(dir_make(folder, &e), PL_OK);
        if (png_write(path, i ? PNG_GREY : PNG_RGB, S, S, i ? (void *)label : (void *)rgb, 0, &e))
            fail_msg("%s", e.text);
    }
    snprintf(path, sizeof path, "%s/pairs", dir);
    char *paths[] = {path};
    struct dataset *d;
    struct dataset_options od = {.format = "pairs", .paths = paths, .n_paths = 1};
    if (dataset_open(&d, &od, &e)) fail_msg("%s", e.text);
    struct loader_options o = {.side = S, .cells = S, .masks = 2, .threads = 1, .slots = 2, .room = 1 << 20};
    struct loader_fixture b = loader_fixture_open(&o);
    struct loader_source s[2] = {source_of(d), source_of(d)};
    const struct loader_sample *x;
    s[1].augment.flip = 1;
    for (int flip = 0; flip < 2; flip++) {
        reader_seek(b.l, &s[flip], 0);
        if (!(x = reader_next(b.l, &e))) fail_msg("%s", e.text);
        assert_int_equal(x->n, 1);
        for (int y = 0; y < S; y++)
            for (int c = 0; c < S; c++) {
                int from = flip ? S - 1 - c : c;
                assert_memory_equal(x->image + (y * S + c) * 3, rgb[y][from], 3);
                assert_int_equal(x->bits[y * 8 + c / 8] >> c % 8 & 1, label[y][from]);
            }
        uint32_t at = x->masks[0].interior[0];
        assert_in_range(flip ? S - 1 - at : at, 22, 25); /* the thick side is 18..29 */
    }
    loader_fixture_close(&b);
    dataset_close(d);
}

MAIN(setup, teardown)

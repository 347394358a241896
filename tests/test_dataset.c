/*
 * test_dataset.c: every format gives the same masks of the same image through the same interface;
 * splits partition a dataset exactly; the sampler satisfies its guarantees.
 */
#include <fcntl.h>

#include "base/random.h"
#include "data/formats/csv.h"
#include "data/dataset.h"
#include "data/masks/label.h"
#include "data/masks/polygon.h"
#include "data/masks/mask.h"
#include "data/formats/tar.h"
#include "io/file.h"
#include "io/png.h"

#include "harness.h"

enum { ROOM = 16, SCRATCH = 1 << 18 };

/* --- fixture --------------------------------------------------------------------------------- */

struct fixture {
    char dir[64];
    uint64_t *scratch;
    struct mask masks[ROOM];
    void *memory, *runs;
    struct grid grid;
    struct polygon_scratch polygons;
};

static int fixture_open(void **state)
{
    struct fixture *p = mem_alloc(sizeof *p);
    strcpy(p->dir, "/tmp/plimsoll-data-XXXXXX");
    if (!mkdtemp(p->dir)) return -1;
    p->scratch = mem_alloc(SCRATCH);
    p->memory = mem_alloc(grid_bytes(64, 64));
    grid_init(&p->grid, p->memory, 64, 64);
    p->runs = mem_alloc(polygon_bytes(1024));
    polygon_init(&p->polygons, p->runs, 1024);
    *state = p;
    log_quiet(true);
    return 0;
}

static int fixture_close(void **state)
{
    struct fixture *p = *state;
    struct error e;
    tree_remove(p->dir, &e);
    mem_free(p->scratch);
    mem_free(p->memory);
    mem_free(p->runs);
    mem_free(p);
    return 0;
}

static char *path_of(const struct fixture *p, const char *name)
{
    static char path[4][256];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", p->dir, name);
    return path[turn];
}

static void save(const struct fixture *p, const char *name, const char *bytes)
{
    struct error e;
    char dir[512];
    assert_int_equal(path_dir(path_of(p, name), dir, sizeof dir, &e), PL_OK);
    assert_int_equal(dir_make(dir, &e), PL_OK);
    if (file_write_atomic(path_of(p, name), bytes, strlen(bytes), &e)) fail_msg("%s", e.text);
}

static struct dataset *open_dataset(const struct dataset_options *o)
{
    struct dataset *d;
    struct error e;
    if (dataset_open(&d, o, &e)) fail_msg("%s", e.text);
    return d;
}

/* A sample's masks as letters, row by row: '.' no mask, 'a' the first mask. */
static const char *draw(struct fixture *p, const struct dataset *d, uint64_t i)
{
    static char out[4096];
    struct dataset_masks s;
    struct error e;
    uint64_t bits[64], before = mem_allocations();
    if (dataset_masks(d, i, p->scratch, SCRATCH, p->masks, ROOM, &s, &e)) fail_msg("%s", e.text);
    struct grid_geometry at = {.h = s.h, .w = s.w, .resized_w = s.w, .resized_h = s.h, .canvas_w = s.w, .canvas_h = s.h,
                               .gw = s.w, .gh = s.h};
    assert_int_equal(grid_set(&p->grid, &at, &e), PL_OK);
    size_t n = (size_t)s.w * s.h;
    memset(out, '.', n);
    out[n] = 0;
    for (uint32_t m = 0; m < s.n; m++) {
        if (mask_raster(&p->masks[m], &p->grid, &p->polygons, bits, &e)) fail_msg("%s", e.text);
        for (uint32_t y = 0; y < s.h; y++)
            for (uint32_t x = 0; x < s.w; x++)
                if (bits[y] >> x & 1) out[y * s.w + x] = (char)('a' + m);
    }
    assert_true(mem_allocations() == before);
    return out;
}

static void assert_image(const struct dataset *d, uint64_t i, const char *want)
{
    char bytes[64];
    struct dataset_image image;
    struct error e;
    if (dataset_image(d, i, bytes, sizeof bytes, &image, &e)) fail_msg("%s", e.text);
    assert_true(image.n == strlen(want) && !memcmp(bytes, want, image.n) && !image.decoded);
    assert_int_equal(dataset_image(d, i, bytes, strlen(want) - 1, &image, &e), FAULT_TOO_LARGE);
}

/* --- sa1b -------------------------------------------------------------------------------- */

static const char *annotation(int id)
{
    static char text[512];
    snprintf(
        text, sizeof text,
        "{\"image\": {\"image_id\": %d, \"width\": 4, \"height\": 5, \"file_name\": \"sa_%d.jpg\"}, \"annotations\": ["
        "{\"area\": 4, \"bbox\": [1, 1, 1, 1], \"segmentation\": {\"size\": [5, 4], \"counts\": \"62304\"}}, "
        "{\"area\": 0}]}",
        id, id);
    return text;
}

static void make_tar(const struct fixture *p, const char *name, int from, int to)
{
    struct error e;
    char member[32];
    struct tar_writer w = {.fd = open(path_of(p, name), O_WRONLY | O_CREAT, 0644)};
    for (int i = from; i < to; i++) { /* the annotation first */
        const char *text = annotation(i);
        snprintf(member, sizeof member, "./sa_%d.json", i);
        assert_int_equal(tar_write_member(&w, member, text, strlen(text), &e), PL_OK);
    }
    for (int i = to; i-- > from;) {
        char image[16];
        snprintf(image, sizeof image, "jpeg %d", i);
        snprintf(member, sizeof member, "./sa_%d.jpg", i);
        assert_int_equal(tar_write_member(&w, member, image, strlen(image), &e), PL_OK);
    }
    assert_int_equal(tar_write_end(&w, &e), PL_OK);
    close(w.fd);
}

TEST_WITH(test_sa1b, fixture_open, fixture_close)
{
    struct fixture *p = *state;
    char name[64];
    make_tar(p, "a.tar", 100, 107);
    make_tar(p, "b.tar", 200, 202);
    save(p, "c/sa_300.jpg", "jpeg 300");
    save(p, "c/sa_300.json", annotation(300));
    char *paths[] = {path_of(p, "*.tar*"), path_of(p, "c")};
    struct dataset_options o = {.format = "sa1b", .paths = paths, .n_paths = 2};
    uint64_t fingerprint = 0;
    for (int turn = 0; turn < 2; turn++) { /* the second time the pattern also matches the .idx files */
        struct dataset *d = open_dataset(&o);
        assert_int_equal(dataset_count(d), 10);
        assert_image(d, 0, "jpeg 100");
        assert_image(d, 8, "jpeg 201");
        assert_image(d, 9, "jpeg 300");
        dataset_name(d, 8, name, sizeof name);
        assert_string_equal(name, "b/sa_201");
        for (uint64_t i = 0; i < 10; i++) assert_string_equal(draw(p, d, i), "....." "aa.." "aa....." "....");
        dataset_prefetch(d, 8);
        if (turn) assert_true(dataset_fingerprint(d) == fingerprint);
        fingerprint = dataset_fingerprint(d);
        dataset_close(d);
    }
    char *folder[] = {p->dir}; /* a folder name selects all its tar files */
    o.paths = folder, o.n_paths = 1;
    struct dataset *d = open_dataset(&o);
    assert_int_equal(dataset_count(d), 9);
    dataset_close(d);
    struct error e;
    char *dogs[] = {"dog"};
    o.categories = dogs, o.n_categories = 1;
    assert_int_equal(dataset_open(&d, &o, &e), PL_USAGE);
    assert_non_null(strstr(e.text, "dog, but this format has no categories"));
    o.n_categories = o.n_paths = 0;
    assert_int_equal(dataset_open(&d, &o, &e), PL_USAGE);
    char *nothing[] = {path_of(p, "*.nothing")};
    o.paths = nothing, o.n_paths = 1;
    assert_int_equal(dataset_open(&d, &o, &e), PL_USAGE);
    o.format = "sa2b";
    assert_int_equal(dataset_open(&d, &o, &e), PL_USAGE);
    assert_non_null(strstr(e.text, "sa1b, coco"));
}

TEST_WITH(test_faults, fixture_open, fixture_close)
{
    struct fixture *p = *state;
    static const struct { const char *text; enum data_fault want;
    } cases[] = {
        {"{}", FAULT_SYNTAX},
        {"{\"image\": {\"width\": 4, \"height\": 5}, \"annotations\": []}", FAULT_NO_MASKS},
        {"{\"image\": {\"width\": 5, \"height\": 4}, \"annotations\": [{\"segmentation\": {\"size\": [5, 4], "
         "\"counts\": \"62304\"}}]}",
         FAULT_SIZE},
        {"{\"image\": {\"width\": 5, \"height\": 4}, \"annotations\": [{\"segmentation\": [[0, 0, 1, 1, 2, 0]]}]}",
         FAULT_SHAPE},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        save(p, "sa_1.jpg", "jpeg");
        save(p, "sa_1.json", cases[i].text);
        char *paths[] = {p->dir};
        struct dataset_options o = {.format = "sa1b", .paths = paths, .n_paths = 1};
        struct dataset *d = open_dataset(&o);
        struct dataset_masks s;
        struct error e;
        assert_int_equal(dataset_masks(d, 0, p->scratch, SCRATCH, p->masks, ROOM, &s, &e), cases[i].want);
        assert_true(e.text[0]);
        assert_int_equal(dataset_masks(d, 0, p->scratch, 1, p->masks, ROOM, &s, &e), FAULT_TOO_LARGE);
        dataset_close(d);
    }
}

/* --- splits ------------------------------------------------------------------------------ */

static uint64_t names_of(const struct dataset_options *o, char names[][64])
{
    struct dataset *d = open_dataset(o);
    uint64_t n = dataset_count(d);
    for (uint64_t i = 0; i < n; i++) dataset_name(d, i, names[i], 64);
    dataset_close(d);
    return n;
}

TEST_WITH(test_splits, fixture_open, fixture_close)
{
    struct fixture *p = *state;
    enum { N = 50 };
    static char part[N][64], rest[N][64], other[N][64];
    make_tar(p, "a.tar", 100, 100 + N);
    save(p, "list.txt", "sa_103\n  a/sa_101  \n# sa_102\n\nsa_999\n");
    char *paths[] = {path_of(p, "a.tar")};
    struct dataset_options o = {.format = "sa1b", .paths = paths, .n_paths = 1};
    o.split = (struct dataset_split){.list = path_of(p, "list.txt")};
    assert_int_equal(names_of(&o, part), 2);
    assert_string_equal(part[0], "a/sa_101");
    assert_string_equal(part[1], "a/sa_103");
    o.split = (struct dataset_split){.glob = "sa_10?"};
    assert_int_equal(names_of(&o, part), 10);
    o.split = (struct dataset_split){.fraction = 0.1, .seed = 7};
    assert_int_equal(names_of(&o, part), 5);
    o.split.rest = true;
    assert_int_equal(names_of(&o, rest), 45);
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 45; k++) assert_string_not_equal(part[i], rest[k]);
    o.split = (struct dataset_split){.fraction = 0.1, .seed = 8};
    assert_int_equal(names_of(&o, other), 5);
    assert_memory_not_equal(part, other, sizeof part);
}

static void make_pairs(const struct fixture *p);

static void assert_refused(struct dataset_options *o, struct dataset_split split, const char *says)
{
    struct dataset *d;
    struct error e = {0};
    o->split = split;
    if (!dataset_open(&d, o, &e)) fail_msg("a split was taken that should say: %s", says);
    assert_int_equal(e.code, PL_USAGE);
    assert_null(d);
    if (!strstr(e.text, says)) fail_msg("\"%s\" does not say \"%s\"", e.text, says);
}

/* Splits that leave nothing, name nothing, or are contradictory. */
TEST_WITH(test_split_refusals, fixture_open, fixture_close)
{
    struct fixture *p = *state;
    make_tar(p, "a.tar", 100, 110);
    save(p, "unknown.txt", "sa_7\nsa_8\n");
    save(p, "some.txt", "sa_101\n");
    save(p, "empty.txt", "# nothing yet\n\n");
    save(p, "t.csv", "image,mask,split\nimages/one.jpg,masks/one.png,train\n");
    char *paths[] = {path_of(p, "a.tar")}, list[3][256];
    for (int i = 0; i < 3; i++)
        snprintf(list[i], sizeof list[i], "%s/%s", p->dir, (const char *[]){"unknown.txt", "some.txt", "empty.txt"}[i]);
    struct dataset_options o = {.format = "sa1b", .paths = paths, .n_paths = 1};
    assert_refused(&o, (struct dataset_split){.glob = "nothing", .part = "validation"},
                   "a.tar: the split selects none of 10 samples: data.validation_match is nothing");
    assert_refused(&o, (struct dataset_split){.list = list[0]}, "none of the 2 names");
    assert_refused(&o, (struct dataset_split){.list = list[0]}, "sa_7");
    assert_refused(&o, (struct dataset_split){.list = list[2]}, "names no sample");
    assert_refused(&o, (struct dataset_split){.list = "/nowhere/list.txt"}, "/nowhere/list.txt");
    /* both must agree */
    assert_refused(&o, (struct dataset_split){.list = list[1], .glob = "sa_102"},
                   "the split selects none of 10 samples");
    /* 0.4 of a sample held out */
    assert_refused(&o, (struct dataset_split){.fraction = 0.04},
                   "the split selects none of 10 samples: data.holdout is 0.04");
    /* none left to train on */
    assert_refused(&o, (struct dataset_split){.fraction = 0.96, .rest = true}, "the split selects none of 10 samples");
    assert_refused(&o, (struct dataset_split){.fraction = 1.5}, "the split is 1.5 of the samples; expected a fraction");
    assert_refused(&o, (struct dataset_split){.fraction = -0.1}, "expected a fraction");
    /* shards have no column */
    assert_refused(&o, (struct dataset_split){.column = "train"}, "the split selects none of 10 samples");
    make_pairs(p);
    paths[0] = path_of(p, "t.csv");
    o.format = "csv";
    assert_refused(&o, (struct dataset_split){.column = "test"}, "the split selects none of 1 samples");
    o.format = "sa2b";
    assert_refused(&o, (struct dataset_split){0}, "no data format sa2b");
}

/* --- coco -------------------------------------------------------------------------------- */

static const char coco_text[] =
    "{\"info\": {}, \"annotations\": ["
    "{\"id\": 1, \"image_id\": 9, \"category_id\": 3, \"area\": 4, \"bbox\": [1, 1, 2, 2], \"iscrowd\": 0, "
    "\"segmentation\": [[1, 1, 3, 1, 3, 3, 1, 3]]},"
    "{\"id\": 2, \"image_id\": 9, \"category_id\": 5, \"area\": 4, \"iscrowd\": 1, \"segmentation\": {\"counts\": [6, "
    "2, 8, 2, 2], \"size\": [5, 4]}},"
    "{\"id\": 3, \"image_id\": 4, \"category_id\": 5, \"area\": 4, \"segmentation\": {\"counts\": \"62304\", \"size\": "
    "[5, 4]}},"
    "{\"id\": 4, \"image_id\": 77, \"category_id\": 5, \"area\": 4, \"segmentation\": []},"
    "{\"id\": 5, \"image_id\": 9, \"category_id\": 3, \"area\": 6, \"segmentation\": [[0, 0, 1, 0, 1, 5, 0, 5], [3, 4, "
    "4, 4, 4, 5, 3, 5]]}],"
    "\"images\": [{\"id\": 9, \"width\": 4, \"height\": 5, \"file_name\": \"nine.jpg\"}, {\"id\": 4, \"width\": 4, "
    "\"height\": 5, "
    "\"file_name\": \"f\\u006fur.jpg\"}, {\"id\": 1, \"width\": 4, \"height\": 5, \"file_name\": \"one.jpg\"}, "
    "{\"id\": 9, \"width\": 4, \"height\": 5, \"file_name\": \"again.jpg\"}],"
    "\"categories\": [{\"id\": 5, \"name\": \"dog\"}, {\"id\": 3, \"name\": \"cat\"}]}";

/* Frames of a video are on one side of a split. */
TEST_WITH(test_coco_videos, fixture_open, fixture_close)
{
    struct fixture *p = *state;
    struct text json = {0};
    char *paths[1], group[256];
    text_printf(&json, "{\"images\": [");
    for (int i = 0; i < 24; i++) {
        char name[32];
        snprintf(name, sizeof name, "images/%d.jpg", i);
        save(p, name, "jpeg");
        text_printf(&json, "%s{\"id\": %d, \"width\": 4, \"height\": 5, \"file_name\": \"%d.jpg\", \"video_id\": ",
                    i ? ", " : "", i + 1, i);
        if (i < 20) text_printf(&json, "%d}", i / 4 % 5);
        else text_printf(&json, "%s}", i < 22 ? "\"last\"" : "null");
    }
    text_printf(&json, "], \"annotations\": [");
    for (int i = 0; i < 24; i++)
        text_printf(&json,
                    "%s{\"id\": %d, \"image_id\": %d, \"category_id\": 3, \"area\": 4, \"segmentation\": [[1, 1, 3, 1, "
                    "3, 3, 1, 3]]}",
                    i ? ", " : "", i + 1, i + 1);
    text_printf(&json, "], \"categories\": [{\"id\": 3, \"name\": \"cat\"}]}");
    save(p, "videos.json", json.at);
    text_free(&json);
    paths[0] = path_of(p, "videos.json");
    uint32_t sides[8] = {0}, alone = 0;
    for (int rest = 0; rest < 2; rest++) {
        struct dataset_options o = {.format = "coco",
                                    .paths = paths,
                                    .n_paths = 1,
                                    .split = {.fraction = 0.4, .rest = rest}};
        struct dataset *d = open_dataset(&o);
        for (uint64_t i = 0; i < dataset_count(d); i++) {
            const bool in_video = dataset_split_group(d, i, group, sizeof group);
            alone += !in_video;
            if (in_video) sides[group[6] == '"' ? 7 : group[6] - '0'] |= 1u << rest;
        }
        dataset_close(d);
    }
    for (int v = 0; v < 8; v++) assert_true(v == 5 || v == 6 ? !sides[v] : sides[v] == 1 || sides[v] == 2);
    assert_int_equal(alone, 2);
}

TEST_WITH(test_coco, fixture_open, fixture_close)
{
    struct fixture *p = *state;
    save(p, "annotations/instances_val.json", coco_text);
    save(p, "val/nine.jpg", "jpeg nine");
    save(p, "val/four.jpg", "jpeg four");
    char *paths[] = {path_of(p, "annotations/*.json")}, *cats[] = {"cat"}, *dogs[] = {"5"}, *cows[] = {"cow"};
    struct dataset_options o = {.format = "coco", .paths = paths, .n_paths = 1};
    struct dataset *d = open_dataset(&o);
    char name[64];
    assert_int_equal(dataset_count(d), 2);
    const struct shard_report *r = dataset_report(d);
    assert_true(r->no_image == 1 && r->no_text == 1 && r->duplicates == 1);
    dataset_name(d, 1, name, sizeof name);
    assert_string_equal(name, "nine.jpg");
    assert_image(d, 0, "jpeg four");
    assert_image(d, 1, "jpeg nine");
    assert_string_equal(draw(p, d, 0), "....." "aa.." "aa....." "....");
    assert_true(p->masks[0].category == 5 && p->masks[0].id == 3);
    assert_string_equal(draw(p, d, 1), "b...baa.baa.b...b..b");
    assert_string_equal(dataset_category(d, 5), "dog");
    assert_null(dataset_category(d, 6));
    dataset_close(d);
    o.images = "/nowhere/at/all";
    assert_refused(&o, (struct dataset_split){0}, "data.images is /nowhere/at/all, but there is no such folder");
    o.images = NULL;
    o.crowds = true;
    d = open_dataset(&o);
    draw(p, d, 1);
    assert_true(p->masks[1].crowd && p->masks[1].id == 2);
    dataset_close(d);
    o.categories = cats, o.n_categories = 1;
    d = open_dataset(&o);
    assert_int_equal(dataset_count(d), 1);
    dataset_close(d);
    o.categories = dogs, o.crowds = false;
    d = open_dataset(&o);
    assert_image(d, 0, "jpeg four");
    dataset_close(d);
    struct error e;
    o.categories = cows;
    assert_int_equal(dataset_open(&d, &o, &e), PL_USAGE);
    assert_non_null(strstr(e.text, "cat, dog"));
    o.n_categories = 0;
    save(p, "annotations/instances_val.json", "{\"images\": [}");
    assert_int_equal(dataset_open(&d, &o, &e), PL_USAGE);
    assert_non_null(strstr(e.text, "byte 12"));
}

/* --- pairs and csv --------------------------------------------------------------------------- */

static void save_png(const struct fixture *p, const char *name, const char *letters)
{
    uint8_t pixels[20];
    struct error e;
    for (int i = 0; i < 20; i++)
        pixels[i] = letters[i] == '.' ? 0 : letters[i] == '#' ? 255 : (uint8_t)(letters[i] - '0');
    if (png_write(path_of(p, name), PNG_GREY, 4, 5, pixels, 0, &e)) fail_msg("%s", e.text);
}

static void make_pairs(const struct fixture *p)
{
    save(p, "images/one.jpg", "jpeg one");
    save(p, "images/two.png", "png two");
    save(p, "images/alone.jpg", "jpeg");
    save(p, "masks/readme.txt", "masks");
    save_png(p, "masks/one.png", "....." "##.." "##....." "....");
    save_png(p, "masks/two_mask.png", "2....7777....3....33");
    save_png(p, "masks/lost.png", "2....7777....3....33");
}

TEST_WITH(test_pairs, fixture_open, fixture_close)
{
    struct fixture *p = *state;
    make_pairs(p);
    char *paths[] = {p->dir}, *seven[] = {"7"}, *word[] = {"cat"};
    struct dataset_options o = {.format = "pairs", .paths = paths, .n_paths = 1};
    struct dataset *d = open_dataset(&o);
    assert_int_equal(dataset_count(d), 2);
    assert_true(dataset_report(d)->no_text == 1 && dataset_report(d)->no_image == 1);
    assert_image(d, 0, "jpeg one");
    struct dataset_masks s;
    struct error e;
    assert_int_equal(dataset_masks(d, 0, p->scratch, SCRATCH, p->masks, ROOM, &s, &e), FAULT_NONE);
    /* the dataset has classes */
    assert_true(s.n == 1 && p->masks[0].area == 4 && p->masks[0].category == 255 && p->masks[0].box[2] == 2);
    assert_int_equal(dataset_masks(d, 1, p->scratch, SCRATCH, p->masks, ROOM, &s, &e), FAULT_NONE);
    assert_true(s.n == 3 && p->masks[1].category == 7 && p->masks[1].area == 4 && p->masks[1].box[0] == 0 &&
                p->masks[1].box[1] == 1 && p->masks[1].box[2] == 4 && p->masks[1].box[3] == 2);
    assert_int_equal(dataset_masks(d, 1, p->scratch, SCRATCH, p->masks, 2, &s, &e), FAULT_MANY);
    assert_int_equal(dataset_masks(d, 1, p->scratch, 4096, p->masks, ROOM, &s, &e), FAULT_TOO_LARGE);
    dataset_close(d);
    o.categories = seven, o.n_categories = 1;
    d = open_dataset(&o);
    assert_int_equal(dataset_masks(d, 0, p->scratch, SCRATCH, p->masks, ROOM, &s, &e), FAULT_NO_MASKS);
    dataset_close(d);
    o.n_categories = 0, o.labels = LABELS_BINARY;
    d = open_dataset(&o);
    assert_int_equal(dataset_masks(d, 1, p->scratch, SCRATCH, p->masks, ROOM, &s, &e), FAULT_NONE);
    assert_true(s.n == 1 && p->masks[0].area == 4); /* 7 is bright, 2 and 3 are not */
    dataset_close(d);
    o.labels = LABELS_INSTANCES, o.ignore = 3;
    d = open_dataset(&o);
    assert_int_equal(dataset_masks(d, 1, p->scratch, SCRATCH, p->masks, ROOM, &s, &e), FAULT_NONE);
    assert_true(s.n == 2 && p->masks[1].category == 0 && p->masks[1].id == 7);
    dataset_close(d);
    o.categories = word, o.n_categories = 1;
    assert_int_equal(dataset_open(&d, &o, &e), PL_USAGE);
    o.n_categories = 0, o.masks = "nowhere";
    assert_int_equal(dataset_open(&d, &o, &e), PL_USAGE);
    save(p, "masks/one.png", "no PNG");
    o.masks = NULL;
    d = open_dataset(&o);
    assert_int_equal(dataset_masks(d, 0, p->scratch, SCRATCH, p->masks, ROOM, &s, &e), FAULT_MASK);
    dataset_close(d);
}

TEST_WITH(test_csv, fixture_open, fixture_close)
{
    struct fixture *p = *state;
    make_pairs(p);
    save(p, "t.csv",
         "\xef\xbb\xbfsplit,\"image\",other,mask\r\ntrain,images/one.jpg,\"a \"\"b\"\",\nc\",masks/one.png\r\n\r\n"
         "val,images/two.png,,masks/two_mask.png\r\nval,images/alone.jpg,,");
    char *paths[] = {path_of(p, "t.csv")};
    struct dataset_options o = {.format = "csv", .paths = paths, .n_paths = 1};
    struct dataset *d = open_dataset(&o);
    assert_int_equal(dataset_count(d), 2);
    assert_int_equal(dataset_report(d)->no_text, 1);
    assert_image(d, 0, "jpeg one");
    struct dataset_masks s;
    struct error e;
    assert_int_equal(dataset_masks(d, 0, p->scratch, SCRATCH, p->masks, ROOM, &s, &e), FAULT_NONE);
    assert_true(s.n == 1 && p->masks[0].area == 4);
    dataset_close(d);
    o.split.column = "val";
    d = open_dataset(&o);
    assert_int_equal(dataset_count(d), 1);
    assert_image(d, 0, "png two");
    dataset_close(d);
    o.mask_column = "label";
    assert_int_equal(dataset_open(&d, &o, &e), PL_USAGE);
    assert_non_null(strstr(e.text, "label"));
    o.mask_column = NULL;
    save(p, "t.csv", "image,mask,split\nimages/one.jpg,masks/one.png\n");
    assert_int_equal(dataset_open(&d, &o, &e), PL_USAGE);
    assert_non_null(strstr(e.text, "line 2 has 2 fields; expected 3"));
}

/* Tables of questions, as PRS-Med has them: the path is the image or its mask. */
static void make_questions(const struct fixture *p)
{
    make_pairs(p);
    save(p, "root/images_and_masks/polyps/train_images/1.jpg", "jpeg one");
    save(p, "root/images_and_masks/polyps/test_images/2.png", "png two");
    save(p, "root/images_and_masks/skin/train_images/ISIC_3.jpg", "jpeg three");
    save(p, "root/images_and_masks/skin/train_images/ISIC_4.jpg", "jpeg four");
    const char *masks[] = {"polyps/train_masks/1.png", "polyps/test_masks/2.png",
                           "skin/train_masks/ISIC_3_Segmentation.png"};
    for (size_t i = 0; i < COUNT(masks); i++) {
        char name[128], *bytes;
        size_t n;
        struct error e;
        assert_int_equal(file_read(path_of(p, "masks/one.png"), 1 << 20, &bytes, &n, &e), PL_OK);
        snprintf(name, sizeof name, "root/images_and_masks/%s", masks[i]);
        save(p, name, "");
        if (file_write_atomic(path_of(p, name), bytes, n, &e)) fail_msg("%s", e.text);
        mem_free(bytes);
    }
    save(p, "root/annotations/a.csv",
         "image_path,image_name,question,answer,position,split\n"
         "polyps/train_images/1.jpg,1.jpg,Where is it?,\"At the top, left\",top left,train\n"
         "polyps/test_images/2.png,2.png,And here?,Below,below,test\n"
         "polyps/train_images/1.jpg,1.jpg,Where is it?,,top left,train\n"
         "polyps/train_images/1.jpg,1.jpg,nan,Below,top left,train\n");
    save(p, "root/annotations/b.csv",
         "image_path,image_name,question,answer,position,split\n"
         "skin/train_masks/ISIC_3_Segmentation.png,ISIC_3,What is there?,A mole,center,train\n"
         "skin/train_images/ISIC_4.jpg,ISIC_4,What is there?,A mole,center,train\n");
}

TEST_WITH(test_questions, fixture_open, fixture_close)
{
    struct fixture *p = *state;
    make_questions(p);
    char *paths[] = {path_of(p, "root/annotations/*.csv")};
    struct dataset_options o = {.format = "csv", .paths = paths, .n_paths = 1, .texts = true};
    struct dataset *d = open_dataset(&o);
    struct dataset_masks s;
    struct error e;
    assert_int_equal(dataset_count(d), 3);
    assert_int_equal(d->left.no_answer, 2);
    assert_int_equal(dataset_report(d)->no_text, 1);
    assert_non_null(
        strstr(dataset_unpaired(d),
               "1 row has no mask (such as skin/train_masks/ISIC_4.jpg), 2 rows have no question or no answer"));
    assert_string_equal(dataset_text(d, 0, DATASET_QUESTION), "Where is it?");
    assert_string_equal(dataset_text(d, 0, DATASET_ANSWER), "At the top, left");
    assert_string_equal(dataset_text(d, 2, DATASET_ANSWER), "A mole");
    assert_image(d, 0, "jpeg one");
    assert_image(d, 2, "jpeg three");
    assert_int_equal(dataset_masks(d, 2, p->scratch, SCRATCH, p->masks, ROOM, &s, &e), FAULT_NONE);
    assert_true(s.n == 1 && p->masks[0].category == 1);
    assert_string_equal(dataset_category(d, 0), "polyps");
    assert_string_equal(dataset_category(d, 1), "skin");
    assert_null(dataset_category(d, 2));
    dataset_close(d);
    o.split.column = "test";
    d = open_dataset(&o);
    assert_int_equal(dataset_count(d), 1);
    assert_string_equal(dataset_text(d, 0, DATASET_QUESTION), "And here?");
    dataset_close(d);
    o.split.column = NULL;
    save(p, "root/annotations/c.csv", "image,question\npolyps/train_images/1.jpg,Where?\n");
    assert_refused(&o, (struct dataset_split){0},
                   "its columns are image, question; none has a usual name for answers (answer, response)");
    save(p, "root/annotations/c.csv", "image,question,answer\nelsewhere/1.jpg,Where?,Here\n");
    assert_refused(&o, (struct dataset_split){0},
                   "line 2: the table has no column of masks, and elsewhere/1.jpg is in no folder of images or masks");
}

TEST(test_csv_rows)
{
    struct error e;
    bool more;
    struct csv c;
    char text[] = "\xef\xbb\xbf" "a,\"b\",c\r\n\"x \"\"y\"\", z\n2\",,\"\"\n\n\n1,2,3";
    csv_begin(&c, text, sizeof text - 1);
    assert_true(!csv_next(&c, &more, &e) && more && c.n == 3 && csv_column(&c, "b") == 1 && csv_column(&c, "d") == -1);
    assert_true(!csv_next(&c, &more, &e) && more && c.n == 3 && c.line == 2);
    assert_string_equal(c.fields[0], "x \"y\", z\n2");
    assert_string_equal(c.fields[1], "");
    assert_string_equal(c.fields[2], "");
    assert_true(!csv_next(&c, &more, &e) && more && c.n == 3 && c.line == 6);
    assert_string_equal(c.fields[2], "3");
    assert_true(!csv_next(&c, &more, &e) && !more);
    static const char *const bad[] = {"\"abc", "\"a\"b,c", "a,\"b\n"};
    for (size_t i = 0; i < COUNT(bad); i++) {
        char copy[16];
        strcpy(copy, bad[i]);
        csv_begin(&c, copy, strlen(copy));
        assert_int_equal(csv_next(&c, &more, &e), PL_USAGE);
    }
}

/* Semicolons, tabs, usual names of columns. */
TEST(test_csv_separators)
{
    static const struct { const char *text; char separator; int image, mask, split;
    } cases[] = {{"image,mask\n", ',', 0, 1, -1},
                 {"id;Img Path;GT\n", ';', 1, 2, -1},
                 {"\r\nsubset\tmask-file\tfile_name\n", '\t', 2, 1, 0},
                 {"\"a,b,c\";label;mask;filename", ';', 3, 2, -1},
                 {"one\n", ',', -1, -1, -1}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct csv c;
        struct error e;
        bool more;
        char copy[64];
        strcpy(copy, cases[i].text);
        csv_begin(&c, copy, strlen(copy));
        assert_int_equal(c.separator, cases[i].separator);
        assert_true(!csv_next(&c, &more, &e) && more);
        assert_true(csv_usual_column(&c, CSV_IMAGE) == cases[i].image &&
                    csv_usual_column(&c, CSV_MASK) == cases[i].mask &&
                    csv_usual_column(&c, CSV_SPLIT) == cases[i].split);
    }
}

/* --- the sampler ---------------------------------------------------------------------------- */

enum { MANY = 200 };

static void random_masks(struct mask *m, uint32_t n, uint64_t seed)
{
    uint64_t key = random_key(seed, "sampler");
    for (uint32_t i = 0; i < n; i++) {
        double u = (double)(random_bits(key, 3 * i) >> 11) * 0x1p-53,
               v = (double)(random_bits(key, 3 * i + 1) >> 11) * 0x1p-53;
        double side = exp(log(4) + u * log(100));
        m[i] = (struct mask){.id = i, .area = side * side, .predicted_iou = (float)(0.8 + 0.2 * v),
                             .stability = (float)(0.9 + 0.1 * u),
                             .box = {(float)(v * 500), (float)(u * 500), (float)side, (float)side}};
    }
}

TEST(test_sampler)
{
    static struct mask masks[MANY];
    uint32_t a[MANY], b[MANY];
    void *scratch = mem_alloc(sampler_bytes(MANY, MANY));
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct sampler_options o = {.max_masks = 1 + (uint32_t)(seed % 40), .min_iou = seed % 3 ? 0 : 0.85f,
                                    .min_stability = seed % 5 ? 0 : 0.92f, .max_area = seed % 7 ? 0 : 0.05};
        uint32_t n = (uint32_t)(seed * 7 % MANY), passing = 0;
        random_masks(masks, n, seed);
        if (n > 3) masks[1].area = 0, masks[2].crowd = true;
        for (uint32_t i = 0; i < n; i++)
            passing += masks[i].area > 0 && !masks[i].crowd && masks[i].predicted_iou >= o.min_iou &&
                       masks[i].stability >= o.min_stability &&
                       masks[i].area / (1000. * 1000) <= (o.max_area > 0 ? o.max_area : 1);
        for (o.strategy = SAMPLE_RANDOM; o.strategy <= SAMPLE_ALL; o.strategy++) {
            uint64_t before = mem_allocations();
            uint32_t k = sampler_choose(&o, masks, n, 1000, 1000, seed, 3, 5, scratch, a);
            assert_true(mem_allocations() == before);
            assert_int_equal(k, passing < o.max_masks ? passing : o.max_masks);
            float worst = 2;
            for (uint32_t i = 0; i < k; i++) { /* ascending, so none occurs twice; all pass the filter */
                assert_true(a[i] < n && (!i || a[i - 1] < a[i]));
                const struct mask *m = &masks[a[i]];
                assert_true(m->area > 0 && !m->crowd && m->predicted_iou >= o.min_iou &&
                            m->stability >= o.min_stability);
                worst = m->predicted_iou < worst ? m->predicted_iou : worst;
            }
            assert_int_equal(sampler_choose(&o, masks, n, 1000, 1000, seed, 3, 5, scratch, b), k);
            assert_memory_equal(a, b, k * sizeof *a);
            if (o.strategy == SAMPLE_QUALITY) {
                uint32_t better = 0;
                for (uint32_t i = 0; i < n; i++)
                    better += masks[i].area > 0 && !masks[i].crowd && masks[i].stability >= o.min_stability &&
                              masks[i].area / (1000. * 1000) <= (o.max_area > 0 ? o.max_area : 1) &&
                              masks[i].predicted_iou > worst;
                assert_true(better < o.max_masks || k < o.max_masks);
            }
        }
    }
    mem_free(scratch);
}

/* Every quarter of the size range is represented, also the largest mask's own, and also when that
 * mask is by itself in it. */
TEST(test_balance)
{
    static struct mask masks[MANY];
    uint32_t a[MANY];
    void *scratch = mem_alloc(sampler_bytes(MANY, MANY));
    struct sampler_options o = {.strategy = SAMPLE_SIZE_BALANCED, .max_masks = 8};
    for (uint32_t i = 0; i < MANY; i++)
        masks[i] = (struct mask){.area = 10 + i % 3, .predicted_iou = 1, .stability = 1};
    masks[77].area = 1e5;
    for (uint64_t seed = 0; seed < 50; seed++) {
        assert_int_equal(sampler_choose(&o, masks, MANY, 1000, 1000, seed, 0, 0, scratch, a), 8);
        bool largest = false;
        for (int i = 0; i < 8; i++) largest |= a[i] == 77;
        assert_true(largest);
    }
    for (uint32_t i = 0; i < MANY; i++) masks[i].area = 10; /* all equal: any eight */
    assert_int_equal(sampler_choose(&o, masks, MANY, 1000, 1000, 1, 0, 0, scratch, a), 8);
    /* random selection depends on seed, epoch and position, and is fair */
    uint32_t count[MANY] = {0};
    o.strategy = SAMPLE_RANDOM;
    for (uint64_t i = 0; i < 3000; i++) {
        sampler_choose(&o, masks, MANY, 1000, 1000, i % 3, i / 3 % 10, i, scratch, a);
        for (int k = 0; k < 8; k++) count[a[k]]++;
    }
    for (int i = 0; i < MANY; i++) assert_true(count[i] > 60 && count[i] < 180); /* mean 120, deviation 11 */
    /* four corners: the diverse strategy takes one of each */
    o.strategy = SAMPLE_DIVERSE, o.max_masks = 4;
    for (uint32_t i = 0; i < MANY; i++) {
        float x = i % 2 ? 900 : 10, y = i / 2 % 2 ? 900 : 10;
        masks[i] = (struct mask){.area = 100,
                                 .box = {x + (float)(i % 7), y + (float)(i % 5), 10, 10},
                                 .predicted_iou = i >= 100 && i < 104 ? 1 : 0.9f,
                                 .stability = 1};
    }
    for (uint64_t seed = 0; seed < 20; seed++) {
        assert_int_equal(sampler_choose(&o, masks, MANY, 1000, 1000, seed, 0, 0, scratch, a), 4);
        for (uint32_t i = 0; i < 4; i++) assert_int_equal(a[i], 100 + i); /* the best of each */
    }
    mem_free(scratch);
}

MAIN(NULL, NULL)

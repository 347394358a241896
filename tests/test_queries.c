/*
 * test_queries.c: files of queries (data/formats/queries.h), and which of them a dataset's images
 * have (data/formats/queries.h).
 */
#include "data/formats/queries.h"
#include "io/file.h"
#include "io/png.h"

#include "harness.h"

static int parse(struct queries *q, const char *text, struct error *e)
{
    char *copy = mem_string(text);
    const int rc = queries_parse(q, copy, strlen(text), "q", e);
    mem_free(copy);
    return rc;
}

static void check(const char *text, uint32_t n, const char *image, const char *words, int64_t mask, uint32_t line)
{
    struct queries q;
    struct error e;
    if (parse(&q, text, &e)) fail_msg("%s", e.text);
    assert_int_equal(q.list.n, n);
    const struct mask_query *last = &q.list.at[n - 1];
    assert_string_equal(last->image, image);
    assert_string_equal(last->text, words);
    assert_int_equal(last->mask, mask);
    assert_int_equal(last->line, line);
    queries_free(&q);
}

TEST(test_formats)
{
    check("image,query,mask_id\na.jpg,\"left, the red one\",7\n", 1, "a.jpg", "left, the red one", 7, 2);
    check("Mask_ID;caption;extra;file_name\n1;x;;a\n-2;y;;b\n", 2, "b", "y", -2, 3);
    check("[{\"image\": \"a\", \"query\": \"x\", \"mask_id\": 3}, {\"image_id\": 12, \"text\": \"y\", "
          "\"annotation_id\": \"4\"}]",
          2, "12", "y", 4, 2);
    check("{\"image\": \"a\", \"expression\": \"x\", \"target\": 3}\n\n{\"image\": \"b\", \"phrase\": \"z\", \"mask\": "
          "9}\n",
          2, "b", "z", 9, 3);
}

static void refuse(const char *text, const char *says)
{
    struct queries q;
    struct error e;
    assert_int_equal(parse(&q, text, &e), PL_USAGE);
    if (!strstr(e.text, says)) fail_msg("expected \"%s\" in: %s", says, e.text);
    queries_free(&q);
}

TEST(test_refused)
{
    refuse("", "q: it is empty");
    refuse("image,query,mask_id\n", "q: it has no queries");
    refuse("[]", "q: it has no queries");
    refuse("image,mask_id\na,1\n", "q: its first line names no column for the text");
    refuse("image,query,mask_id\na,x,1\nb,,2\n", "q:3: no text");
    refuse("image,query,mask_id\na,x\n", "q:2: no mask");
    refuse("image,query,mask_id\na,x,left\n", "q:2: the mask is \"left\", expected the id");
    refuse("[{\"image\": \"a\", \"query\": \"x\"}]", "q:1: no mask");
    refuse("[3]", "q:1: expected an object");
    refuse("{\"image\": \"a\"\n", "q:1: ");
}

TEST(test_keys)
{
    static const char *const pairs[][2] = {{"sa_000020/sa_223750.jpg", "223750"},
                                           {"223750", "223750"},
                                           {"000000397133.JPG", "397133"},
                                           {"a/b.c.png", "b.c"},
                                           {"0", "0"},
                                           {"007x.png", "007x"}};
    char out[64];
    for (size_t i = 0; i < COUNT(pairs); i++)
        assert_string_equal(query_image_key(pairs[i][0], out, sizeof out), pairs[i][1]);
}

/* --- a dataset ------------------------------------------------------------------------------ */

static const char annotations[] = "{\"images\":[{\"id\":1,\"file_name\":\"a.png\",\"width\":8,\"height\":8},{\"id\":2,"
                                  "\"file_name\":\"b.png\",\"width\":8,\"height\":8}],"
                                  "\"annotations\":[{\"id\":10,\"image_id\":1,\"category_id\":1,\"iscrowd\":0,\"area\":"
                                  "4,\"bbox\":[0,0,2,2],\"segmentation\":[[0,0,2,0,2,2,0,2]]},"
                                  "{\"id\":11,\"image_id\":1,\"category_id\":1,\"iscrowd\":0,\"area\":4,\"bbox\":[4,4,"
                                  "2,2],\"segmentation\":[[4,4,6,4,6,6,4,6]]},"
                                  "{\"id\":20,\"image_id\":2,\"category_id\":1,\"iscrowd\":0,\"area\":4,\"bbox\":[0,0,"
                                  "2,2],\"segmentation\":[[0,0,2,0,2,2,0,2]]}],"
                                  "\"categories\":[{\"id\":1,\"name\":\"x\"}]}";

static void write_dataset(char path[4096])
{
    struct error e;
    uint8_t pixels[8 * 8 * 3] = {0};
    for (int i = 0; i < 2; i++) {
        snprintf(path, 4096, "%s/%c.png", folder, 'a' + i);
        if (png_write(path, PNG_RGB, 8, 8, pixels, 0, &e)) fail_msg("%s", e.text);
    }
    snprintf(path, 4096, "%s/masks.json", folder);
    if (file_write_atomic(path, annotations, strlen(annotations), &e)) fail_msg("%s", e.text);
}

static int open_set(struct dataset **d, struct query_set *s, const char *text, struct query_set_options o,
                    struct error *e)
{
    char path[4096], *paths[] = {path};
    struct queries q;
    write_dataset(path);
    if (dataset_open(d, &(struct dataset_options){.format = "coco", .paths = paths, .n_paths = 1, .images = folder}, e))
        fail_msg("%s", e->text);
    if (parse(&q, text, e)) fail_msg("%s", e->text);
    o.room = 1 << 20;
    o.vocabulary = 256;
    const int rc = query_set_open(s, *d, &q, &o, e);
    queries_free(&q);
    return rc;
}

/* Image b comes first in the file, and a has three queries where two have room. */
TEST(test_samples)
{
    struct dataset *d;
    struct query_set s;
    struct error e;
    int32_t ids[8], positions[8], ranges[8][2], last[2];
    const char *text =
        "image,query,mask_id\nb,xy,20\na.png,abc,11\na,d,10\nelsewhere,e,1\na,f,11\nb,nothing,99\na,much too long,10\n";
    if (open_set(&d, &s, text, (struct query_set_options){.queries = 2, .sequence = 8}, &e)) fail_msg("%s", e.text);
    assert_int_equal(s.samples, 3);
    assert_int_equal(dataset_count(d), 3);
    assert_int_equal(s.first.at[1], 2);
    assert_int_equal(s.first.at[2], 3);
    assert_int_equal(s.first.at[3], 4);
    assert_int_equal(s.mask.at[0], 11);
    assert_int_equal(s.mask.at[1], 10);
    assert_int_equal(s.mask.at[3], 20);
    assert_int_equal(s.elsewhere, 1);
    assert_int_equal(s.missing, 1);
    assert_int_equal(s.too_long, 1);
    struct text left = {0};
    assert_true(query_set_print_left(&s, &left));
    assert_string_equal(left.at, "left out: 1 query of a mask that does not exist (line 7: image b has no mask 99), 1 "
                                 "query longer than data.sequence");
    text_free(&left);
    assert_int_equal(query_set_row(&s, 0, 8, 2, ids, positions, ranges, last), 4);
    assert_memory_equal(ids, ((int32_t[]){'a', 'b', 'c', 'd', 0, 0, 0, 0}), sizeof ids);
    assert_memory_equal(positions, ((int32_t[]){0, 1, 2, 0, 0, 0, 0, 0}), sizeof positions);
    assert_memory_equal(ranges, ((int32_t[]){0, 1, 0, 2, 0, 3, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0}), sizeof ranges);
    assert_memory_equal(last, ((int32_t[]){2, 3}), sizeof last);
    query_set_row(&s, 1, 8, 2, ids, positions, ranges, last);
    assert_memory_equal(last, ((int32_t[]){0, -1}), sizeof last);
    query_set_close(&s);
    dataset_close(d);
}

TEST(test_none)
{
    struct dataset *d;
    struct query_set s;
    struct error e;
    assert_int_equal(open_set(&d, &s, "image,query,mask_id\nc,x,1\n",
                              (struct query_set_options){.queries = 2, .sequence = 8}, &e),
                     PL_USAGE);
    assert_non_null(strstr(e.text, "1 of 1 are of images that are not in the data (such as c)"));
    query_set_close(&s);
    dataset_close(d);
    assert_int_equal(open_set(&d, &s, "image,query,mask_id\na,x,1\n",
                              (struct query_set_options){.queries = 2, .sequence = 8}, &e),
                     PL_USAGE);
    assert_non_null(strstr(e.text, "1 name a mask that does not exist (line 2: image a has no mask 1)"));
    query_set_close(&s);
    dataset_close(d);
}

MAIN(make_folder, remove_folder)

/*
 * test_parquet.c: tables that datasets and pyarrow wrote (tests/golden/make_parquet.py): every row
 * and every cell has its values; cut and damaged files are refused in one line.
 */
#include <fcntl.h>
#include <zlib.h>

#include "io/file.h"
#include "io/json.h"
#include "io/parquet_rows.h"

#include "harness.h"

#define GOLDEN "tests/golden/parquet/"

static const char *const names[] = {"chats",        "texts",        "types_none",  "types_snappy", "types_gzip",
                                    "types_zstd",   "types_v2",     "types_plain", "masks",        "masks_snappy",
                                    "mask_lists",   "mask_columns", "talks",       "fast",         "halves",
                                    "halves_plain", "words"};

static bool all(const char *name) { return name[0] != 0; }

/* A build without libzstd says so. */
static bool is_read(const char *name) { return codec_zstd.open || !strstr(name, "zstd"); }

TEST(rows_are_those_written)
{
    for (size_t i = 0; i < COUNT(names); i++) {
        char path[256], *expected;
        struct parquet p;
        struct parquet_rows r;
        struct text row = {0};
        struct error e;
        size_t n;
        bool more = true;
        if (!is_read(names[i])) continue;
        snprintf(path, sizeof path, GOLDEN "%s.jsonl", names[i]);
        assert_int_equal(file_read(path, 1 << 20, &expected, &n, &e), 0);
        snprintf(path, sizeof path, GOLDEN "%s.parquet", names[i]);
        assert_int_equal(parquet_open(&p, path, &e), 0);
        parquet_rows_open(&r, &p, all, 64 << 20);
        for (const char *line = expected; *line; line = strchr(line, '\n') + 1) {
            struct bump b = {0};
            struct value *want, *found;
            if (r.times > 1) r.times--; /* the last row again */
            else if (parquet_rows_next(&r, &row, &more, &e)) fail_msg("%s: %s", names[i], e.text);
            assert_true(more);
            assert_int_equal(json_parse(line, (size_t)(strchr(line, '\n') - line), &b, &want, &e), 0);
            if (json_parse(row.at, row.n, &b, &found, &e)) fail_msg("%s: %s: %s", names[i], row.at, e.text);
            if (!value_equal(want, found))
                fail_msg("%s: %.*s was read as %s", names[i], (int)(strchr(line, '\n') - line), line, row.at);
            bump_free(&b);
        }
        assert_int_equal(parquet_rows_next(&r, &row, &more, &e), 0);
        assert_false(more);
        text_free(&row);
        parquet_rows_close(&r);
        parquet_close(&p);
        mem_free(expected);
    }
}

static void check_cell(const char *name, struct parquet_cell at, const char *expected)
{
    static char room[1 << 16];
    struct parquet p;
    struct error e;
    enum cell_state state;
    size_t n, length = 0;
    unsigned crc = 0;
    char path[256];
    const bool there = sscanf(expected, "%zu %u", &length, &crc) == 2;
    snprintf(path, sizeof path, GOLDEN "%s.parquet", name);
    assert_int_equal(parquet_open(&p, path, &e), 0);
    assert_int_equal(parquet_index(&p, at.column, &e), 0);
    if (parquet_cell(&p, at, room, sizeof room, &n, &state, &e)) fail_msg("%s", e.text);
    assert_int_equal(state, there ? CELL_THERE : CELL_NULL);
    if (there) assert_int_equal(n, length), assert_int_equal(crc32(0, (const void *)room, (unsigned)n), crc);
    if (there && n)
        assert_int_equal(parquet_cell(&p, at, room, n - 1, &n, &state, &e), PL_NOFIT), assert_int_equal(n, length);
    at.item += 100;
    assert_int_equal(parquet_cell(&p, at, NULL, 0, &n, &state, &e), 0);
    assert_int_equal(state, CELL_NONE);
    parquet_close(&p);
}

TEST(cells_are_those_written)
{
    FILE *f = fopen(GOLDEN "cells.txt", "r");
    char name[64], rest[64];
    struct parquet_cell at;
    unsigned long row;
    int n = 0;
    assert_non_null(f);
    while (fscanf(f, "%63s %lu %u %u %63[^\n]", name, &row, &at.column, &at.item, rest) == 5) {
        at.row = row;
        if (is_read(name)) check_cell(name, at, rest), n++;
    }
    assert_true(n > 200);
    fclose(f);
}

TEST(references_are_taken_apart)
{
    struct parquet_cell c;
    char path[64];
    assert_true(parquet_reference("parquet:a/b.parquet/12/3/1", path, sizeof path, &c));
    assert_string_equal(path, "a/b.parquet");
    assert_true(c.row == 11 && c.column == 3 && c.item == 0);
    static const char *const bad[] = {"a/b.parquet/12/3/1", "parquet:",        "parquet:1/2/3",    "parquet:a/0/1/1",
                                      "parquet:a/1/1/0",    "parquet:a/1/1/x", "parquet:a/1/1/1/", "parquet:a/x/1/1"};
    for (size_t i = 0; i < COUNT(bad); i++) assert_false(parquet_reference(bad[i], path, sizeof path, &c) && *path);
}

TEST(find_leaves_of_images)
{
    struct parquet p;
    struct error e;
    bool many;
    assert_int_equal(parquet_open(&p, GOLDEN "talks.parquet", &e), 0);
    assert_int_equal(parquet_image_leaf(&p, parquet_find(&p, "images"), &many), 1);
    assert_true(many);
    assert_int_equal(parquet_image_leaf(&p, parquet_find(&p, "id"), &many), -1);
    assert_int_equal(parquet_image_leaf(&p, parquet_find(&p, "conversations"), &many), -1);
    assert_int_equal(parquet_find(&p, "image"), 0);
    parquet_close(&p);
    assert_int_equal(parquet_open(&p, GOLDEN "masks.parquet", &e), 0);
    assert_int_equal(parquet_image_leaf(&p, parquet_find(&p, "mask"), &many), 2);
    assert_false(many);
    parquet_close(&p);
}

/* Reads all that a file has; the number of rows, or -1 and a message. */
static int64_t read_all(const char *path, struct error *e)
{
    static char room[1 << 16];
    struct parquet p;
    struct parquet_rows r;
    struct text row = {0};
    bool more = true;
    int64_t n = 0;
    size_t bytes;
    enum cell_state state;
    if (parquet_open(&p, path, e)) return -1;
    parquet_rows_open(&r, &p, all, 64 << 20);
    while (!parquet_rows_next(&r, &row, &more, e) && more) n++;
    if (more) n = -1;
    for (uint32_t c = 0; c < p.n_columns && n >= 0; c++)
        if (p.nodes[p.columns[c]].type == PARQUET_BYTES && parquet_index(&p, c, e)) n = -1;
        else
            for (uint64_t k = 0; k < p.rows && n >= 0 && p.nodes[p.columns[c]].type == PARQUET_BYTES; k++)
                if (parquet_cell(&p, (struct parquet_cell){c, k, 0}, room, sizeof room, &bytes, &state, e)) n = -1;
    text_free(&row);
    parquet_rows_close(&r);
    parquet_close(&p);
    return n;
}

static void write_file(const char *path, const char *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_true(f && fwrite(bytes, 1, n, f) == n && !fclose(f));
}

TEST(cut_files_are_refused)
{
    char path[512], *bytes;
    size_t n;
    struct error e;
    snprintf(path, sizeof path, "%s/cut.parquet", folder);
    assert_int_equal(file_read(GOLDEN "masks.parquet", 1 << 20, &bytes, &n, &e), 0);
    write_file(path, bytes, n);
    for (size_t k = n; k-- > 0; k = k > 64 && k + 64 < n ? k - 64 : k) {
        assert_int_equal(truncate(path, (off_t)k), 0);
        assert_int_equal(read_all(path, &e), -1);
        assert_true(e.code == PL_USAGE && !strncmp(e.text, path, strlen(path)) && !strchr(e.text, '\n'));
    }
    write_file(path, bytes, n / 2);
    assert_int_equal(read_all(path, &e), -1);
    assert_non_null(strstr(e.text, "the file is cut, or its download was not completed"));
    write_file(path, "{\"text\": \"a\"}      ", 18);
    assert_int_equal(read_all(path, &e), -1);
    assert_non_null(strstr(e.text, "it is not a Parquet table"));
    mem_free(bytes);
}

/* Each byte of a small table, changed: it is read, or refused in one line. */
TEST(damaged_files_are_refused)
{
    static const char *const files[] = {"texts", "types_v2", "types_plain"};
    char path[512], *bytes;
    size_t n;
    struct error e;
    snprintf(path, sizeof path, "%s/damaged.parquet", folder);
    for (size_t i = 0; i < COUNT(files); i++) {
        char from[256];
        snprintf(from, sizeof from, GOLDEN "%s.parquet", files[i]);
        assert_int_equal(file_read(from, 1 << 20, &bytes, &n, &e), 0);
        write_file(path, bytes, n);
        const int fd = open(path, O_RDWR);
        for (size_t k = 0; k < n; k += i ? 3 : 1) {
            const char other = (char)(bytes[k] ^ (k % 2 ? 0x80 : 0x15));
            assert_int_equal(pwrite(fd, &other, 1, (off_t)k), 1);
            e = (struct error){0};
            if (read_all(path, &e) < 0)
                assert_true(e.code == PL_USAGE && !strncmp(e.text, path, strlen(path)) && !strchr(e.text, '\n'));
            assert_int_equal(pwrite(fd, &bytes[k], 1, (off_t)k), 1);
        }
        close(fd);
        mem_free(bytes);
    }
}

/* --- tables that no program writes (hostile/) ------------------------------------------------- */

TEST(rows_without_values_are_one)
{
    struct parquet p;
    struct parquet_rows r;
    struct text row = {0};
    struct error e;
    bool more;
    assert_int_equal(parquet_open(&p, GOLDEN "hostile/nulls.parquet", &e), 0);
    parquet_rows_open(&r, &p, all, 64 << 20);
    assert_int_equal(parquet_rows_next(&r, &row, &more, &e), 0);
    assert_true(more);
    assert_string_equal(row.at, "{\"text\": null}");
    assert_int_equal(r.times, 100000000);
    assert_int_equal(parquet_rows_next(&r, &row, &more, &e), 0);
    assert_false(more);
    text_free(&row);
    parquet_rows_close(&r);
    parquet_close(&p);
}

/* A cell's position is found by runs: a thousand cells of a hundred million rows. */
TEST(cells_are_found_by_runs)
{
    struct parquet p;
    struct error e;
    enum cell_state found;
    size_t n;
    assert_int_equal(parquet_open(&p, GOLDEN "hostile/image_nulls.parquet", &e), 0);
    assert_int_equal(parquet_index(&p, 1, &e), 0);
    for (uint64_t i = 0; i < 1000; i++) {
        assert_int_equal(parquet_cell(&p, (struct parquet_cell){1, 99999999 - i, 0}, NULL, 0, &n, &found, &e), 0);
        assert_int_equal(found, CELL_NULL);
    }
    parquet_close(&p);
}

TEST(memory_of_all_columns_is_bounded)
{
    struct error e;
    if (!codec_zstd.open) {
        print_message("built without libzstd: no table has a large dictionary here\n");
        return;
    }
    assert_int_equal(read_all(GOLDEN "hostile/dictionaries.parquet", &e), -1);
    assert_non_null(strstr(e.text, "column prompt: its dictionary, levels or value take 40000000 bytes"));
    assert_non_null(strstr(e.text, "(data.sample_memory)"));
}

TEST(odd_tables_are_read)
{
    struct error e;
    assert_int_equal(read_all(GOLDEN "hostile/no_rows.parquet", &e), 0);
    if (read_all(GOLDEN "hostile/members.parquet", &e) != 2) fail_msg("two gzip members: %s", e.text);
    if (read_all(GOLDEN "hostile/short.parquet", &e) != 2)
        fail_msg("a chunk that is longer than the footer says: %s", e.text);
    assert_int_equal(read_all(GOLDEN "delta.parquet", &e), -1);
    assert_non_null(strstr(e.text, "its values are encoded as DELTA_BYTE_ARRAY, which is not read"));
}

/* Literals, copies that overlap, and what is refused. */
TEST(snappy_is_decoded)
{
    static struct codec c; /* has a window of 64 KiB */
    static const struct {
        const char *in;
        size_t n, out;
        const char *expected; /* NULL: it is damaged */
    } cases[] = {
        {"\x05\x10"
         "abcde",
         7, 5, "abcde"},
        {"\x0a\x00"
         "a\x15\x01",
         5, 10, "aaaaaaaaaa"},
        {"\x08\x04"
         "ab\x16\x02\x00",
         7, 8, "abababab"},
        {"\x08\x04"
         "ab\x17\x02\x00\x00\x00",
         9, 8, "abababab"},
        {"\x05\xf0\x04"
         "abcde",
         8, 5, "abcde"},
        {"\x05\x10"
         "abcd",
         6, 5, NULL},
        {"\x05\x10"
         "abcde",
         7, 6, NULL},
        {"\x08\x04"
         "ab\x16\x03\x00",
         7, 8, NULL},
        {"\x08\x04"
         "ab\x16\x00\x00",
         7, 8, NULL},
        {"", 0, 0, NULL},
        {"\xff\xff\xff\xff\xff\xff", 6, 5, NULL},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        for (size_t part = 1; part <= 8; part *= 2) {
            struct error e;
            uint8_t out[16] = {0};
            int rc = codec_open(&c, CODEC_SNAPPY, cases[i].in, cases[i].n, cases[i].out, &e);
            for (size_t at = 0; at < cases[i].out && !rc; at += part)
                rc = codec_read(&c, out + at, min_u64(part, cases[i].out - at), &e);
            assert_int_equal(rc, cases[i].expected ? PL_OK : PL_USAGE);
            if (cases[i].expected) assert_memory_equal(out, cases[i].expected, cases[i].out);
        }
}

MAIN(make_folder, remove_folder)

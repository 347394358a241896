/*
 * test_shard.c: tar archives of many kinds: any order, any dialect, damaged, truncated; and the
 * index file beside them: used, rejected when stale or damaged, rebuilt.
 */
#include <fcntl.h>
#include <sys/stat.h>

#include "base/coding.h"
#include "data/formats/sa1b.h"
#include "data/formats/tar.h"
#include "io/file.h"

#include "harness.h"

/* --- archives by hand ------------------------------------------------------------------ */

static void write_checksum(char *block)
{
    memset(block + 148, ' ', 8);
    unsigned sum = 0;
    for (int i = 0; i < 512; i++) sum += (unsigned char)block[i];
    snprintf(block + 148, 8, "%06o", sum);
}

/* A header of any type, followed by `n` bytes and their padding. */
static void put(struct text *t, const char *name, char type, const void *bytes, size_t n)
{
    char block[512] = {0};
    snprintf(block, 100, "%s", name);
    snprintf(block + 100, 8, "0000644");
    snprintf(block + 124, 12, "%011o", (unsigned)n);
    snprintf(block + 136, 12, "00000000000");
    block[156] = type;
    memcpy(block + 257, "ustar\0" "00", 8);
    write_checksum(block);
    text_append(t, block, 512);
    text_append(t, bytes, n);
    memset(block, 0, 512);
    text_append(t, block, (512 - n % 512) % 512);
}

static void put_file(struct text *t, const char *name, const char *bytes) { put(t, name, '0', bytes, strlen(bytes)); }

static void put_end(struct text *t)
{
    char zeros[1024] = {0};
    text_append(t, zeros, sizeof zeros);
}

static void put_pax(struct text *t, char type, const char *key, const char *value)
{
    char record[2048];
    int length = (int)(strlen(key) + strlen(value) + 3), digits = length + 1 >= 100 ? 3 : length + 1 >= 10 ? 2 : 1;
    if (length + digits >= 1000) digits = 4;
    snprintf(record, sizeof record, "%d %s=%s\n", length + digits, key, value);
    assert_int_equal(strlen(record), (size_t)(length + digits));
    put(t, "PaxHeaders/x", type, record, strlen(record));
}

/* All members, as "name=content;" in a text. */
static void list(struct text *archive, struct text *out, struct tar *t)
{
    struct tar_member *m = mem_alloc(sizeof *m);
    struct error e;
    bool more;
    char *exact = mem_copy(archive->at, archive->n);
    tar_open(t, -1, exact, archive->n);
    text_printf(out, "%s", "");
    for (;;) {
        assert_int_equal(tar_next(t, m, &more, &e), PL_OK);
        if (!more) break;
        text_printf(out, "%s=%.*s;", m->name, (int)m->size, exact + m->offset);
    }
    mem_free(exact);
    mem_free(m);
}

#define EXPECT(archive, want)                     \
    do {                                          \
        struct text out_ = {0};                   \
        list(archive, &out_, t);                  \
        assert_string_equal(out_.at, want);       \
        text_free(&out_);                         \
    } while (0)

TEST(test_dialects)
{
    struct tar *t = mem_alloc(sizeof *t);
    struct text a = {0};
    put_file(&a, "./b.json", "{}");
    put(&a, "folder/", '5', "", 0);
    put(&a, "old folder/", 0, "", 0);
    put(&a, "link", '2', "", 0);
    put_pax(&a, 'x', "path", "./long/path/of/a.jpg");
    put_file(&a, "short", "A");
    put_pax(&a, 'x', "mtime", "1700000000.123");
    put_file(&a, "c.jpg", "C");
    char name[300];
    memset(name, 'n', sizeof name);
    name[299] = 0;
    put(&a, "././@LongLink", 'L', name, 300);
    put_file(&a, "nnn", "D");
    put(&a, "v7", 0, "E", 1);
    put_end(&a);
    struct text want = {0};
    text_printf(&want, "./b.json={};./long/path/of/a.jpg=A;c.jpg=C;%s=D;v7=E;", name);
    EXPECT(&a, want.at);
    assert_true(!t->damaged && !t->partial && t->members == 5 && t->others == 3);
    text_free(&want);
    text_free(&a);
    mem_free(t);
}

TEST(test_sizes)
{
    struct tar *t = mem_alloc(sizeof *t);
    struct text a = {0};
    put_file(&a, "a", "12345"); /* base 256 */
    memset(a.at + 124, 0, 12);
    a.at[124] = (char)0x80, a.at[135] = 5;
    write_checksum(a.at);
    size_t second = a.n;
    put_pax(&a, 'x', "size", "3"); /* the pax size takes precedence */
    size_t third = a.n;
    put_file(&a, "b", "abc");
    snprintf(a.at + third + 124, 12, "00000000000");
    write_checksum(a.at + third);
    put_file(&a, "c", "x");
    memcpy(a.at + a.n - 1024 + 345, "some/prefix", 11);
    write_checksum(a.at + a.n - 1024);
    put_end(&a);
    EXPECT(&a, "a=12345;b=abc;some/prefix/c=x;");
    assert_int_equal(t->damaged, 0);
    /* a negative and a huge base-256 number */
    memset(a.at + 124, 0xff, 12);
    write_checksum(a.at);
    EXPECT(&a, "b=abc;some/prefix/c=x;");
    assert_true(t->damaged == 1 && t->first_bad == 0 && t->lost == second);
    a.at[124] = (char)0x80;
    write_checksum(a.at);
    EXPECT(&a, "b=abc;some/prefix/c=x;");
    text_free(&a);
    mem_free(t);
}

TEST(test_damage)
{
    struct tar *t = mem_alloc(sizeof *t);
    struct text a = {0};
    put_file(&a, "a", "1");
    size_t b = a.n;
    put_file(&a, "b", "2");
    put_file(&a, "c", "3");
    put_end(&a); /* zero blocks inside */
    put_file(&a, "d", "4");
    size_t d_end = a.n;
    put_end(&a);
    EXPECT(&a, "a=1;b=2;c=3;d=4;");
    a.at[b + 3] ^= 1; /* one flipped bit in a header: this member is lost and no other */
    EXPECT(&a, "a=1;c=3;d=4;");
    assert_true(t->damaged == 1 && t->first_bad == b && t->lost == 1024 && !t->partial);
    a.at[b + 3] ^= 1;
    for (size_t cut = 0; cut < a.n; cut += 7) { /* truncated anywhere: all earlier members are read */
        struct text part = {.at = a.at, .n = cut};
        struct text out = {0};
        list(&part, &out, t);
        size_t members = (cut >= 513) + (cut >= 1024 + 513) + (cut >= 2048 + 513) + (cut >= d_end - 511);
        assert_int_equal(out.n / 4, members);
        text_free(&out);
    }
    a.n = d_end - 511; /* the padding of the last is missing: nothing is lost */
    EXPECT(&a, "a=1;b=2;c=3;d=4;");
    a.n -= 1;
    EXPECT(&a, "a=1;b=2;c=3;");
    assert_true(t->partial);
    text_free(&a);
    mem_free(t);
}

TEST(test_sniff)
{
    assert_int_equal(tar_sniff("\x1f\x8b\x08", 3), TAR_GZIP);
    assert_int_equal(tar_sniff("\x28\xb5\x2f\xfd", 4), TAR_ZSTD);
    assert_int_equal(tar_sniff("./sa", 4), TAR_PLAIN);
    assert_int_equal(tar_sniff("", 0), TAR_PLAIN);
    assert_int_equal(crc32c(0, "123456789", 9), 0xe3069283u); /* the check value of the polynomial */
    assert_int_equal(crc32c(crc32c(0, "1234", 4), "56789", 5), 0xe3069283u);
}

/* --- shards ----------------------------------------------------------------------------- */

struct fixture {
    char dir[64];
    char tar[96], idx[112];
};

static int fixture_open(void **state)
{
    struct fixture *p = mem_alloc(sizeof *p);
    strcpy(p->dir, "/tmp/plimsoll-shard-XXXXXX");
    if (!mkdtemp(p->dir)) return -1;
    snprintf(p->tar, sizeof p->tar, "%s/s.tar", p->dir);
    snprintf(p->idx, sizeof p->idx, "%s.idx", p->tar);
    *state = p;
    log_quiet(true);
    return 0;
}

static int fixture_close(void **state)
{
    struct fixture *p = *state;
    struct error e;
    tree_remove(p->dir, &e);
    mem_free(p);
    return 0;
}

static void save(const char *path, const struct text *a)
{
    struct error e;
    assert_int_equal(file_write_atomic(path, a->at, a->n, &e), PL_OK);
}

static void assert_pair(const struct shard *s, uint32_t i, const char *key, const char *image, const char *text)
{
    char bytes[64];
    size_t n;
    struct error e;
    assert_string_equal(shard_key(s, i), key);
    assert_int_equal(shard_read(s, i, SHARD_IMAGE, bytes, sizeof bytes, &n, &e), PL_OK);
    assert_true(n == strlen(image) && !memcmp(bytes, image, n));
    assert_int_equal(shard_read(s, i, SHARD_TEXT, bytes, sizeof bytes, &n, &e), PL_OK);
    assert_true(n == strlen(text) && !memcmp(bytes, text, n));
    assert_int_equal(shard_read(s, i, SHARD_TEXT, bytes, strlen(text) - 1, &n, &e), PL_NOFIT);
    assert_int_equal(n, strlen(text));
}

/* Annotations first, other files between, halves without partners, one duplicate. */
static void sample_tar(struct text *a)
{
    put_file(a, "./sa_2.json", "two");
    put_file(a, "./sa_1.JPG", "one!");
    put_file(a, "README.md", "hello");
    put_file(a, "x/sa_1.json", "one");
    put_file(a, "./sa_3.json", "three");
    put_file(a, "./sa_2.jpeg", "two!");
    put_file(a, "./sa_2.json", "again");
    put_file(a, "./sa_4.jpg", "four!");
    put_end(a);
}

TEST_WITH(test_pairs, fixture_open, fixture_close)
{
    struct fixture *p = *state;
    struct text a = {0};
    struct shard s;
    struct error e;
    sample_tar(&a);
    save(p->tar, &a);
    for (int turn = 0; turn < 2; turn++) { /* built, then read from the index */
        assert_int_equal(shard_open(&s, p->tar, &e), PL_OK);
        assert_int_equal(s.cached, turn);
        assert_int_equal(s.n, 2);
        assert_pair(&s, 0, "sa_1", "one!", "one");
        assert_pair(&s, 1, "sa_2", "two!", "two");
        const struct shard_report *r = &s.report;
        assert_true(r->members == 8 && r->others == 1 && r->no_image == 1 && r->no_text == 1 && r->duplicates == 1);
        char line[256];
        assert_true(shard_report_print(r, line, sizeof line));
        assert_string_equal(line, "1 annotations without an image, 1 images without annotations, 1 duplicates");
        uint64_t before = mem_allocations();
        char bytes[8];
        size_t n;
        shard_prefetch(&s, 1);
        assert_int_equal(shard_read(&s, 1, SHARD_IMAGE, bytes, sizeof bytes, &n, &e), PL_OK);
        assert_true(mem_allocations() == before);
        shard_close(&s);
    }
    text_free(&a);
}

/* An index of another shard, or an incomplete one, is not used. */
TEST_WITH(test_index, fixture_open, fixture_close)
{
    struct fixture *p = *state;
    struct text a = {0};
    struct shard s;
    struct error e;
    char *idx;
    size_t n;
    sample_tar(&a);
    save(p->tar, &a);
    assert_int_equal(shard_open(&s, p->tar, &e), PL_OK);
    shard_close(&s);
    assert_int_equal(file_read(p->idx, 1 << 20, &idx, &n, &e), PL_OK);
    for (size_t i = 0; i < n; i += 3) { /* any byte flipped, truncated to any length */
        struct text bad = {.at = idx, .n = i % 2 ? n : i};
        idx[i] ^= 0x10;
        save(p->idx, &bad);
        idx[i] ^= 0x10;
        assert_int_equal(shard_open(&s, p->tar, &e), PL_OK);
        assert_true(!s.cached && s.n == 2);
        shard_close(&s);
    }
    assert_int_equal(shard_open(&s, p->tar, &e), PL_OK); /* the last one was rebuilt and saved */
    assert_true(s.cached);
    shard_close(&s);
    a.at[a.n - 1024 - 512] = 'F'; /* same size, other bytes, and then the same time as well */
    struct stat st;
    assert_int_equal(stat(p->tar, &st), 0);
    save(p->tar, &a);
    assert_int_equal(utimensat(AT_FDCWD, p->tar, (struct timespec[2]){st.st_mtim, st.st_mtim}, 0), 0);
    assert_int_equal(shard_open(&s, p->tar, &e), PL_OK);
    assert_true(!s.cached);
    shard_close(&s);
    mem_free(idx);
    text_free(&a);
}

/* Where no file can be written beside the shard (here: a folder has its name), the index is written
 * to the cache folder. */
TEST_WITH(test_cache, fixture_open, fixture_close)
{
    struct fixture *p = *state;
    struct text a = {0};
    struct shard s;
    struct error e;
    char cache[96];
    snprintf(cache, sizeof cache, "%s/cache", p->dir);
    setenv("XDG_CACHE_HOME", cache, 1);
    sample_tar(&a);
    save(p->tar, &a);
    assert_int_equal(mkdir(p->idx, 0755), 0);
    assert_int_equal(shard_open(&s, p->tar, &e), PL_OK);
    assert_false(s.cached);
    shard_close(&s);
    assert_int_equal(shard_open(&s, p->tar, &e), PL_OK);
    assert_true(s.cached);
    shard_close(&s);
    unsetenv("XDG_CACHE_HOME");
    text_free(&a);
}

TEST_WITH(test_refused, fixture_open, fixture_close)
{
    struct fixture *p = *state;
    struct text a = {0};
    struct shard s;
    struct error e;
    text_append(&a, "\x1f\x8b\x08\x00 and so on", 14);
    save(p->tar, &a);
    assert_int_equal(shard_open(&s, p->tar, &e), PL_USAGE);
    assert_non_null(strstr(e.text, "gzip"));
    assert_non_null(strstr(e.text, "data prepare"));
    assert_int_equal(shard_open(&s, "/nowhere/at/all.tar", &e), PL_USAGE);
    a.n = 0;
    text_append(&a, "", 0);
    save(p->tar, &a);
    assert_int_equal(shard_open(&s, p->tar, &e), PL_OK); /* empty: no pairs, no error */
    assert_int_equal(s.n, 0);
    shard_close(&s);
    text_free(&a);
}

TEST_WITH(test_folder, fixture_open, fixture_close)
{
    struct fixture *p = *state;
    static const struct { const char *name, *bytes; } files[] = {
        {"sa_1.jpg", "one!"}, {"sa_1.json", "one"}, {"sa_2.json", "two"}, {"sa_2.JPG", "two!"}, {"sa_3.json", "three"}};
    struct shard s;
    struct error e;
    for (size_t i = 0; i < COUNT(files); i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", p->dir, files[i].name);
        struct text t = {.at = (char *)files[i].bytes, .n = strlen(files[i].bytes)};
        save(path, &t);
    }
    assert_int_equal(shard_open(&s, p->dir, &e), PL_OK);
    assert_int_equal(s.n, 2);
    assert_pair(&s, 0, "sa_1", "one!", "one");
    assert_pair(&s, 1, "sa_2", "two!", "two");
    assert_int_equal(s.report.no_image, 1);
    shard_close(&s);
}

/* The reader reads the writer's archives. */
TEST_WITH(test_writer, fixture_open, fixture_close)
{
    struct fixture *p = *state;
    struct error e;
    char deep[160] = "some/", tail[96];
    memset(tail, 'd', 95), tail[95] = 0;
    strcat(deep, tail);
    struct tar_writer w = {.fd = open(p->tar, O_RDWR | O_CREAT, 0644)};
    assert_true(w.fd >= 0);
    assert_int_equal(tar_write_member(&w, "sa_1.jpg", "one!", 4, &e), PL_OK);
    assert_int_equal(tar_write_member(&w, deep, "", 0, &e), PL_OK);
    strcat(deep, ".jpg");
    assert_int_equal(tar_write_member(&w, deep, "deep", 4, &e), PL_OK);
    assert_int_equal(tar_write_member(&w, "sa_1.json", "one", 3, &e), PL_OK);
    assert_int_equal(tar_write_end(&w, &e), PL_OK);
    struct tar *t = mem_alloc(sizeof *t);
    struct tar_member m;
    bool more;
    const char *names[] = {"sa_1.jpg", NULL, deep, "sa_1.json"};
    tar_open(t, w.fd, NULL, w.at);
    for (size_t i = 0; i < COUNT(names); i++) {
        assert_int_equal(tar_next(t, &m, &more, &e), PL_OK);
        assert_true(more);
        if (names[i]) assert_string_equal(m.name, names[i]);
    }
    assert_true(!tar_next(t, &m, &more, &e) && !more && !t->damaged && !t->partial);
    mem_free(t);
    close(w.fd);
}

/* Names that need a pax header, in all lengths: the number of digits in its record changes between
 * them. Members behind it have their own. */
TEST_WITH(test_writer_long, fixture_open, fixture_close)
{
    struct fixture *p = *state;
    struct error e;
    struct tar_writer w = {.fd = open(p->tar, O_RDWR | O_CREAT, 0644)};
    char name[TAR_NAME + 1];
    for (size_t n = 95; n <= TAR_NAME; n++) {
        memset(name, 'n', n), name[n] = 0;
        memcpy(name + n - 4, ".jpg", 4);
        assert_int_equal(tar_write_member(&w, name, "long", 4, &e), n < TAR_NAME ? PL_OK : PL_USAGE);
        assert_int_equal(tar_write_member(&w, "sa_1.json", "one", 3, &e), PL_OK);
    }
    assert_int_equal(tar_write_member(&w, "", "", 0, &e), PL_USAGE);
    assert_int_equal(tar_write_end(&w, &e), PL_OK);
    struct tar *t = mem_alloc(sizeof *t);
    struct tar_member m;
    bool more;
    tar_open(t, w.fd, NULL, w.at);
    for (size_t n = 95; n <= TAR_NAME; n++) {
        memset(name, 'n', n), name[n] = 0;
        memcpy(name + n - 4, ".jpg", 4);
        if (n < TAR_NAME) {
            assert_true(!tar_next(t, &m, &more, &e) && more && m.size == 4);
            assert_string_equal(m.name, name);
        }
        assert_true(!tar_next(t, &m, &more, &e) && more && m.size == 3);
        assert_string_equal(m.name, "sa_1.json");
    }
    assert_true(!tar_next(t, &m, &more, &e) && !more && !t->damaged && !t->partial);
    mem_free(t);
    close(w.fd);
}

MAIN(NULL, NULL)

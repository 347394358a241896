/*
 * test_choices.c: the file of choices that timing made (src/cuda/products/autotune_file.c): reading
 * arbitrary bytes, adding entries, and agreement between processes that start at the same time.
 */
#include <sys/stat.h>
#include <sys/wait.h>

#include "cuda/products/autotune_file.h"
#include "io/file.h"

#include "harness.h"

static struct choices empty(const char *name)
{
    struct choices c = {.lock = -1};
    snprintf(c.path, sizeof c.path, "%s/%s", folder, name);
    return c;
}

static struct choice some(const char *key, uint32_t first)
{
    struct choice x = {.first = 0.5, .taken = 0.25};
    snprintf(x.key, sizeof x.key, "%s", key);
    for (uint32_t i = 0; i < CHOICE_NUMBERS; i++) x.number[i] = first + i;
    return x;
}

static void write_text(const char *path, const char *text)
{
    struct error e = {0};
    if (file_write_atomic(path, text, strlen(text), &e)) fail_msg("%s", e.text);
}

/* --- bytes ------------------------------------------------------------------------------------ */

TEST(test_round_trip)
{
    struct choices c = {.lock = -1};
    struct text t = {0};
    struct choice x = some("16384x5120x1280 n 1 a bf16 1280 1 0 256", 4294967287u), y = some("other", 0);
    choice_print(&x, &t);
    choice_print(&y, &t);
    choices_parse(&c, t.at, t.n);
    assert_int_equal(c.list.n, 2);
    assert_int_equal(c.skipped, 0);
    assert_false(c.torn);
    const struct choice *back = choices_find(&c, x.key);
    assert_non_null(back);
    assert_memory_equal(back->number, x.number, sizeof x.number);
    assert_true(back->first == 0.5 && back->taken == 0.25);
    assert_null(choices_find(&c, "16384x5120x1280"));
    text_free(&t);
    choices_free(&c);
}

/* Each text is an invalid line; the valid line behind it is still read. */
TEST(test_broken_lines)
{
    static const char good[] = "k = 1 2 3 4 5 6 7 8 9 : 0.5 0.25 ms\n";
    static const char *const bad[] = {"k",
                                      "k =",
                                      " = 1 2 3 4 5 6 7 8 9 : 0.5 0.25 ms",
                                      "= 1 2 3 4 5 6 7 8 9 : 0.5 0.25 ms",
                                      "k = 1 2 3 4 5 6 7 8 : 0.5 0.25 ms",
                                      "k = 1 2 3 4 5 6 7 8 9 10 : 0.5 0.25 ms",
                                      "k = 1 2 3 4 5 6 7 8 -9 : 0.5 0.25 ms",
                                      "k = 1 2 3 4 5 6 7 8 4294967296 : 0.5 0.25 ms",
                                      "k = 1 2 3 4 5 6 7 8 99999999999999999999999 : 0.5 0.25 ms",
                                      "k = 1 2 3 4 5 6 7 8 9 : 0.5 0.25",
                                      "k = 1 2 3 4 5 6 7 8 9 : 0.5 ms",
                                      "k = 1 2 3 4 5 6 7 8 9 : 0.5 0.25 ms ",
                                      "k = 1 2 3 4 5 6 7 8 9 : nan 0.25 ms",
                                      "k = 1 2 3 4 5 6 7 8 9 : 1e9 0.25 ms",
                                      "k = 1 2 3 4 5 6 7 8 9 : 0.5 0x1 ms",
                                      "k = 1 2 3 4 5 6 7 8 9 : 99999999 0.25 ms",
                                      "k  = x",
                                      "k:k = 1 2 3 4 5 6 7 8 9 : 0.5 0.25 ms",
                                      "k\t = 1 2 3 4 5 6 7 8 9 : 0.5 0.25 ms",
                                      "k = 1 2 3 4 5 6 7 8 9 : 0.5.5 0.25 ms"};
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct choices c = {.lock = -1};
        struct text t = {0};
        text_printf(&t, "# comment\n\n%s\n%s", bad[i], good);
        choices_parse(&c, t.at, t.n);
        if (c.list.n != 1 || c.skipped != 1 || strcmp(c.list.at[0].key, "k") || c.list.at[0].number[8] != 9)
            fail_msg("\"%s\": %u read, %u skipped", bad[i], c.list.n, c.skipped);
        text_free(&t);
        choices_free(&c);
    }
}

/* Every prefix of a file: a truncated line is ignored as a whole. */
TEST(test_truncated)
{
    struct text t = {0};
    struct choice x = some("first key", 10), y = some("second key", 20);
    choice_print(&x, &t);
    const size_t one = t.n;
    choice_print(&y, &t);
    for (size_t n = 0; n <= t.n; n++) {
        struct choices c = {.lock = -1};
        char *exact = mem_copy(t.at, n ? n : 1);
        choices_parse(&c, exact, n);
        assert_int_equal(c.list.n, (n >= one) + (n >= t.n));
        assert_int_equal(c.torn, n && n != one && n != t.n);
        mem_free(exact);
        choices_free(&c);
    }
    text_free(&t);
}

TEST(test_bounds)
{
    struct choices c = {.lock = -1};
    struct text t = {0};
    for (int i = 0; i < CHOICES_MOST + 5; i++) {
        char key[32];
        snprintf(key, sizeof key, "key %d", i);
        struct choice x = some(key, (uint32_t)i);
        choice_print(&x, &t);
    }
    struct choice again = some("key 7", 1000);
    choice_print(&again, &t);
    text_printf(&t, "%0600d = 1 2 3 4 5 6 7 8 9 : 0.5 0.25 ms\n", 1);
    text_printf(&t, "%0300d = 1 2 3 4 5 6 7 8 9 : 0.5 0.25 ms\n", 1);
    text_append(&t, "a\0b = 1 2 3 4 5 6 7 8 9 : 0.5 0.25 ms\n", 38);
    choices_parse(&c, t.at, t.n);
    assert_int_equal(c.list.n, CHOICES_MOST);
    assert_int_equal(c.skipped, 5 + 3);
    assert_int_equal(choices_find(&c, "key 7")->number[0], 1000); /* the last entry wins */
    assert_null(choices_find(&c, "a"));
    text_free(&t);
    choices_free(&c);
}

/* --- the file -------------------------------------------------------------------------------- */

TEST(test_path)
{
    char path[512];
    setenv("XDG_DATA_HOME", "/somewhere", 1);
    assert_true(choices_path("NVIDIA H200/../x", 130100, path, sizeof path));
    assert_string_equal(path, "/somewhere/plimsoll/cublaslt-130100-NVIDIA-H200-..-x.txt");
    assert_false(choices_path("NVIDIA H200", 130100, path, 20));
    unsetenv("XDG_DATA_HOME");
    unsetenv("HOME");
    assert_false(choices_path("NVIDIA H200", 130100, path, sizeof path));
}

TEST(test_add)
{
    struct choices c = empty("deep/er/add.txt"), d = empty("deep/er/add.txt");
    struct error e = {0};
    struct choice x = some("x", 1), y = some("y", 2), other = some("x", 3);
    assert_int_equal(choices_read(&c, &e), PL_OK);
    assert_int_equal(c.list.n, 0);
    assert_int_equal(choices_lock(&c, 1, &e), PL_OK);
    assert_int_equal(choices_add(&c, &x, &e), PL_OK);
    assert_int_equal(choices_add(&c, &y, &e), PL_OK);
    assert_int_equal(choices_add(&c, &other, &e), PL_OK);
    assert_int_equal(choices_find(&c, "x")->number[0], 3);
    assert_int_equal(choices_lock(&d, 0.05, &e), PL_FAIL); /* another holder has the lock */
    assert_non_null(strstr(e.text, "another process"));
    choices_unlock(&c);
    assert_int_equal(choices_lock(&d, 1, &e), PL_OK);
    assert_int_equal(d.list.n, 2);
    assert_int_equal(d.skipped, 0);
    assert_int_equal(d.bytes, c.bytes);
    assert_int_equal(choices_find(&d, "x")->number[0], 3);
    choices_free(&d);
    choices_free(&c);
}

/* An entry that is added behind a line without a newline becomes a line of its own. */
TEST(test_line_without_end)
{
    struct choices c = empty("torn.txt");
    struct error e = {0};
    struct choice x = some("x", 1);
    write_text(c.path, "half = 1 2 3");
    assert_int_equal(choices_lock(&c, 1, &e), PL_OK);
    assert_true(c.torn);
    assert_int_equal(choices_add(&c, &x, &e), PL_OK);
    choices_unlock(&c);
    assert_int_equal(choices_read(&c, &e), PL_OK);
    assert_int_equal(c.list.n, 1);
    assert_int_equal(c.skipped, 1);
    assert_non_null(choices_find(&c, "x"));
    choices_free(&c);
}

/* A folder that cannot be created, because a file has its name. A file that is too large is not
 * read. */
TEST(test_refused)
{
    struct choices c = empty("file/choices.txt"), large = empty("large.txt");
    struct error e = {0};
    char way[512];
    snprintf(way, sizeof way, "%s/file", folder);
    write_text(way, "x");
    assert_int_equal(choices_read(&c, &e), PL_OK); /* no file exists */
    assert_int_not_equal(choices_lock(&c, 1, &e), PL_OK);
    assert_int_equal(c.lock, -1);
    assert_non_null(strstr(e.text, "file"));
    write_text(large.path, "");
    assert_int_equal(truncate(large.path, CHOICES_BYTES_MOST + 1), 0);
    assert_int_not_equal(choices_read(&large, &e), PL_OK);
    assert_int_not_equal(choices_lock(&large, 1, &e), PL_OK);
    choices_free(&c);
    choices_free(&large);
}

/* Processes that start at the same time, each with a different choice: one measures, the others
 * read. */
TEST(test_agree)
{
    enum { PROCESSES = 6 };
    struct choices c = empty("agree.txt");
    struct error e = {0};
    for (uint32_t i = 0; i < PROCESSES; i++)
        if (!fork()) {
            struct choice mine = some("key", 100 * (i + 1));
            int rc = choices_lock(&c, 20, &e);
            if (!rc && !choices_find(&c, "key")) {
                usleep(30000);
                rc = choices_add(&c, &mine, &e);
            }
            choices_unlock(&c);
            _exit(rc || !choices_find(&c, "key") ? 0 : (int)(choices_find(&c, "key")->number[0] / 100));
        }
    int first = 0;
    for (int i = 0, status; i < PROCESSES; i++) {
        assert_true(wait(&status) > 0);
        const int said = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
        assert_true(said > 0);
        if (!first) first = said;
        assert_int_equal(said, first);
    }
    assert_int_equal(choices_read(&c, &e), PL_OK);
    assert_int_equal(c.list.n, 1);
    choices_free(&c);
}

MAIN(make_folder, remove_folder)

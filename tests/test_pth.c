/*
 * test_pth.c: PyTorch checkpoints written by torch.save (golden/make_pth.py): every format, every
 * dtype, views, wrappers; files that are not a state dictionary, or malicious; truncated and
 * damaged ones; and files of the project's own writer.
 */
#include "io/file.h"
#include "io/pth.h"
#include "io/temporary.h"

#include "harness.h"

#define FOLDER "tests/golden/pth/"

/* The formula of make_pth.py. */
static double value(const char *name, int64_t i, enum dtype t)
{
    return (double)((i * 7 + (int64_t)strlen(name)) % 101) - (t == DT_U8 ? 0 : 50);
}

static void check_values(const struct pth_tensor *t, const char *named)
{
    int64_t n = pth_elements(t);
    void *to = mem_alloc((size_t)n * dtype_size(t->dtype));
    pth_read(t, to);
    for (int64_t i = 0; i < n; i++)
        if (dtype_load(to, t->dtype, i) != value(named, i, t->dtype))
            fail_msg("%s[%d] is %g, expected %g", t->name, (int)i, dtype_load(to, t->dtype, i),
                     value(named, i, t->dtype));
    mem_free(to);
}

static void check_tensor(const struct pth *p, const char *name, enum dtype dtype, int rank, const int64_t *dim)
{
    const struct pth_tensor *t = pth_find(p, name);
    if (!t) fail_msg("no tensor %s", name);
    assert_int_equal(t->dtype, dtype);
    assert_int_equal(t->rank, rank);
    for (int i = 0; i < rank; i++) assert_int_equal(t->dim[i], dim[i]);
    check_values(t, name);
}
#define TENSOR(p, name, dtype, ...) \
    check_tensor(p, name, dtype, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__})

static void check_plain(const char *file)
{
    struct pth p;
    struct error e = {0};
    if (pth_open(&p, file, &e)) fail_msg("%s", e.text);
    assert_int_equal(p.tensors.n, 3);
    assert_string_equal(p.tensors.at[0].name, "weight");
    TENSOR(&p, "weight", DT_F32, 4, 3);
    TENSOR(&p, "bias", DT_F32, 4);
    check_tensor(&p, "count", DT_I64, 0, NULL);
    assert_null(pth_find(&p, "module.weight"));
    pth_close(&p);
}

TEST(test_formats)
{
    static const char *const files[] = {"zip",    "legacy",        "parameters",    "protocol4", "module_prefix",
                                        "nested", "nested_legacy", "wrapped_twice", "evil_value"};
    for (size_t i = 0; i < COUNT(files); i++) {
        char path[128];
        snprintf(path, sizeof path, FOLDER "%s.pth", files[i]);
        check_plain(path);
    }
    assert_false(file_exists("plimsoll-was-here")); /* the side effect of evil_value */
}

TEST(test_types)
{
    static const char *const files[] = {FOLDER "types.pth", FOLDER "types_legacy.pth"};
    for (size_t i = 0; i < COUNT(files); i++) {
        struct pth p;
        struct error e = {0};
        if (pth_open(&p, files[i], &e)) fail_msg("%s", e.text);
        TENSOR(&p, "float32", DT_F32, 2, 5);
        TENSOR(&p, "float64", DT_F64, 2, 5);
        TENSOR(&p, "float16", DT_F16, 2, 5);
        TENSOR(&p, "bfloat16", DT_BF16, 2, 5);
        TENSOR(&p, "int32", DT_I32, 2, 5);
        TENSOR(&p, "int64", DT_I64, 2, 5);
        TENSOR(&p, "uint8", DT_U8, 2, 5);
        TENSOR(&p, "empty", DT_F32, 0, 3);
        assert_int_equal(p.skipped, 1); /* bool */
        pth_close(&p);
    }
}

TEST(test_views)
{
    static const char *const files[] = {FOLDER "views.pth", FOLDER "views_legacy.pth"};
    for (size_t i = 0; i < COUNT(files); i++) {
        struct pth p;
        struct error e = {0};
        float six[6];
        if (pth_open(&p, files[i], &e)) fail_msg("%s", e.text);
        TENSOR(&p, "transposed", DT_F32, 3, 5);
        TENSOR(&p, "sliced", DT_F32, 3, 4);
        TENSOR(&p, "last", DT_F32, 4);
        TENSOR(&p, "first", DT_F32, 6);
        TENSOR(&p, "permuted", DT_F32, 2, 3, 4);
        check_values(pth_find(&p, "shared"), "first");
        assert_ptr_equal(pth_find(&p, "shared")->data, pth_find(&p, "first")->data);
        assert_true(pth_is_contiguous(pth_find(&p, "last")));
        assert_false(pth_is_contiguous(pth_find(&p, "sliced")));
        pth_read(pth_find(&p, "expanded"), six);
        for (int k = 0; k < 6; k++) assert_true(six[k] == 3);
        pth_close(&p);
    }
}

/* An OrderedDict with _metadata, which is set on it as an attribute. */
TEST(test_state_dict)
{
    struct pth p;
    struct error e = {0};
    if (pth_open(&p, FOLDER "state_dict.pth", &e)) fail_msg("%s", e.text);
    assert_int_equal(p.tensors.n, 2);
    TENSOR(&p, "fc.weight", DT_F32, 2, 3);
    TENSOR(&p, "fc.bias", DT_F32, 2);
    pth_close(&p);
}

/* A tensor without elements is contiguous, whatever its other sizes: their product has no bound. */
TEST(test_empty)
{
    const struct pth_tensor t = {.rank = 3,
                                 .dim = {0, INT64_C(1) << 40, INT64_C(1) << 40},
                                 .stride = {5, INT64_C(1) << 40, 1}};
    assert_int_equal(pth_elements(&t), 0);
    assert_true(pth_is_contiguous(&t));
    /* The zero comes last, in a file; 2^63 and more elements before it. */
    static const int64_t dims[][3] = {{INT64_C(1) << 32, INT64_C(1) << 31, 0}, {INT64_C(1) << 40, INT64_C(1) << 40, 0}};
    for (size_t i = 0; i < COUNT(dims); i++) {
        struct temporary folder;
        struct pth_writer *w;
        struct pth p;
        struct error e = {0};
        char path[4096];
        assert_int_equal(temporary_work(&folder, &e), PL_OK);
        snprintf(path, sizeof path, "%s/empty.pth", folder.path);
        assert_int_equal(pth_begin(&w, path, &e), PL_OK);
        assert_int_equal(pth_write_begin(w, "none", DT_F32, 3, dims[i], &e), PL_OK);
        assert_int_equal(pth_end(w, &e), PL_OK);
        if (pth_open(&p, path, &e)) fail_msg("%s", e.text);
        assert_int_equal(pth_elements(&p.tensors.at[0]), 0);
        pth_close(&p);
        temporary_drop(&folder);
    }
}

static void refuse(const char *file, const char *message)
{
    struct pth p;
    struct error e = {0};
    assert_int_equal(pth_open(&p, file, &e), PL_USAGE);
    if (!strstr(e.text, message)) fail_msg("%s: no \"%s\" in: %s", file, message, e.text);
}

TEST(test_refused)
{
    refuse(FOLDER "whole_module.pth", "model.state_dict()");
    refuse(FOLDER "evil.pth", "posix system");
    refuse(FOLDER "no_tensors.pth", "no dictionary of tensors");
    refuse(FOLDER "bare_pickle.pth", "neither a zip archive nor a legacy checkpoint");
    refuse(FOLDER "missing.pth", "No such file");
    refuse("tests/golden", "not a regular file");
    refuse("tests/golden/make_pth.py", "neither a zip archive");
    assert_false(file_exists("plimsoll-was-here"));
}

/* A truncated file is rejected with a message, or read correctly if only unneeded bytes are
 * missing. A file with one changed byte is rejected or read, too. The bytes lie in exact blocks, so
 * that a sanitizer detects a read beyond them. */
static void try_bytes(const char *bytes, size_t n)
{
    struct pth p;
    struct error e = {0};
    uint8_t *exact = mem_copy(bytes, n);
    if (pth_open_memory(&p, exact, n, &e)) assert_true(e.code == PL_USAGE && e.text[0]);
    else {
        for (uint32_t i = 0; i < p.tensors.n; i++) {
            void *to = mem_alloc((size_t)pth_elements(&p.tensors.at[i]) * 8);
            pth_read(&p.tensors.at[i], to);
            mem_free(to);
        }
        pth_close(&p);
    }
    mem_free(exact);
}

TEST(test_damaged)
{
    static const char *const files[] = {FOLDER "zip.pth", FOLDER "legacy.pth", FOLDER "views_legacy.pth"};
    for (size_t i = 0; i < COUNT(files); i++) {
        char *bytes;
        size_t n;
        struct error e = {0};
        struct pth p;
        assert_int_equal(file_read(files[i], 1 << 20, &bytes, &n, &e), PL_OK);
        for (size_t cut = 0; cut < n; cut++) {
            try_bytes(bytes, cut);
            assert_int_equal(pth_open_memory(&p, (uint8_t *)bytes, cut, &e), PL_USAGE);
        }
        for (size_t at = 0; at < n; at++)
            for (int bit = 0; bit < 8; bit += 7) {
                bytes[at] ^= (char)(1 << bit);
                try_bytes(bytes, n);
                bytes[at] ^= (char)(1 << bit);
            }
        mem_free(bytes);
    }
}

/* --- pickles by hand -------------------------------------------------------------------- */

static int read_pickle(const char *bytes, size_t n, struct error *e)
{
    struct bump b = {0};
    struct pickle *p;
    size_t used;
    uint8_t *exact = mem_copy(bytes, n);
    int rc = pickle_read(exact, n, &used, &b, &p, e);
    bump_free(&b);
    mem_free(exact);
    return rc;
}
#define PICKLE(bytes, e) read_pickle(bytes, sizeof bytes - 1, e)

TEST(test_pickles)
{
    struct error e = {0};
    assert_int_equal(PICKLE("(lp0\nI1\naS'a'\na.", &e), PL_OK);
    assert_int_equal(PICKLE("", &e), PL_USAGE);
    assert_int_equal(PICKLE(".", &e), PL_USAGE);
    assert_int_equal(PICKLE("(.", &e), PL_USAGE);              /* a mark is not a value */
    assert_int_equal(PICKLE("Na.", &e), PL_USAGE);             /* nothing to append to */
    assert_int_equal(PICKLE("K\1K\2a.", &e), PL_USAGE);        /* a number is not a list */
    assert_int_equal(PICKLE("](K\1u.", &e), PL_USAGE);         /* a key without a value */
    assert_int_equal(PICKLE("](K\1K\2u.", &e), PL_USAGE);      /* a list has no keys */
    assert_int_equal(PICKLE("Nr\xff\xff\xff\xff.", &e), PL_USAGE);
    assert_int_equal(PICKLE("h\5.", &e), PL_USAGE);
    assert_int_equal(PICKLE("X\xff\xff\xff\xff" "a.", &e), PL_USAGE);
    assert_int_equal(PICKLE("\x8d\xff\xff\xff\xff\xff\xff\xff\xff" "a.", &e), PL_USAGE);
    assert_int_equal(PICKLE("cos\nsystem\n(S'false'\ntR.", &e), PL_OK); /* a name and a tuple, and nothing was called */
    assert_int_equal(PICKLE("]q\0h\0a.", &e), PL_OK);          /* a list that contains itself */
    assert_int_equal(PICKLE("\x82\1.", &e), PL_USAGE);         /* an extension code */
}

/* --- writing ------------------------------------------------------------------------------ */

TEST(test_round_trip)
{
    static const char *const files[] = {"zip", "types", "views", "state_dict"};
    char to[] = "/tmp/plimsoll-pth-XXXXXX";
    close(mkstemp(to));
    for (size_t i = 0; i < COUNT(files); i++) {
        struct pth a, b;
        struct pth_writer *w;
        struct error e = {0};
        char from[128];
        snprintf(from, sizeof from, FOLDER "%s.pth", files[i]);
        assert_int_equal(pth_open(&a, from, &e), PL_OK);
        assert_int_equal(pth_begin(&w, to, &e), PL_OK);
        for (uint32_t k = 0; k < a.tensors.n; k++) {
            const struct pth_tensor *t = &a.tensors.at[k];
            size_t n = (size_t)pth_elements(t) * dtype_size(t->dtype);
            char *data = mem_alloc(n);
            pth_read(t, data);
            assert_int_equal(pth_write_begin(w, t->name, t->dtype, t->rank, t->dim, &e), PL_OK);
            assert_int_equal(pth_write_bytes(w, data, n / 3, &e), PL_OK); /* in chunks */
            assert_int_equal(pth_write_bytes(w, data + n / 3, n - n / 3, &e), PL_OK);
            mem_free(data);
        }
        assert_int_equal(pth_end(w, &e), PL_OK);
        if (pth_open(&b, to, &e)) fail_msg("%s", e.text);
        assert_int_equal(a.tensors.n, b.tensors.n);
        for (uint32_t k = 0; k < a.tensors.n; k++) {
            const struct pth_tensor *s = &a.tensors.at[k], *t = &b.tensors.at[k];
            assert_string_equal(s->name, t->name);
            assert_int_equal(s->dtype, t->dtype);
            assert_int_equal(s->rank, t->rank);
            for (int d = 0; d < s->rank; d++) assert_int_equal(s->dim[d], t->dim[d]);
            assert_int_equal(((uintptr_t)t->data - (uintptr_t)b.bytes) % 64, 0);
            if (strcmp(t->name, "expanded")) check_values(t, !strcmp(t->name, "shared") ? "first" : t->name);
        }
        pth_close(&a);
        pth_close(&b);
    }
    unlink(to);
}

TEST(test_abandoned)
{
    struct pth_writer *w;
    struct temporary t;
    struct error e = {0};
    struct names left;
    char path[4096];
    assert_int_equal(temporary_work(&t, &e), PL_OK);
    snprintf(path, sizeof path, "%s/none.pth", t.path);
    assert_int_equal(pth_begin(&w, path, &e), PL_OK);
    pth_abandon(w);
    assert_int_equal(dir_list(t.path, &left, &e), PL_OK);
    assert_int_equal(left.n, 0);
    names_free(&left);
    temporary_drop(&t);
    assert_int_equal(pth_begin(&w, "/nowhere/x.pth", &e), PL_USAGE);
}

MAIN(NULL, NULL)

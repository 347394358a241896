/*
 * test_io.c: documents, safetensors and files: what io/ guarantees, and what it rejects.
 *
 * Files are written to a fresh folder under TMPDIR and removed at the end.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "io/file.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "io/table.h"
#include "io/temporary.h"
#include "io/yaml.h"

#include "harness.h"

static const char *path_of(const char *name)
{
    static char path[4][512];
    static int next;
    char *p = path[next++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", folder, name);
    return p;
}

/* ---- documents ---- */

static struct value *json_good(struct bump *b, const char *s)
{
    struct value *v = NULL;
    struct error e;
    if (json_parse(s, strlen(s), b, &v, &e)) fail_msg("%s in: %s", e.text, s);
    return v;
}

static void json_bad(const char *s, size_t n, const char *says)
{
    struct bump b = {0};
    struct value *v;
    struct error e = {0};
    if (!json_parse(s, n, &b, &v, &e)) fail_msg("accepted: %s", s);
    assert_int_equal(e.code, PL_USAGE);
    assert_says(&e, says);
    bump_free(&b);
}

TEST(test_json_read)
{
    struct bump b = {0};
    struct error e;
    struct value *v = json_good(&b, "\xef\xbb\xbf {\"a\": {\"b\": [1, -2.5e3, true, null, "
                                    "\"x\\u00e9\\ud83d\\ude00\\n\"]}, \"big\": 18446744073709551615,"
                                    "\"huge\": 123456789012345678901234567890, \"\": {}} \n");
    uint64_t u;
    int64_t i;
    double d;
    const char *s;
    bool t;
    const struct value *list = value_path(v, "a.b");
    assert_int_equal(list->count, 5);
    assert_int_equal(value_as_int(value_at(list, 0), "n", &i, &e), PL_OK);
    assert_int_equal(i, 1);
    assert_int_equal(value_as_int(value_at(list, 1), "n", &i, &e), PL_OK);
    assert_int_equal(i, -2500);
    assert_int_equal(value_as_bool(value_at(list, 2), "t", &t, &e), PL_OK);
    assert_true(t);
    assert_int_equal(value_at(list, 3)->kind, VALUE_NULL);
    assert_int_equal(value_as_string(value_at(list, 4), "s", &s, &e), PL_OK);
    assert_string_equal(s, "x\xc3\xa9\xf0\x9f\x98\x80\n");
    assert_null(value_at(list, 5));
    assert_int_equal(value_as_uint(value_get(v, "big"), "big", &u, &e), PL_OK);
    assert_true(u == UINT64_MAX);
    assert_int_equal(value_as_int(value_get(v, "big"), "big", &i, &e), PL_USAGE);
    assert_says(&e, "64 bits");
    assert_int_equal(value_as_uint(value_get(v, "huge"), "huge", &u, &e), PL_USAGE);
    assert_string_equal(value_get(v, "huge")->text, "123456789012345678901234567890");
    assert_int_equal(value_as_number(value_get(v, "huge"), "huge", &d, &e), PL_OK);
    assert_true(d == 123456789012345678901234567890.0);
    assert_non_null(value_get(v, ""));
    assert_null(value_get(v, "none"));
    assert_null(value_path(v, "a.none.b"));
    assert_null(value_path(v, "big.b"));
    bump_free(&b);
}

TEST(test_json_refused)
{
    static const struct { const char *s, *says;
    } bad[] = {
        {"", "ends too early"},
        {"  \n", "ends too early"},
        {"{", "ends too early"},
        {"[1, 2", ""},
        {"{\"a\": 1,", ""},
        {"[1,]", "line 1, column 4"},
        {"{\"a\" 1}", "line 1"},
        {"{a: 1}", "line 1, column 2"},
        {"[1] 2", "unexpected text after"},
        {"{} {}", "unexpected text after"},
        {"[1,\n 2,\n x]", "line 3, column 2"},
        {"tru", "true, false, null"},
        {"NaN", "quotes"},
        {"[Infinity]", "quotes"},
        {"01", "malformed"},
        {"1.", "malformed"},
        {"+1", "quotes"},
        {"-", "malformed"},
        {".5", "quotes"},
        {"1e", "malformed"},
        {"1-2", "malformed"},
        {"1e999", "beyond the range"},
        {"\"a", "closing quote"},
        {"\"\n\"", "control character"},
        {"\"\\x\"", "escape"},
        {"\"\\u12\"", "hexadecimal"},
        {"\"\\u0000\"", "NUL"},
        {"\"\\ud800\"", "line 1"},
        {"\"\xff\"", "UTF-8"},
        {"\"\xc0\x80\"", "UTF-8"},
        {"\"\xed\xa0\x80\"", "UTF-8"},
        {"{\"a\": 1, \"b\": 2, \"a\": 3}", "\"a\" occurs twice"},
        {"{\"a\": {\"x\": 1, \"\\u0078\": 2}}", "\"x\" occurs twice"},
        {"[\x01]", ""},
        {"'a'", ""},
        {"// c\n1", ""},
        {"]", ""},
        {"[}", ""},
    };
    for (size_t i = 0; i < COUNT(bad); i++) json_bad(bad[i].s, strlen(bad[i].s), bad[i].says);
    json_bad("1\0", 2, "");
    json_bad("[1\0]", 4, "");
    char digits[80];
    memset(digits, '1', sizeof digits);
    json_bad(digits, sizeof digits, "63 characters");
}

TEST(test_depth)
{
    enum { MOST = 4000 };
    char nest[2 * MOST + 1];
    struct bump b = {0};
    struct value *v;
    struct error e;
    for (int depth = 1; depth <= MOST; depth = depth == 1             ? VALUE_DEPTH
                                               : depth == VALUE_DEPTH ? VALUE_DEPTH + 1
                                                                      : depth * 5) {
        memset(nest, '[', (size_t)depth);
        memset(nest + depth, ']', (size_t)depth);
        int expected = depth <= VALUE_DEPTH ? PL_OK : PL_USAGE;
        assert_int_equal(json_parse(nest, 2 * (size_t)depth, &b, &v, &e), expected);
        assert_int_equal(yaml_parse(nest, 2 * (size_t)depth, &b, &v, &e), expected);
    }
    bump_free(&b);
}

/* A map beyond the size of the linear search: found by hash, order kept. */
TEST(test_large_map)
{
    enum { N = 20000 };
    struct bump b = {0};
    struct text t = {0};
    struct error e;
    struct value *v, *map = value_new(&b, VALUE_MAP);
    char key[32];
    text_printf(&t, "{");
    for (int i = 0; i < N; i++) {
        snprintf(key, sizeof key, "token%d", i * 7919 % N);
        value_put(&b, map, key, value_int(&b, i));
        text_printf(&t, "%s\"%s\": %d", i ? ", " : "", key, i);
    }
    text_printf(&t, "}");
    v = json_good(&b, t.at);
    assert_true(value_equal(v, map));
    for (int i = 0; i < N; i++) {
        snprintf(key, sizeof key, "token%d", i * 7919 % N);
        assert_true(value_get(v, key) == value_at(v, (uint32_t)i));
    }
    assert_null(value_get(v, "token"));
    value_put(&b, map, "token0", value_string(&b, "changed")); /* at its old position */
    assert_int_equal(map->count, N);
    assert_string_equal(value_at(map, 0)->text, "changed");
    t.n--;
    text_printf(&t, ", \"token17\": 0}");
    assert_int_equal(json_parse(t.at, t.n, &b, &v, &e), PL_USAGE);
    assert_says(&e, "token17");
    text_free(&t);
    bump_free(&b);
}

TEST(test_json_write)
{
    struct bump b = {0};
    struct text t = {0};
    struct json_writer w = {.out = &t};
    json_begin_map(&w, NULL);
    json_put_uint(&w, "u", UINT64_MAX);
    json_put_int(&w, "i", INT64_MIN);
    json_put_number(&w, "d", 0.1);
    json_put_number(&w, "nan", NAN);
    json_put_bool(&w, "t", true);
    json_put_null(&w, "n");
    json_put_string(&w, "s\"", "a\\\n\t\x01\x7f\xc3\xa9\xff");
    json_put_format(&w, "f", "%d%%", 5);
    json_begin_list(&w, "l");
    json_begin_map(&w, NULL);
    json_end(&w);
    json_begin_list(&w, NULL);
    json_end(&w);
    json_end(&w);
    json_end(&w);
    assert_string_equal(
        t.at,
        "{\"u\": 18446744073709551615, \"i\": -9223372036854775808, \"d\": 0.1, \"nan\": null, \"t\": true, "
        "\"n\": null, \"s\\\"\": \"a\\\\\\n\\t\\u0001\\u007f\xc3\xa9\xef\xbf\xbd\", \"f\": \"5%\", \"l\": [{}, []]}");
    struct value *v = json_good(&b, t.at);
    for (int indent = 0; indent <= 4; indent += 2) {
        struct text again = {0};
        json_write(v, indent, &again);
        assert_true(value_equal(v, json_good(&b, again.at)));
        if (!indent) assert_string_equal(again.at, t.at);
        text_free(&again);
    }
    text_free(&t);
    bump_free(&b);
}

TEST(test_number_print)
{
    char out[32];
    unsigned seed = 11;
    assert_string_equal(number_print(0.1, out), "0.1");
    assert_string_equal(number_print(1e-4, out), "0.0001");
    assert_string_equal(number_print(-0.0, out), "-0");
    assert_string_equal(number_print(5e-324, out), "4.94065645841247e-324");
    for (int i = 0; i < 20000; i++) {
        union { uint64_t u; double d; } x = {.u = 0};
        for (int k = 0; k < 8; k++) x.u = x.u << 8 | (unsigned)(rand_r(&seed) >> 4 & 255);
        number_print(x.d, out);
        if (!isfinite(x.d)) continue;
        if (strtod(out, NULL) != x.d) fail_msg("%a printed as %s (seed 11, number %d)", x.d, out, i);
        assert_true(number_is_json(out, strlen(out)));
    }
}

/* ---- YAML ---- */

static struct value *yaml_good(struct bump *b, const char *s)
{
    struct value *v = NULL;
    struct error e;
    if (yaml_parse(s, strlen(s), b, &v, &e)) fail_msg("%s in:\n%s", e.text, s);
    return v;
}

TEST(test_yaml_scalars)
{
    struct bump b = {0};
    static const struct { const char *s; enum value_kind kind; const char *text;
    } cases[] = {
        {"", VALUE_NULL, NULL},
        {"~", VALUE_NULL, NULL},
        {"null", VALUE_NULL, NULL},
        {"Null", VALUE_NULL, NULL},
        {"nULL", VALUE_STRING, "nULL"},
        {"True", VALUE_BOOL, NULL},
        {"yes", VALUE_STRING, "yes"},
        {"no", VALUE_STRING, "no"},
        {"on", VALUE_STRING, "on"},
        {"12", VALUE_NUMBER, "12"},
        {"-12", VALUE_NUMBER, "-12"},
        {"+12", VALUE_NUMBER, "12"},
        {"007", VALUE_NUMBER, "7"},
        {"-00", VALUE_NUMBER, "-0"},
        {"0x1F", VALUE_NUMBER, "31"},
        {"0o17", VALUE_NUMBER, "15"},
        {"0b1", VALUE_STRING, "0b1"},
        {"0x", VALUE_STRING, "0x"},
        {"0xg", VALUE_STRING, "0xg"},
        {"-0x1", VALUE_STRING, "-0x1"},
        {"18446744073709551615", VALUE_NUMBER, "18446744073709551615"},
        {"1_000", VALUE_STRING, "1_000"},
        {"1e-4", VALUE_NUMBER, "1e-4"},
        {"1e5", VALUE_NUMBER, "1e5"},
        {"5.", VALUE_NUMBER, "5"},
        {".5", VALUE_NUMBER, "0.5"},
        {"-.5e1", VALUE_NUMBER, "-5"},
        {"1.5.2", VALUE_STRING, "1.5.2"},
        {"1e", VALUE_STRING, "1e"},
        {".", VALUE_STRING, "."},
        {"-", VALUE_STRING, "-"},
        {"+", VALUE_STRING, "+"},
        {".inf", VALUE_NUMBER, ".inf"},
        {"-.Inf", VALUE_NUMBER, "-.inf"},
        {".NaN", VALUE_NUMBER, ".nan"},
        {"-.nan", VALUE_STRING, "-.nan"},
        {"inf", VALUE_STRING, "inf"},
        {"nan", VALUE_STRING, "nan"},
        {"8GiB", VALUE_STRING, "8GiB"},
        {"12:30:45", VALUE_STRING, "12:30:45"},
        {"2024-01-02", VALUE_STRING, "2024-01-02"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct value *v = yaml_scalar(&b, cases[i].s);
        if (v->kind != cases[i].kind) fail_msg("\"%s\" is of kind %d", cases[i].s, (int)v->kind);
        if (cases[i].text) assert_string_equal(v->text, cases[i].text);
    }
    bump_free(&b);
}

TEST(test_yaml_read)
{
    struct bump b = {0};
    struct error e;
    struct value *v =
        yaml_good(&b, "# a comment\nmodel: {path: dir, freeze: [a.*, \"b\"]}\n\ntrain:\n  lr: 1e-4\n  steps: 1e3\n"
                      "  name: \"12\"\n  single: 'true'\n  text: |\n    two\n    lines\n  none:\nmemory: {budget: "
                      "8GiB, host: 1024}\n1: one\n");
    double lr = 0;
    int64_t steps = 0, untouched = 5;
    uint64_t bytes = 0;
    const char *s = NULL;
    assert_int_equal(value_opt_number(v, "train.lr", &lr, &e), PL_OK);
    assert_true(lr == 1e-4);
    assert_int_equal(value_opt_int(v, "train.steps", &steps, &e), PL_OK);
    assert_int_equal(steps, 1000);
    assert_int_equal(value_opt_int(v, "train.none", &untouched, &e), PL_OK);
    assert_int_equal(value_opt_int(v, "train.absent", &untouched, &e), PL_OK);
    assert_int_equal(untouched, 5);
    assert_int_equal(value_opt_string(v, "train.name", &s, &e), PL_OK);
    assert_string_equal(s, "12");
    assert_int_equal(value_path(v, "train.single")->kind, VALUE_STRING);
    assert_string_equal(value_path(v, "train.text")->text, "two\nlines\n");
    assert_int_equal(value_as_size(value_path(v, "memory.budget"), "memory.budget", &bytes, &e), PL_OK);
    assert_true(bytes == 8ull << 30);
    assert_int_equal(value_as_size(value_path(v, "memory.host"), "memory.host", &bytes, &e), PL_OK);
    assert_int_equal(bytes, 1024);
    assert_non_null(value_get(v, "1"));
    assert_int_equal(value_path(v, "train")->line, 4);
    assert_int_equal(value_path(v, "train.lr")->line, 5);
    assert_int_equal(value_opt_int(v, "train.lr", &steps, &e), PL_USAGE);
    assert_says(&e, "line 5: train.lr is the number 1e-4; expected a whole number");
    assert_int_equal(value_as_string(value_path(v, "train.gone"), "train.gone", &s, &e), PL_USAGE);
    assert_says(&e, "train.gone is missing");
    assert_int_equal(value_as_list(value_get(v, "train"), "train", &e), PL_USAGE);
    assert_int_equal(value_as_map(value_get(v, "train"), "train", &e), PL_OK);
    assert_int_equal(yaml_good(&b, "")->kind, VALUE_NULL);
    assert_int_equal(yaml_good(&b, "# only a comment\n")->kind, VALUE_NULL);
    assert_int_equal(yaml_good(&b, "--- {}\n...\n")->kind, VALUE_MAP);
    bump_free(&b);
}

TEST(test_yaml_refused)
{
    static const struct { const char *s, *says;
    } bad[] = {
        {"a: &x 1\n", "line 1: anchors"},
        {"a: 1\nb: *x\n", "line 2"},
        {"a: !!str 1\n", "line 1: tags"},
        {"a: !mine {b: 1}\n", "tags"},
        {"a: ! 1\n", "tags"},
        {"a: 1\nb: 2\n\na: 3\n", "line 4: the key \"a\" occurs twice in one map (first on line 1)"},
        {"a: 1\n--- \nb: 2\n", "second document"},
        {"? [a]\n: 1\n", "the key is a list"},
        {"? \n: 1\n", "empty key"},
        {"a: [1, 2\n", "line 2"},
        {"a:\n\t- 1\n", "line 2, column 1: found character that cannot start any token, while scanning for the next "
                        "token: the line is indented with a tab, use spaces"},
        {"a:\n  b: 1\n  \tc: 1\n", "indented with a tab"},
        {"a:\n  b: 1\n c: 2\n", "line 3, column 2: did not find expected key, while parsing a block mapping: is it "
                                "indented like the lines around it?"},
        {"a: \"\\0\"\n", "NUL"},
        {"a: 1e999\n", "beyond the range"},
        {"a: \"\\xff\n", ""},
        {"a: \xff\n", "byte 3"},
        {"a: b: c\n", "line 1"},
        {"a: 1\n b: 2\n", "line 2"},
        {"&a [*a]\n", "anchor"},
        {"\"a\" b\n", "line 1"},
    };
    struct bump b = {0};
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct value *v;
        struct error e = {0};
        if (!yaml_parse(bad[i].s, strlen(bad[i].s), &b, &v, &e)) fail_msg("accepted: %s", bad[i].s);
        assert_int_equal(e.code, PL_USAGE);
        assert_says(&e, bad[i].says);
    }
    bump_free(&b);
}

TEST(test_yaml_write)
{
    static const char *const documents[] = {
        "{\"a\": {\"b\": [1, 2.5, \"x\", null, true], \"c\": {}}, \"d\": [], \"e\": [[1], {\"f\": [{}, [], [[2]]]}, "
        "\"\"]}",
        "[\"yes\", \"No\", \"null\", \"12\", \"1e3\", \"~\", \"- a\", \"a: b\", \"#c\", \" pad \", "
        "\"a\\nb\\tc\\u0001\\u0085\\u2028\\ufeff\", \"\\u00e9\", \"{\", \"&a\", \"*a\", \"!t\", \"%d\", \"@\", \"`\", "
        "\"---\", \"'q'\", \"\\\"\"]",
        "{\"yes\": 1, \"12\": 2, \"a b\": 3, \"\": 4, \"null\": [[[]]], \"x\": [[[1], [2]], [{\"k\": {\"l\": 1}, "
        "\"m\": 2}]]}",
        "\"scalar\"",
        "18446744073709551615",
        "[]",
        "{}",
        "null",
        "[[[[{\"a\": [{\"b\": 1}]}]]]]",
    };
    struct bump b = {0};
    for (size_t i = 0; i < COUNT(documents); i++) {
        struct text t = {0};
        struct value *v = json_good(&b, documents[i]);
        yaml_write(v, &t);
        if (!value_equal(v, yaml_good(&b, t.at))) fail_msg("%s does not read back equal:\n%s", documents[i], t.at);
        assert_true(value_equal(v, value_copy(&b, v)));
        text_free(&t);
    }
    struct value *map = value_new(&b, VALUE_MAP), *list = value_new(&b, VALUE_LIST);
    char key[3000];
    memset(key, 'k', sizeof key - 1);
    key[sizeof key - 1] = 0;
    value_put(&b, map, key, value_string(&b, key));
    value_append(&b, list, value_number(&b, INFINITY));
    value_append(&b, list, value_number(&b, NAN));
    value_append(&b, list, value_number(&b, -1.0 / 3));
    value_append(&b, list, value_bool(&b, false));
    value_put(&b, map, "list", list);
    struct text t = {0};
    yaml_write(map, &t);
    assert_true(value_equal(map, yaml_good(&b, t.at)));
    text_free(&t);
    struct text plain = {0};
    yaml_write(
        json_good(&b,
                  "{\"train\": {\"steps\": 5, \"betas\": [0.9, 0.95]}, \"stages\": [{\"name\": \"first\", \"n\": 2}]}"),
        &plain);
    assert_string_equal(plain.at, "train:\n  steps: 5\n  betas: [0.9, 0.95]\nstages:\n  - name: first\n    \"n\": 2\n");
    text_free(&plain);
    bump_free(&b);
}

/* ---- safetensors ---- */

static const int64_t dims_a[] = {2, 3}, dims_empty[] = {0, 5};
static const struct st_spec specs[] = {
    {"b.weight", DT_F32, 2, dims_a},
    {"a.bias", DT_BF16, 1, dims_a + 1},
    {"empty", DT_F64, 2, dims_empty},
    {"scalar", DT_I64, 0, NULL},
};
enum { DATA = 24 + 6 + 0 + 8 };

static void write_sample(const char *path)
{
    static const struct st_pair metadata[] = {{"format", "pt"}, {"note", "quote \" and \xc3\xa9"}};
    struct st_writer w;
    struct error e = {0};
    unsigned char data[DATA];
    for (int i = 0; i < DATA; i++) data[i] = (unsigned char)(i * 7);
    assert_int_equal(st_write_begin(&w, path, specs, COUNT(specs), metadata, 2, &e), PL_OK);
    assert_int_equal(st_write_bytes(&w, data, 10, &e), PL_OK); /* chunk borders need not match tensors */
    assert_int_equal(st_write_bytes(&w, data + 10, DATA - 10, &e), PL_OK);
    assert_int_equal(st_write_end(&w, &e), PL_OK);
}

TEST(test_safetensors_round_trip)
{
    const char *path = path_of("sample.safetensors");
    struct st_file f;
    struct error e = {0};
    write_sample(path);
    if (st_open(path, &f, &e)) fail_msg("%s", e.text);
    assert_int_equal(f.n_entries, COUNT(specs));
    assert_int_equal(f.data_begin % 8, 0);
    assert_int_equal(f.data_bytes, DATA);
    assert_string_equal(st_metadata(&f, "note"), "quote \" and \xc3\xa9");
    assert_null(st_metadata(&f, "none"));
    assert_null(st_find(&f, "b"));
    uint64_t at = 0;
    for (size_t i = 0; i < COUNT(specs); i++) {
        const struct st_entry *t = st_find(&f, specs[i].name);
        assert_non_null(t);
        assert_int_equal(t->dtype, specs[i].dtype);
        assert_int_equal(t->rank, specs[i].rank);
        for (int d = 0; d < t->rank; d++) assert_int_equal(t->dims[d], specs[i].dims[d]);
        assert_int_equal(t->begin, at);
        unsigned char got[DATA];
        assert_int_equal(st_read(&f, t, 0, t->bytes, got, &e), PL_OK);
        for (uint64_t k = 0; k < t->bytes; k++) assert_int_equal(got[k], (at + k) * 7 % 256);
        if (t->bytes >= 4) {
            assert_int_equal(st_read(&f, t, 2, 2, got, &e), PL_OK);
            assert_int_equal(got[0], (at + 2) * 7 % 256);
        }
        at += t->bytes;
    }
    assert_int_equal(truncate(path, (off_t)(f.data_begin + 30)), 0); /* truncated while open */
    unsigned char got[8];
    assert_int_equal(st_read(&f, st_find(&f, "scalar"), 0, 8, got, &e), PL_FAIL);
    assert_says(&e, "scalar");
    st_close(&f);
    st_close(&f);
}

/* Writes a file with this header before `data` bytes of zeros, and the given length word. */
static void write_raw(const char *path, uint64_t length, const char *header, size_t data)
{
    struct text t = {0};
    struct error e;
    text_append(&t, (const char *)&length, 8);
    text_append(&t, header, strlen(header));
    for (size_t i = 0; i < data; i++) text_append(&t, "", 1);
    assert_int_equal(file_write_atomic(path, t.at, t.n, &e), PL_OK);
    text_free(&t);
}

#define T(name, dtype, shape, begin, end)                                                                              \
    "\"" name "\": {\"dtype\": \"" dtype "\", \"shape\": " shape ", \"data_offsets\": [" begin ", " end "]}"

/* Each range of the transpose of a matrix. */
TEST(test_safetensors_transposed)
{
    enum { ROWS = 3, COLUMNS = 5, ALL = ROWS * COLUMNS };
    const char *path = path_of("matrix.safetensors");
    const struct st_spec spec = {"w", DT_BF16, 2, (const int64_t[]){ROWS, COLUMNS}};
    uint16_t w[ALL], turned[ALL], got[ALL];
    struct st_writer out;
    struct st_file f;
    struct error e = {0};
    for (int i = 0; i < ALL; i++) w[i] = (uint16_t)(100 + i), turned[i % COLUMNS * ROWS + i / COLUMNS] = w[i];
    must(st_write_begin(&out, path, &spec, 1, NULL, 0, &e), &e);
    must(st_write_bytes(&out, w, sizeof w, &e), &e);
    must(st_write_end(&out, &e), &e);
    must(st_open(path, &f, &e), &e);
    for (int at = 0; at < ALL; at++)
        for (int n = 1; n <= ALL - at; n++) {
            must(st_read_transposed(&f, &f.entries[0], at, n, got, &e), &e);
            assert_memory_equal(got, turned + at, (size_t)n * sizeof *got);
        }
    st_close(&f);
}

TEST(test_safetensors_lies)
{
    static const struct { const char *header; size_t data; const char *says; } bad[] = {
        {"{" T("a", "F32", "[2]", "0", "8") "}", 4, "truncated"},
        {"{" T("a", "F32", "[2]", "0", "8") "}", 12, "12 bytes of data follow"},
        {"{" T("a", "F32", "[2]", "0", "4") "}", 4, "2 elements of F32 need 8"},
        {"{" T("a", "F32", "[2]", "8", "0") "}", 8, "not a range"},
        {"{" T("a", "F32", "[-2]", "0", "8") "}", 8, "at least 0"},
        {"{" T("a", "F32", "[2]", "-8", "0") "}", 8, "at least 0"},
        {"{" T("a", "F32", "[1.5]", "0", "8") "}", 8, "whole number"},
        {"{" T("a", "F32", "[\"2\"]", "0", "8") "}", 8, "whole number"},
        {"{" T("a", "F32", "2", "0", "8") "}", 8, "a list"},
        {"{" T("a", "F32", "[9223372036854775808]", "0", "8") "}", 8, "dimension"},
        {"{" T("a", "F32", "[18446744073709551616]", "0", "8") "}", 8, "64 bits"},
        {"{" T("a", "U8", "[4294967296, 4294967296]", "0", "8") "}", 8, "63 bits"},
        {"{" T("a", "F64", "[4611686018427387904]", "0", "0") "}", 0, "more than"},
        {"{" T("a", "F32", "[2]", "0", "18446744073709551615") "}", 8, "not a range"},
        {"{" T("a", "F32", "[1]", "0", "4") ", " T("b", "F32", "[1]", "8", "12") "}", 12, "hole of 4 bytes"},
        {"{" T("a", "F32", "[1]", "4", "8") "}", 8, "hole"},
        {"{" T("a", "F32", "[2]", "0", "8") ", " T("b", "F32", "[2]", "4", "12") "}", 12, "overlap"},
        {"{" T("a", "F32", "[1]", "0", "4") ", " T("b", "F32", "[1]", "0", "4") "}", 4, "overlap"},
        {"{" T("a", "F32", "[1]", "0", "4") ", " T("a", "F32", "[1]", "4", "8") "}", 8, "twice"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1]}}", 4, "data_offsets is missing"},
        {"{\"a\": {\"dtype\": \"F32\", \"data_offsets\": [0, 4]}}", 4, "shape is missing"},
        {"{\"a\": {\"shape\": [1], \"data_offsets\": [0, 4]}}", 4, "dtype is missing"},
        {"{\"a\": {\"dtype\": 32, \"shape\": [1], \"data_offsets\": [0, 4]}}", 4, "dtype is the number 32"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4, 8]}}", 4, "3 numbers"},
        {"{\"a\": 1}", 0, "a map"}, {"[]", 0, "a map"}, {"", 0, "ends too early"}, {"{} x", 0, "line 1"},
        {"{\"__metadata__\": {\"a\": 1}}", 0, "a string"}, {"{\"__metadata__\": []}", 0, "a map"},
    };
    const char *path = path_of("lies.safetensors");
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct st_file f;
        struct error e = {0};
        write_raw(path, strlen(bad[i].header), bad[i].header, bad[i].data);
        if (!st_open(path, &f, &e)) fail_msg("accepted: %s", bad[i].header);
        assert_int_equal(e.code, PL_USAGE);
        assert_says(&e, bad[i].says);
        assert_says(&e, path);
    }
}

TEST(test_safetensors_length)
{
    const char *path = path_of("length.safetensors");
    static const uint64_t lengths[] = {3, 1000, 100ull << 20, UINT64_MAX, INT64_MAX, 1ull << 63};
    struct st_file f;
    struct error e;
    for (size_t i = 0; i < COUNT(lengths); i++) {
        write_raw(path, lengths[i], "{}", 0);
        assert_int_equal(st_open(path, &f, &e), PL_USAGE);
        assert_says(&e, "claims a header");
    }
    for (size_t n = 0; n < 8; n++) {
        assert_int_equal(file_write_atomic(path, "\2\0\0\0\0\0\0", n, &e), PL_OK);
        assert_int_equal(st_open(path, &f, &e), PL_USAGE);
    }
    /* a file truncated anywhere is rejected */
    write_sample(path);
    uint64_t size;
    assert_int_equal(file_size(path, &size, &e), PL_OK);
    while (size-- > 0) {
        assert_int_equal(truncate(path, (off_t)size), 0);
        assert_int_equal(st_open(path, &f, &e), PL_USAGE);
    }
    assert_int_equal(st_open(path_of("absent"), &f, &e), PL_USAGE);
    assert_int_equal(st_open(folder, &f, &e), PL_USAGE);
    assert_int_equal(st_open("/dev/null", &f, &e), PL_USAGE);
}

/* Tensors of an unsupported dtype are listed with DT_NONE; the code that needs one reports the
 * error. */
TEST(test_safetensors_unknown)
{
    const char *path = path_of("unknown.safetensors");
    const char *header = "{" T("q", "F8_E4M3", "[3]", "0", "3") ", " T("m", "BOOL", "[1,1,1,1,1,1,1,1]", "3", "4") ", "
                         T("e", "F32", "[0, 9223372036854775807, 9223372036854775807]", "4", "4") "}   ";
    struct st_file f;
    struct error e;
    write_raw(path, strlen(header), header, 4);
    if (st_open(path, &f, &e)) fail_msg("%s", e.text);
    assert_int_equal(st_find(&f, "q")->dtype, DT_NONE);
    assert_string_equal(st_find(&f, "q")->dtype_name, "F8_E4M3");
    assert_int_equal(st_find(&f, "m")->rank, 8);
    assert_int_equal(st_find(&f, "e")->elements, 0);
    st_close(&f);
}

TEST(test_safetensors_write_failures)
{
    struct st_writer w;
    struct error e = {0};
    assert_int_equal(st_write_begin(&w, path_of("no/such/folder"), specs, 1, NULL, 0, &e), PL_FAIL);
    assert_says(&e, "No such file");
    assert_says(&e, "bytes");
    st_write_abort(&w);
    const char *path = path_of("aborted");
    assert_int_equal(st_write_begin(&w, path, specs, 1, NULL, 0, &e), PL_OK);
    assert_true(file_exists(path));
    st_write_abort(&w);
    assert_false(file_exists(path));
    if (file_exists("/dev/full")) { /* a device that is always full; it must not be removed */
        assert_int_equal(st_write_begin(&w, "/dev/full", specs, 1, NULL, 0, &e), PL_FAIL);
        assert_says(&e, "No space left");
        assert_says(&e, "/dev/full");
        assert_true(file_exists("/dev/full"));
    }
    if (geteuid() != 0) { /* root may write anywhere */
        struct error ignored;
        assert_int_equal(dir_make(path_of("locked"), &ignored), PL_OK);
        assert_int_equal(chmod(path_of("locked"), 0500), 0);
        assert_int_equal(st_write_begin(&w, path_of("locked/x"), specs, 1, NULL, 0, &e), PL_FAIL);
        assert_says(&e, "Permission denied");
        assert_int_equal(chmod(path_of("locked"), 0700), 0);
    }
    static const int64_t vast[] = {1ll << 60};
    const struct st_spec too_large = {"vast", DT_U8, 1, vast};
    /* no space reservation on this file system */
    if (!st_write_begin(&w, path_of("vast"), &too_large, 1, NULL, 0, &e)) st_write_abort(&w);
    else assert_int_equal(e.code, PL_FAIL);
    assert_false(file_exists(path_of("vast")));
}

/* ---- files ---- */

TEST(test_files)
{
    struct error e = {0};
    char *bytes;
    size_t n;
    struct names l;
    assert_int_equal(dir_make(path_of("x/y//z/"), &e), PL_OK);
    assert_int_equal(dir_make(path_of("x/y/z"), &e), PL_OK);
    assert_int_equal(file_write_atomic(path_of("x/b.txt"), "hello", 5, &e), PL_OK);
    assert_int_equal(file_write_atomic(path_of("x/b.txt"), "hello\0!", 7, &e), PL_OK);
    assert_int_equal(file_copy(path_of("x/b.txt"), path_of("x/a.txt"), &e), PL_OK);
    assert_int_equal(file_write_atomic(path_of("x/empty"), "", 0, &e), PL_OK);
    assert_int_equal(file_read(path_of("x/a.txt"), 7, &bytes, &n, &e), PL_OK);
    assert_int_equal(n, 7);
    assert_memory_equal(bytes, "hello\0!\0", 8);
    mem_free(bytes);
    assert_int_equal(file_read(path_of("x/a.txt"), 6, &bytes, &n, &e), PL_USAGE);
    assert_says(&e, "larger than");
    assert_int_equal(file_read(path_of("x/empty"), 0, &bytes, &n, &e), PL_OK);
    assert_string_equal(bytes, "");
    mem_free(bytes);
    assert_int_equal(file_read(path_of("gone"), 9, &bytes, &n, &e), PL_USAGE);
    assert_says(&e, "gone");
    assert_int_equal(file_read(folder, 9, &bytes, &n, &e), PL_USAGE);

    assert_int_equal(dir_list(path_of("x"), &l, &e), PL_OK);
    assert_int_equal(l.n, 4); /* no temporary file remains */
    assert_string_equal(l.at[0], "a.txt");
    assert_string_equal(l.at[3], "y");
    names_free(&l);
    assert_int_equal(file_glob(path_of("x/{b,*}.txt"), &l, &e), PL_OK);
    assert_int_equal(l.n, 2);
    assert_string_equal(l.at[0], path_of("x/a.txt"));
    names_free(&l);
    assert_int_equal(file_glob(path_of("x/*.none"), &l, &e), PL_OK);
    assert_int_equal(l.n, 0);
    names_free(&l);

    assert_int_equal(dir_make(path_of("x/a.txt/sub"), &e), PL_USAGE);
    assert_int_equal(dir_make(path_of("x/a.txt"), &e), PL_USAGE);
    assert_says(&e, "Not a directory");
    assert_int_equal(file_write_atomic(path_of("none/f"), "", 0, &e), PL_USAGE);
    assert_int_equal(file_copy(path_of("gone"), path_of("x/c"), &e), PL_USAGE);
    assert_int_equal(file_rename(path_of("gone"), path_of("x/c"), &e), PL_USAGE);
    assert_false(file_exists(path_of("x/c")));
    assert_int_equal(file_rename(path_of("x/empty"), path_of("x/c"), &e), PL_OK);
    assert_true(file_exists(path_of("x/c")));
    uint64_t free_here = 0, free_below = 0;
    assert_int_equal(disk_free(folder, &free_here, &e), PL_OK);
    assert_int_equal(disk_free(path_of("not/there/yet"), &free_below, &e), PL_OK);
    assert_true(free_here > 0 && free_below > 0);

    assert_int_equal(symlink(folder, path_of("x/link")), 0);
    assert_int_equal(tree_remove(path_of("x"), &e), PL_OK);
    assert_false(file_exists(path_of("x")));
    assert_true(dir_exists(folder)); /* the link was not followed */
    assert_int_equal(tree_remove(path_of("x"), &e), PL_OK);
}

TEST(test_json_memory)
{
    struct text t = {0};
    struct bump b = {0};
    struct value *v;
    struct error e = {0};
    text_append(&t, "[1", 2);
    for (int i = 0; i < 999; i++) text_append(&t, ",1", 2);
    text_append(&t, "]", 1);
    assert_int_equal(json_parse_within(t.at, t.n, 1 << 20, &b, &v, &e), PL_OK);
    assert_int_equal(v->count, 1000);
    assert_int_equal(json_parse_within(t.at, t.n, 100000, &b, &v, &e), PL_USAGE);
    assert_says(&e, "its values take more than 0 MiB of memory");
    text_free(&t);
    bump_free(&b);
}

static int count_member(void *user, const struct value *member, struct error *e)
{
    char **keys = user;
    (void)e;
    strcat(*keys, member->key);
    return strcmp(member->key, "stop") ? PL_OK : error_set(e, PL_FAIL, "stopped");
}

TEST(test_json_each)
{
    static const struct { const char *text, *keys, *says;
    } cases[] = {
        {"{}", "", NULL},
        {" {\n} ", "", NULL},
        {"{\"a\": 1, \"b\": {\"c\": [1, 2], \"d\": \"},\"}, \"e\": []}", "abe", NULL},
        {"{\"a\": 1, \"stop\": 2, \"b\": 3}", "astop", "stopped"},
        {"", "", "ends too early"},
        {"[]", "", "expected a map"},
        {"{\"a\": 1", "", "ends too early"},
        {"{\"a\": 1,}", "a", "expected a member"},
        {"{,}", "", "expected a member"},
        {"{\"a\": 1} x", "a", "unexpected text"},
        {"{\"a\" 1}", "", "line 1"},
        {"{\"a\": 01}", "", "malformed number"},
        {"{\"a\": 1}}", "a", "unexpected text"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char room[64] = "", *keys = room;
        struct error e = {0};
        const int rc = json_each(cases[i].text, strlen(cases[i].text), 1 << 20, count_member, &keys, &e);
        assert_string_equal(room, cases[i].keys);
        assert_int_equal(rc != PL_OK, cases[i].says != NULL);
        if (rc) assert_says(&e, cases[i].says);
    }
}

/* A header of many small values in one entry: 25 times its length as a tree. */
TEST(test_safetensors_memory)
{
    struct text t = {0};
    struct st_file f;
    struct error e = {0};
    text_printf(&t, "{\"a\": [1");
    for (int i = 0; i < 400000; i++) text_append(&t, ",1", 2);
    text_printf(&t, "]}");
    write_raw(path_of("many.safetensors"), t.n, t.at, 0);
    assert_int_equal(st_open(path_of("many.safetensors"), &f, &e), PL_USAGE);
    assert_says(&e, "in the header: its values take more than 64 MiB of memory");
    text_free(&t);
}

TEST(test_pointers_of_lfs)
{
    static const char pointer[] =
        "version https://git-lfs.github.com/spec/v1\noid "
        "sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";
    struct st_file f;
    struct error e = {0};
    const char *path = path_of("pointer.safetensors"), *copy = path_of("copied.safetensors");
    char *bytes;
    size_t n;
    assert_int_equal(file_write_atomic(path, pointer, strlen(pointer), &e), PL_OK);
    assert_int_equal(st_open(path, &f, &e), PL_USAGE);
    assert_says(&e, "it is a Git LFS pointer, not the file: run `git lfs pull`");
    assert_int_equal(file_read(path, 1000, &bytes, &n, &e), PL_USAGE);
    assert_int_equal(file_copy(path, copy, &e), PL_OK); /* files beside a model are copied as they are */
}

TEST(test_braces)
{
    struct names found;
    struct error e = {0};
    struct text t = {0};
    assert_int_equal(file_write_atomic(path_of("brace_a1"), "", 0, &e), PL_OK);
    assert_int_equal(file_write_atomic(path_of("brace_b2"), "", 0, &e), PL_OK);
    assert_int_equal(file_glob(path_of("brace_{a,b}{1,2,{3,4}}"), &found, &e), PL_OK);
    assert_int_equal(found.n, 2);
    names_free(&found);
    for (int i = 0; i < 24; i++) text_printf(&t, "{a,b}");
    assert_int_equal(file_glob(t.at, &found, &e), PL_USAGE);
    assert_says(&e, "more than 10000 patterns");
    t.n = 0;
    for (int i = 0; i < 100000; i++) text_append(&t, "{", 1);
    assert_int_equal(file_glob(t.at, &found, &e), PL_USAGE);
    text_free(&t);
}

/* --- temporary files -------------------------------------------------------------------------- */

static mode_t mode_of(const char *path)
{
    struct stat s;
    assert_int_equal(lstat(path, &s), 0);
    return s.st_mode & 07777;
}

static void put_file(const char *path) { assert_int_equal(close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666)), 0); }

TEST(test_temporary)
{
    struct temporary t, u;
    struct error e = {0};
    struct names found;
    const mode_t mask = umask(022);
    umask(mask);
    const char *path = path_of("out.bin"), *left = path_of("out.bin.tmp.0123456789ab"),
               *linked = path_of("out.bin.tmp.ba9876543210");
    assert_int_equal(temporary_file(&t, path, &e), PL_OK);
    assert_int_equal(mode_of(t.path), 0600);
    assert_int_equal(strncmp(t.path, path, strlen(path)), 0);
    put_file(left);                              /* of a process that was killed */
    assert_int_equal(symlink("victim", linked), 0);
    assert_int_equal(temporary_file(&u, path, &e), PL_OK);
    assert_true(strcmp(t.path, u.path) && file_exists(t.path) && !file_exists(left));
    assert_int_equal(mode_of(linked), 0777);     /* a link is neither followed nor removed */
    assert_int_equal(fd_write(t.fd, "whole", 5), 0);
    assert_int_equal(temporary_keep(&t, path, true, &e), PL_OK);
    assert_int_equal(mode_of(path), 0666 & ~mask);
    temporary_drop(&u);
    temporary_drop(&t); /* there is none any more */
    assert_int_equal(temporary_folder(&t, path_of("made"), &e), PL_OK);
    assert_int_equal(mode_of(t.path), 0700);
    assert_int_equal(temporary_keep(&t, path_of("made"), true, &e), PL_OK);
    assert_int_equal(mode_of(path_of("made")), 0777 & ~mask);
    unlink(linked);
    assert_int_equal(dir_list(folder, &found, &e), PL_OK);
    for (uint32_t i = 0; i < found.n; i++) assert_null(strstr(found.at[i], ".tmp."));
    names_free(&found);
    assert_int_equal(temporary_file(&t, path_of("none/x"), &e), PL_USAGE);
    assert_null(t.path);
}

/* The victim of a link with a name that earlier programs used. */
TEST(test_links_of_others)
{
    struct error e = {0};
    char *bytes, guessed[600];
    size_t n;
    assert_int_equal(file_write_atomic(path_of("victim"), "precious", 8, &e), PL_OK);
    snprintf(guessed, sizeof guessed, "%s.tmp.%ld", path_of("plan.json"), (long)getpid());
    assert_int_equal(symlink("victim", guessed), 0);
    assert_int_equal(file_write_atomic(path_of("plan.json"), "{}", 2, &e), PL_OK);
    assert_int_equal(file_read(path_of("victim"), 100, &bytes, &n, &e), PL_OK);
    assert_string_equal(bytes, "precious");
    mem_free(bytes);
    unlink(guessed);
}

static void end_by_signal(int number)
{
    struct temporary file, work;
    struct error e = {0};
    char inside[600];
    temporary_on_signals();
    if (temporary_file(&file, path_of("s/file"), &e) || temporary_folder(&work, path_of("s/folder"), &e)) _exit(1);
    snprintf(inside, sizeof inside, "%s/a/b", work.path);
    if (dir_make(inside, &e)) _exit(1);
    strcat(inside, "/c");
    if (file_write_atomic(inside, "x", 1, &e)) _exit(1);
    raise(number);
    _exit(0);
}

TEST(test_signals_remove)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP};
    struct names found;
    struct error e = {0};
    assert_int_equal(dir_make(path_of("s"), &e), PL_OK);
    for (size_t i = 0; i < COUNT(numbers); i++) {
        int status = 0;
        const pid_t child = fork();
        if (!child) end_by_signal(numbers[i]);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == numbers[i]);
        assert_int_equal(dir_list(path_of("s"), &found, &e), PL_OK);
        assert_int_equal(found.n, 0);
        names_free(&found);
    }
}

TEST(test_path_dir)
{
    static const struct { const char *path, *dir; } cases[] = {
        {"a", "."}, {"a/b", "a"}, {"/a", "/"}, {"/", "/"}, {"a/b/", "a"}, {"a//b", "a"}, {"/a/b/c", "/a/b"}, {"", "."},
    };
    char out[64];
    struct error e;
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_int_equal(path_dir(cases[i].path, out, sizeof out, &e), PL_OK);
        assert_string_equal(out, cases[i].dir);
    }
    assert_int_equal(path_dir("abc/d", out, 3, &e), PL_USAGE);
}

TEST(test_read_documents)
{
    struct bump b = {0};
    struct value *v;
    struct error e;
    assert_int_equal(file_write_atomic(path_of("d.json"), "{\"a\": }", 7, &e), PL_OK);
    assert_int_equal(json_read_file(path_of("d.json"), 100, &b, &v, &e), PL_USAGE);
    assert_says(&e, "d.json: line 1, column 7");
    assert_int_equal(json_read_file(path_of("d.json"), 3, &b, &v, &e), PL_USAGE);
    assert_int_equal(file_write_atomic(path_of("d.yaml"), "a: [\n", 5, &e), PL_OK);
    assert_int_equal(yaml_read_file(path_of("d.yaml"), 100, &b, &v, &e), PL_USAGE);
    assert_says(&e, "d.yaml: line 2");
    assert_int_equal(yaml_read_file(path_of("gone.yaml"), 100, &b, &v, &e), PL_USAGE);
    bump_free(&b);
}

/* --- tables --------------------------------------------------------------------------------- */

static void put_twice(struct json_writer *w, const void *of) { json_put_int(w, "twice", 2 * *(const int *)of); }

/* One table as text, JSON and HTML: formats, absent values, notes, a limit, and a sum in text
 * only. */
TEST(test_table)
{
    static const struct report_column columns[] = {{"name", "op"},
                                                   {"calls", "calls", ""},
                                                   {"seconds", "ms", "%.1f", 1e3},
                                                   {"bytes", "moved", "bytes"},
                                                   {"exact", NULL, ""},
                                                   {NULL, "why"},
                                                   {0}};
    const int number = 21;
    struct report_table t = REPORT_TABLE(columns);
    struct text out = {0}, html = {0}, json = {0};
    struct json_writer w = {.out = &json};
    TABLE_ADD(&t, CELL("A<B"), CELL(3u), CELL(0.25), CELL((int64_t)-2048), CELL(true == 1), CELL("x"),
              {CELL_CALL, .of = &number, .call = put_twice});
    table_note(&t, TABLE_ADD(&t, CELL("a long name"), {0}, CELL(1.0)), "does not fit");
    TABLE_ADD(&t, CELL("not shown"));
    TABLE_ADD(&t, CELL("all"), {0}, CELL(1.25))->text_only = true;
    table_print(&t, 1, 2, &out);
    assert_string_equal(out.at, " op           calls      ms      moved  why\n"
                                " A<B              3   250.0  -2.00 KiB  x\n"
                                " a long name  does not fit\n"
                                " all                 1250.0\n");
    table_html(&t, "names", 1, &html);
    assert_non_null(strstr(html.at, "<table class='names'><tr><th>op</th><th>calls</th>"));
    assert_non_null(strstr(html.at, "<td>A&lt;B</td><td>3</td><td>250.0</td>"));
    assert_null(strstr(html.at, "a long name"));
    json_begin_map(&w, NULL);
    PUT_FACTS(&w, FACT("n", 1), FACT_IF(false, "gone", 1), FACT("none", (char *)NULL), FACT_TABLE("rows", &t),
              FACT_MAP("in", FACT("x", 0.5), FACT("b", (bool)true)), FACT_NUMBERS("list", ((double[]){1, 2}), 2),
              FACT_CALL(put_twice, &number));
    json_end(&w);
    assert_string_equal(json.at,
                        "{\"n\": 1, \"none\": null, \"rows\": [{\"name\": \"A<B\", \"calls\": 3, \"seconds\": 0.25, "
                        "\"bytes\": -2048, \"exact\": 1, \"twice\": 42}, {\"name\": \"a long name\", \"seconds\": 1}, "
                        "{\"name\": \"not shown\"}], \"in\": {\"x\": 0.5, \"b\": true}, \"list\": [1, 2], "
                        "\"twice\": 42}");
    text_free(&out);
    text_free(&html);
    text_free(&json);
    table_free(&t);
}

MAIN(make_folder, remove_folder)

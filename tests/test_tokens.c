/*
 * test_tokens.c: the order of samples is a permutation for any n and seed, and every file format
 * gives the ids that were written to it, or an error that states what is wrong with the file.
 */
#include "data/order.h"
#include "data/text/tokens.h"
#include "io/file.h"
#include "io/safetensors.h"

#include "harness.h"

/* --- order ---------------------------------------------------------------------- */

static void assert_permutation(uint64_t seed, uint64_t epoch, uint64_t n, unsigned char *seen)
{
    memset(seen, 0, n);
    for (uint64_t p = 0; p < n; p++) {
        uint64_t s = sample_order(seed, epoch, p, n, true);
        if (s >= n || seen[s]++)
            fail_msg("seed %llu epoch %llu n %llu: position %llu gives %llu", (unsigned long long)seed,
                     (unsigned long long)epoch, (unsigned long long)n, (unsigned long long)p,
                     (unsigned long long)s);
    }
}

TEST(test_permutation)
{
    unsigned char *seen = mem_alloc(1 << 20);
    for (uint64_t n = 1; n <= 2000; n++) assert_permutation(n * 7919, n % 5, n, seen);
    for (uint64_t seed = 0; seed < 300; seed++) assert_permutation(seed, seed * seed, 1 + seed * 37 % 257, seen);
    assert_permutation(UINT64_MAX, UINT64_MAX, 1 << 20, seen);
    assert_permutation(1, 2, (1 << 20) - 1, seen);
    mem_free(seen);
}

/* Not a test of randomness: it detects a shuffle that does nothing, one that is the same in each
 * epoch, and one that keeps neighbours together. */
TEST(test_shuffles)
{
    enum { N = 1000 };
    int fixed = 0, same = 0, adjacent = 0, seeds = 0;
    for (uint64_t p = 0; p < N; p++) {
        uint64_t a = sample_order(5, 0, p, N, true);
        fixed += a == p;
        same += a == sample_order(5, 1, p, N, true);
        seeds += a == sample_order(6, 0, p, N, true);
        if (p + 1 < N) adjacent += sample_order(5, 0, p + 1, N, true) == a + 1;
        assert_true(sample_order(5, 0, p, N, false) == p);
    }
    /* each count has expectation 1 and is Poisson-like: more than 9 has p < 1e-6 */
    assert_true(fixed < 10 && same < 10 && seeds < 10 && adjacent < 10);
    assert_true(sample_at(5, 2 * N + 3, N, true) == sample_order(5, 2, 3, N, true));
    assert_true(sample_at(5, 2 * N + 3, N, false) == 3);
}

/* All orders of three samples occur, about equally often. */
TEST(test_small_orders)
{
    enum { RUNS = 6000 };
    int count[27] = {0};
    for (uint64_t seed = 0; seed < RUNS; seed++)
        count[sample_order(seed, 0, 0, 3, true) * 9 + sample_order(seed, 0, 1, 3, true) * 3 +
              sample_order(seed, 0, 2, 3, true)]++;
    /* mean 1000, standard deviation 29: six of them */
    for (int i = 0; i < 27; i++)
        if (count[i] && abs(count[i] - RUNS / 6) > 175) fail_msg("order %d came %d times", i, count[i]);
}

/* --- files ------------------------------------------------------------------------- */

static char dir[64];

static int make_dir(void **state)
{
    strcpy(dir, "/tmp/plimsoll-tokens-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    struct error e;
    return tree_remove(dir, &e);
}

/* dir/name, in a ring of buffers so that a few can be used at once. */
static char *in_dir(const char *name)
{
    static char paths[8][256];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    return path;
}

static char *put(const char *name, const void *bytes, size_t n)
{
    struct error e = {0};
    char *path = in_dir(name);
    if (file_write_atomic(path, bytes, n, &e)) fail_msg("%s", e.text);
    return path;
}

/* A version-1 .npy file with a header padded like NumPy's. */
static char *put_npy(const char *name, const char *dict, const void *data, size_t n)
{
    struct text t = {0};
    size_t header = align_up(10 + strlen(dict) + 1, 64) - 10;
    unsigned char start[10] =
        {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)header, (unsigned char)(header >> 8)};
    text_append(&t, (char *)start, 10);
    text_printf(&t, "%-*s\n", (int)header - 1, dict);
    text_append(&t, data, n);
    char *path = put(name, t.at, t.n);
    text_free(&t);
    return path;
}

static char *put_llmc(const char *name, int32_t magic, int32_t version, int32_t count, const void *data, size_t n)
{
    struct text t = {0};
    int32_t header[256] = {magic, version, count};
    text_append(&t, (char *)header, sizeof header);
    text_append(&t, data, n);
    char *path = put(name, t.at, t.n);
    text_free(&t);
    return path;
}

static int open_as(struct tokens *t, char *path, int64_t sequence, enum tokens_dtype dtype, int64_t vocab,
                   struct error *e)
{
    struct tokens_options o = {&path, 1, sequence, dtype, vocab};
    return tokens_open(t, &o, e);
}

/* Checks that the file holds base, base + 1, ...: n tokens, in samples of 4. */
static void check_tokens(char *path, enum tokens_dtype dtype, int32_t base, uint64_t n)
{
    struct tokens t;
    struct error e = {0};
    int32_t out[4];
    if (open_as(&t, path, 4, dtype, 100000, &e)) fail_msg("%s", e.text);
    assert_int_equal(tokens_count(&t), n / 4);
    for (uint64_t s = 0; s < n / 4; s++) {
        if (tokens_read(&t, s, out, &e)) fail_msg("%s", e.text);
        for (int i = 0; i < 4; i++) assert_int_equal(out[i], base + (int32_t)s * 4 + i);
    }
    tokens_close(&t);
}

static void refuses(char *path, enum tokens_dtype dtype, const char *part)
{
    struct tokens t;
    struct error e = {0};
    if (open_as(&t, path, 4, dtype, 100000, &e) != PL_USAGE) fail_msg("%s: accepted", path);
    if (!strstr(e.text, part)) fail_msg("\"%s\" is not in \"%s\"", part, e.text);
    if (!strstr(e.text, path)) fail_msg("the path is not in \"%s\"", e.text);
}

enum { N = 11 };
static uint8_t u8[N];
static uint16_t u16[N];
static uint32_t u32[N];
static int32_t i32[N];
static int64_t i64[N];

static void fill(void)
{
    for (int i = 0; i < N; i++) {
        u8[i] = (uint8_t)(200 + i);
        u16[i] = (uint16_t)(50000 + i);
        u32[i] = 70000u + (uint32_t)i;
        i32[i] = 70000 + i;
        i64[i] = 70000 + i;
    }
}

TEST(test_npy)
{
    fill();
    check_tokens(put_npy("a.npy", "{'descr': '|u1', 'fortran_order': False, 'shape': (11,), }", u8, sizeof u8), 0, 200,
                 N);
    check_tokens(put_npy("b.npy", "{'descr': '<u2', 'fortran_order': False, 'shape': (11,), }", u16, sizeof u16), 0,
                 50000, N);
    check_tokens(put_npy("c.npy", "{'descr': '<u4', 'fortran_order': True, 'shape': (11,), }", u32, sizeof u32), 0,
                 70000, N);
    check_tokens(put_npy("d.npy", "{'shape':(11,),'descr':\"<i4\",'fortran_order':False}", i32, sizeof i32), TOKENS_I32,
                 70000, N);
    check_tokens(put_npy("e.npy", "{'descr': '<i8', 'fortran_order': False, 'shape': (2, 5), }", i64, 80), 0, 70000,
                 10);

    refuses(put_npy("x.npy", "{'descr': '>u2', 'fortran_order': False, 'shape': (11,), }", u16, sizeof u16), 0,
            "big-endian");
    refuses(put_npy("x.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (5,), }", u32, 20), 0, "f4");
    refuses(put_npy("x.npy", "{'descr': '<u2', 'fortran_order': True, 'shape': (2, 5), }", u16, 20), 0, "Fortran");
    refuses(put_npy("x.npy", "{'descr': '<u2', 'fortran_order': False, 'shape': (1, 2, 5), }", u16, 20), 0,
            "3 dimensions");
    refuses(put_npy("x.npy", "{'descr': '<u2', 'fortran_order': False, 'shape': (12,), }", u16, sizeof u16), 0,
            "truncated");
    refuses(put_npy("x.npy", "{'descr': '<u2', 'fortran_order': False, 'shape': (9223372036854775808, 2), }", u16, 22),
            0, "plain array");
    refuses(put_npy("x.npy", "{'descr': '<u2', 'fortran_order': False, 'shape': (9223372036854775809,), }", u16, 22), 0,
            "truncated");
    refuses(put_npy("x.npy", "{'descr': '<u2', 'shape': (11,), }", u16, sizeof u16), 0, "lacks");
    refuses(put_npy("x.npy", "{'descr': '<u2', 'fortran_order': False, 'shape': (11", u16, sizeof u16), 0, "array");
    refuses(put_npy("x.npy", "{'descr': '<u2', 'fortran_order': False, 'shape': (0,), }", u16, 0), 0, "no tokens");
    refuses(put_npy("x.npy", "{'descr': '<u2', 'fortran_order': False, 'shape': (11,), }", u16, sizeof u16), TOKENS_U8,
            "token_dtype");
    refuses(put("x.npy", "\x93NUMPY\x01\x00\xff\x0f{", 11), 0, "truncated");
    refuses(put("x.npy", "\x93NUMPY\x01\x00\xff\xff{", 11), 0, "longer than 4096");
    refuses(put("x.npy", "hello hello", 11), 0, "NumPy signature");
}

TEST(test_raw)
{
    fill();
    check_tokens(put("a.bin", u16, sizeof u16), 0, 50000, N);
    check_tokens(put("a.tokens", u16, sizeof u16), 0, 50000, N);
    check_tokens(put("b.bin", u32, sizeof u32), TOKENS_U32, 70000, N);
    check_tokens(put("b.raw", i32, sizeof i32), TOKENS_I32, 70000, N);
    check_tokens(put("c.bin", i64, sizeof i64), TOKENS_I64, 70000, N);
    check_tokens(put("noext", u8, sizeof u8), TOKENS_U8, 200, N);
    refuses(put("x.bin", u16, sizeof u16 - 1), 0, "whole number of uint16");
    refuses(put("x.bin", "", 0), 0, "empty");
    refuses(put("x.bin", "abcdef", 6), 0, "too short for one sample: 3 tokens, but data.sequence is 4");
    refuses(put("noext", u16, sizeof u16), 0, "set data.token_dtype");
    refuses(put("noext", u16, sizeof u16), 0, "data.format: bytes");

    /* uint32 and int64 of small ids, as numpy.tofile writes them */
    uint32_t small[20];
    int64_t large[20];
    for (int i = 0; i < 20; i++) small[i] = 300u + (uint32_t)i, large[i] = 300 + i;
    refuses(put("w.bin", small, sizeof small), 0, "integers of 4 bytes");
    refuses(put("w.bin", small, sizeof small), 0, "data.token_dtype to uint32");
    refuses(put("w.bin", large, sizeof large), 0, "data.token_dtype to int64");
    check_tokens(put("w.bin", small, sizeof small), TOKENS_U32, 300, 20);
    check_tokens(put("w.bin", large, sizeof large), TOKENS_I64, 300, 20);
}

/* Files that hold something else than ids, by name or by their first bytes. */
TEST(test_not_tokens)
{
    static const char words[] = "It was the best of times, it was the worst of times.\n";
    static const char *const names[] = {"c.txt", "c.TXT", "c.md",      "c.py",    "c.json", "c.jsonl",
                                        "c.csv", "c.tsv", "c.parquet", "c.arrow", "c.gz",   "c.jsonl.zst",
                                        "c.zip", "c.npz", "c.pt",      "c.html"};
    static const enum tokens_dtype as[] = {TOKENS_AUTO, TOKENS_U8, TOKENS_U16};
    for (size_t i = 0; i < COUNT(names); i++)
        for (size_t k = 0; k < COUNT(as); k++) {
            refuses(put(names[i], words, sizeof words - 1), as[k], "not token ids");
            refuses(put(names[i], words, sizeof words - 1), as[k], "set data.format: bytes");
        }
    /* text by its content, whatever the name */
    static const char *const any[] = {"corpus", "corpus.bin", "corpus.tokens", "corpus.cc", "corpus.de"};
    static const char umlauts[] = "Zw\xc3\xb6lf Boxk\xc3\xa4mpfer jagen Viktor quer \xc3\xbc"
                                  "ber den gro\xc3\x9f"
                                  "en Sylter Deich\n";
    for (size_t i = 0; i < COUNT(any); i++) {
        refuses(put(any[i], words, sizeof words - 1), TOKENS_AUTO, "it holds text, not token ids");
        refuses(put(any[i], umlauts, sizeof umlauts - 1), TOKENS_U16, "it holds text, not token ids");
    }
    /* containers by their first bytes */
    static const struct {
        const char *head, *what;
    } heads[] = {{"PAR1\x15\x04\x15\xff", "Parquet"},
                 {"ARROW1\xff\xff", "Arrow"},
                 {"\x1f\x8b\x08\0zzzz", "gzip"},
                 {"PK\x03\x04zzzz", "zip"}};
    for (size_t i = 0; i < COUNT(heads); i++) {
        char file[64] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
        memcpy(file, heads[i].head, 8);
        refuses(put("p.bin", file, sizeof file), TOKENS_AUTO, heads[i].what);
        refuses(put("p.bin", file, sizeof file), TOKENS_U8, heads[i].what);
    }
}

static int open_bytes(struct tokens *t, char *path, enum tokens_dtype dtype, struct error *e)
{
    struct tokens_options o =
        {.paths = &path, .n_paths = 1, .sequence = 4, .dtype = dtype, .vocab_size = 256, .bytes = true};
    return tokens_open(t, &o, e);
}

/* data.format bytes: each byte of any file is an id, also in files that have a header. */
TEST(test_bytes)
{
    static const char *const names[] = {"a.txt", "a.npy", "a.safetensors", "a.bin", "a.parquet", "a"};
    struct tokens t;
    struct error e = {0};
    int32_t out[4];
    for (size_t i = 0; i < COUNT(names); i++) {
        assert_int_equal(open_bytes(&t, put(names[i], "to be, or not to be\xff", 20), i % 2 ? TOKENS_U8 : TOKENS_AUTO,
                                    &e),
                         PL_OK);
        assert_int_equal(tokens_count(&t), 5);
        assert_int_equal(tokens_read(&t, 4, out, &e), PL_OK);
        assert_true(out[0] == ' ' && out[1] == 'b' && out[2] == 'e' && out[3] == 255);
        tokens_close(&t);
    }
    assert_int_equal(open_bytes(&t, put("a.txt", "to be, or not to be", 19), TOKENS_U16, &e), PL_USAGE);
    assert_non_null(strstr(e.text, "data.format is bytes, but data.token_dtype is uint16"));
    assert_int_equal(open_bytes(&t, put("a.txt", "", 0), TOKENS_AUTO, &e), PL_USAGE);
}

TEST(test_llmc)
{
    fill();
    check_tokens(put_llmc("l.bin", 20240520, 1, N, u16, sizeof u16), 0, 50000, N);
    check_tokens(put_llmc("l3.bin", 20240801, 7, N, u32, sizeof u32), 0, 70000, N);
    refuses(put_llmc("x.bin", 20240520, 1, N + 1, u16, sizeof u16), 0, "describes 12 tokens");
    refuses(put_llmc("x.bin", 20240520, 1, N - 1, u16, sizeof u16), 0, "describes 10 tokens");
    refuses(put_llmc("x.bin", 20240520, 1, N, u16, sizeof u16), TOKENS_U32, "token_dtype");
}

static char *put_safetensors(const char *name, const struct st_spec *specs, uint32_t n, const void *data, size_t bytes)
{
    struct st_writer w;
    struct error e = {0};
    char *path = in_dir(name);
    if (st_write_begin(&w, path, specs, n, NULL, 0, &e) || st_write_bytes(&w, data, bytes, &e) ||
        st_write_end(&w, &e))
        fail_msg("%s", e.text);
    return path;
}

TEST(test_safetensors)
{
    fill();
    const int64_t line[] = {N}, plane[] = {2, 5}, one[] = {1};
    struct st_spec alone = {"whatever", DT_I32, 1, line};
    struct st_spec two[] = {{"mask", DT_I32, 1, one}, {"input_ids", DT_I64, 2, plane}};
    struct st_spec none[] = {{"a", DT_I32, 1, one}, {"b", DT_I32, 1, one}};
    struct st_spec real = {"tokens", DT_F32, 1, line};
    char data[4 + 80];
    memset(data, 0, 4);
    memcpy(data + 4, i64, 80);
    check_tokens(put_safetensors("a.safetensors", &alone, 1, i32, sizeof i32), 0, 70000, N);
    check_tokens(put_safetensors("b.safetensors", two, 2, data, sizeof data), 0, 70000, 10);
    refuses(put_safetensors("x.safetensors", none, 2, data, 8), 0, "none is named");
    refuses(put_safetensors("y.safetensors", &real, 1, i32, sizeof i32), 0, "F32");
    refuses(put("z.safetensors", "garbage garbage", 15), 0, "");
    /* a dtype that is readable but not used in computation: the file is written by hand */
    char header[128] = "12345678{\"tokens\":{\"dtype\":\"U16\",\"shape\":[11],\"data_offsets\":[0,22]}}";
    uint64_t length = strlen(header) - 8;
    for (int i = 0; i < 8; i++) header[i] = (char)(length >> (8 * i));
    memcpy(header + 8 + length, u16, sizeof u16);
    check_tokens(put("u16.safetensors", header, 8 + length + sizeof u16), 0, 50000, N);
}

/* --- datasets of several files --------------------------------------------------------------- */

TEST(test_glob)
{
    struct tokens t;
    struct error e = {0};
    int32_t out[4];
    put("g2.raw", "eeeeffffgg", 10);
    put("g1.raw", "aaaabbbb", 8);
    put("g0.raw", "zz", 2); /* too short: omitted */
    put("h[1].raw", "iiii", 4);
    char *paths[] = {in_dir("g*.raw"), in_dir("h[1].raw")};
    struct tokens_options o = {paths, 2, 4, TOKENS_U8, 256, false};
    log_quiet(true);
    if (tokens_open(&t, &o, &e)) fail_msg("%s", e.text);
    assert_int_equal(tokens_count(&t), 5);
    uint64_t before = mem_allocations();
    const char *want = "abefi";
    for (int round = 0; round < 2; round++)
        for (uint64_t s = 5; s-- > 0;) {
            assert_int_equal(tokens_read(&t, s, out, &e), PL_OK);
            for (int i = 0; i < 4; i++) assert_int_equal(out[i], want[s]);
        }
    assert_true(mem_allocations() == before);
    tokens_close(&t);

    refuses(in_dir("nothing-*.npy"), 0, "no file has this name");
    refuses(dir, 0, "not a regular file");
    o.n_paths = 0;
    assert_int_equal(tokens_open(&t, &o, &e), PL_USAGE);
}

/* More files than cached descriptors, and samples longer than the buffer. */
TEST(test_many_and_long)
{
    enum { FILES = TOKENS_SLOTS * 2 + 3, LONG = TOKENS_BUFFER / 8 + 1000 };
    struct tokens t;
    struct error e = {0};
    for (int i = 0; i < FILES; i++) {
        char name[32];
        uint8_t bytes[2] = {(uint8_t)i, (uint8_t)(i + 1)};
        snprintf(name, sizeof name, "m%03d.dat", i);
        put(name, bytes, 2);
    }
    char *paths[] = {in_dir("m*.dat")};
    struct tokens_options o = {paths, 1, 2, TOKENS_U8, 256, false};
    if (tokens_open(&t, &o, &e)) fail_msg("%s", e.text);
    assert_int_equal(tokens_count(&t), FILES);
    for (int i = 0; i < 3 * FILES; i++) {
        int32_t out[2];
        int s = i * 67 % FILES;
        assert_int_equal(tokens_read(&t, (uint64_t)s, out, &e), PL_OK);
        assert_true(out[0] == s && out[1] == s + 1);
    }
    tokens_close(&t);

    int64_t *ids = mem_alloc(2 * LONG * sizeof *ids);
    int32_t *out = mem_alloc(LONG * sizeof *out);
    for (int i = 0; i < 2 * LONG; i++) ids[i] = i;
    if (open_as(&t, put("long.bin", ids, 2 * LONG * sizeof *ids), LONG, TOKENS_I64, 2 * LONG, &e))
        fail_msg("%s", e.text);
    assert_int_equal(tokens_count(&t), 2);
    assert_int_equal(tokens_read(&t, 1, out, &e), PL_OK);
    for (int i = 0; i < LONG; i++) assert_int_equal(out[i], LONG + i);
    tokens_close(&t);
    mem_free(ids);
    mem_free(out);
}

/* The longest row that data.sequence allows. */
TEST(test_million)
{
    enum { LONG = 1 << 20 };
    struct tokens t;
    struct error e = {0};
    uint16_t *file = mem_alloc(2 * LONG * sizeof *file);
    int32_t *out = mem_alloc(LONG * sizeof *out);
    for (uint32_t i = 0; i < 2 * LONG; i++) file[i] = (uint16_t)(i * 40503 >> 4);
    if (open_as(&t, put("million.bin", file, 2 * LONG * sizeof *file), LONG, TOKENS_U16, 65536, &e))
        fail_msg("%s", e.text);
    assert_int_equal(tokens_count(&t), 2);
    for (int s = 0; s < 2; s++) {
        assert_int_equal(tokens_read(&t, (uint64_t)s, out, &e), PL_OK);
        for (int i = 0; i < LONG; i++)
            if (out[i] != file[s * LONG + i]) fail_msg("row %d, token %d: %d", s, i, out[i]);
    }
    tokens_close(&t);
    mem_free(file);
    mem_free(out);
}

TEST(test_vocabulary)
{
    struct tokens t;
    struct error e = {0};
    int32_t out[4], ids[8] = {0, 1, 2, 3, 4, 5, 300, 7};
    char *path = put("v.bin", ids, sizeof ids);
    assert_int_equal(open_as(&t, path, 4, TOKENS_I32, 256, &e), PL_OK);
    assert_int_equal(tokens_read(&t, 0, out, &e), PL_OK);
    assert_int_equal(tokens_read(&t, 1, out, &e), PL_USAGE);
    assert_non_null(strstr(e.text, "v.bin: token 6 is 300, but the model's vocabulary has 256 ids"));
    tokens_close(&t);

    ids[6] = -1;
    path = put("w.bin", ids, sizeof ids);
    assert_int_equal(open_as(&t, path, 4, TOKENS_I32, 256, &e), PL_OK);
    assert_int_equal(tokens_read(&t, 1, out, &e), PL_USAGE);
    assert_non_null(strstr(e.text, "token 6 is -1"));
    /* the file is truncated during the run */
    put("w.bin", ids, 4);
    assert_int_equal(tokens_read(&t, 0, out, &e), PL_OK); /* the old file, still open */
    tokens_close(&t);
    assert_int_equal(open_as(&t, put("w.bin", ids, sizeof ids), 4, TOKENS_I32, 256, &e), PL_OK);
    put("w.bin", ids, 4);
    assert_int_equal(tokens_read(&t, 0, out, &e), PL_FAIL);
    assert_non_null(strstr(e.text, "shorter"));
    tokens_close(&t);
}

MAIN(make_dir, remove_dir)

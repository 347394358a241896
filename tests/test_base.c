/*
 * test_base.c: errors, memory, sizes, names, hash; element types and their rounding,
 * f16 and bf16 over all 65536 values.
 */
#include "base/dtype.h"

#include "harness.h"

/* ---- base ---- */

TEST(test_errors)
{
    struct error e;
    assert_int_equal(error_set(&e, PL_NOFIT, "%d bytes", 7), PL_NOFIT);
    assert_int_equal(error_prepend(&e, "plan"), PL_NOFIT);
    assert_string_equal(e.text, "plan: 7 bytes");
    error_set(&e, PL_FAIL, "again (%s)", e.text); /* an argument that is the message itself */
    assert_string_equal(e.text, "again (plan: 7 bytes)");
    char *big = mem_alloc(5000);
    memset(big, 'x', 4999);
    error_set(&e, PL_FAIL, "%s", big);
    error_prepend(&e, "where");
    assert_int_equal(strlen(e.text), sizeof e.text - 1);
    assert_memory_equal(e.text, "where: xxx", 10);
    error_prepend(&e, "%s", big);
    assert_int_equal(strlen(e.text), sizeof e.text - 1);
    mem_free(big);
}

TEST(test_memory)
{
    uint64_t before = mem_allocations();
    unsigned char *p = mem_alloc(1000);
    for (int i = 0; i < 1000; i++) assert_int_equal(p[i], 0);
    mem_free(p);
    mem_free(mem_alloc(0));
    assert_true(mem_allocations() >= before + 2);

    VEC(int) v = {0};
    for (int i = 0; i < 1000; i++) vec_push(&v, i);
    for (int i = 0; i < 1000; i++) assert_int_equal(v.at[i], i);
    vec_free(&v);
    assert_null(v.at);

    struct bump b = {0};
    char *first = bump_string(&b, "first");
    for (int i = 0; i < 5000; i++) {
        unsigned char *q = bump_alloc(&b, (size_t)i % 97);
        assert_int_equal((uintptr_t)q % 16, 0);
        for (int k = 0; k < i % 97; k++) assert_int_equal(q[k], 0), q[k] = 0xff;
    }
    unsigned char *large = bump_alloc(&b, 1 << 20);
    memset(large, 0xff, 1 << 20);
    assert_string_equal(bump_format(&b, "%s-%d", first, 3), "first-3");
    char *wide = bump_format(&b, "%*s", 1000, "end");
    assert_int_equal(strlen(wide), 1000);
    assert_string_equal(wide + 997, "end");
    bump_free(&b);
    assert_null(b.chunk);
}

TEST(test_text)
{
    struct text t = {0};
    for (int i = 0; i < 1000; i++) text_printf(&t, "%d,", i % 10);
    assert_int_equal(t.n, 2000);
    assert_int_equal(strlen(t.at), 2000);
    text_append(&t, "\0z", 2);
    assert_int_equal(t.n, 2002);
    assert_int_equal(t.at[2002], 0);
    text_printf(&t, "%*s|", 5000, "x"); /* longer than the buffer's capacity */
    assert_int_equal(t.n, 7003);
    assert_string_equal(t.at + 7001, "x|");
    text_free(&t);
}

TEST(test_sizes)
{
    static const struct { const char *s; uint64_t bytes;
    } good[] = {
        {"0", 0},
        {"123", 123},
        {" 123 ", 123},
        {"7B", 7},
        {"8GiB", 8ull << 30},
        {"500 MB", 500000000},
        {"1KiB", 1024},
        {"1KB", 1000},
        {"2TiB", 2ull << 40},
        {"3 TB", 3000000000000ull},
        {"1.5GiB", 3ull << 29},
        {"0.5kib", 512},
        {"0.001 KB", 1},
        {"18446744073709551615", UINT64_MAX},
        {"9007199254740993", 9007199254740993ull},
    };
    static const char *const bad[] = {"",
                                      " ",
                                      "x",
                                      "-1",
                                      "+1",
                                      "GiB",
                                      "1 XiB",
                                      "1G",
                                      "1.5",
                                      "1.",
                                      "1.GiB",
                                      ".5GiB",
                                      "1e3",
                                      "18446744073709551616",
                                      "16777216TiB",
                                      "1 2",
                                      "1KiBs",
                                      "0x10",
                                      "nan",
                                      "1,5GiB"};
    uint64_t x;
    char out[32];
    for (size_t i = 0; i < COUNT(good); i++) {
        if (!size_parse(good[i].s, &x)) fail_msg("\"%s\" is a size", good[i].s);
        assert_int_equal(x, good[i].bytes);
    }
    for (size_t i = 0; i < COUNT(bad); i++)
        if (size_parse(bad[i], &x)) fail_msg("\"%s\" is no size", bad[i]);
    assert_string_equal(size_print(0, out), "0 B");
    assert_string_equal(size_print(1023, out), "1023 B");
    assert_string_equal(size_print(1024, out), "1.00 KiB");
    assert_string_equal(size_print(3ull << 29, out), "1.50 GiB");
    assert_string_equal(size_print((1ull << 20) - 1, out), "1.00 MiB");
    assert_string_equal(size_print(UINT64_MAX, out), "16.00 EiB");
}

TEST(test_durations)
{
    static const struct { double seconds; const char *text;
    } all[] = {
        {0, "0 s"},
        {1e-12, "0 s"},
        {2.5e-4, "250 us"},
        {9.996e-4, "1 ms"},
        {1.25e-3, "1.25 ms"},
        {0.018, "18 ms"},
        {0.457, "457 ms"},
        {0.9996, "1 s"},
        {1.25, "1.25 s"},
        {1.2, "1.2 s"},
        {9.999, "10 s"},
        {42, "42 s"},
        {59.94, "59.9 s"},
        {59.96, "1 min"},
        {65.4, "1 min 5 s"},
        {1800, "30 min"},
        {1792.3, "29 min 52 s"},
        {3599.4, "59 min 59 s"},
        {3599.7, "1 h"},
        {7500, "2 h 5 min"},
        {7200, "2 h"},
        {84900, "23 h 35 min"},
        {86385, "1 d"},
        {86400 + 3 * 3600, "1 d 3 h"},
        {400 * 86400.0, "400 d"},
        {-1.25, "-1.25 s"},
        {-7500, "-2 h 5 min"},
        {-1e-12, "0 s"},
        {NAN, "unknown"},
        {INFINITY, "inf"},
    };
    char out[32];
    for (size_t i = 0; i < COUNT(all); i++) assert_string_equal(duration_print(all[i].seconds, out), all[i].text);
    assert_string_equal(duration_change(0.018, out), "+18 ms");
    assert_string_equal(duration_change(-0.018, out), "-18 ms");
    assert_string_equal(duration_change(0, out), "+0 s");
    /* never an exponent */
    for (double x = 1e-7; x < 1e11; x *= 1.01) assert_null(strpbrk(duration_print(x, out), "e+"));
}

TEST(test_names)
{
    assert_true(pattern_match("*", ""));
    assert_true(pattern_match("", ""));
    assert_false(pattern_match("", "a"));
    assert_false(pattern_match("?", ""));
    assert_true(pattern_match("vision.*.weight", "vision.layers.0.weight"));
    assert_false(pattern_match("vision.*.weight", "vision.weight"));
    assert_true(pattern_match("*bias", "a.bias.bias"));
    assert_true(pattern_match("a?c*", "abcde"));
    assert_false(pattern_match("a?c", "abd"));
    assert_true(pattern_match("a**b", "ab"));
    /* a pattern that would take exponential time by naive recursion */
    assert_false(pattern_match("*a*a*a*a*a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"));
    assert_int_equal(edit_distance("", ""), 0);
    assert_int_equal(edit_distance("abc", ""), 3);
    assert_int_equal(edit_distance("", "ab"), 2);
    assert_int_equal(edit_distance("kitten", "sitting"), 3);
    assert_int_equal(edit_distance("learning_rate", "learnin_rate"), 1);
    assert_int_equal(edit_distance("*", "abc"), 3);
    assert_int_equal(edit_distance("paht", "path"), 1);
    assert_int_equal(edit_distance("ba", "ab"), 1);
    assert_int_equal(edit_distance("bac", "cab"), 2);
    assert_int_equal(edit_distance("ca", "abc"), 3);
    /* names of a hostile file: they are not compared, and a search among many ends */
    char *longer = mem_alloc(200001), *other = mem_alloc(200001);
    memset(longer, 'a', 200000), memset(other, 'b', 200000);
    assert_int_equal(edit_distance(longer, other), 200000);
    longer[500] = other[500] = 0;
    struct closest c = {.to = "kitten"};
    closest_try(&c, "sitting"), closest_try(&c, "mitten"), closest_try(&c, "bitten");
    assert_string_equal(c.found, "mitten");
    c = (struct closest){.to = longer};
    for (int i = 0; i < 1000000; i++) closest_try(&c, other);
    assert_ptr_equal(c.found, other);
    mem_free(longer), mem_free(other);
    assert_int_equal(pattern_distance("kitten", "sitting"), 3);
    assert_int_equal(pattern_distance("*", ""), 0);
    assert_int_equal(pattern_distance("*", "abc"), 0);
    assert_int_equal(pattern_distance("a?c*", "abcde"), 0);
    assert_int_equal(pattern_distance("?", ""), 1);
    assert_int_equal(pattern_distance("layer.*.bias", "layers.3.bias"), 1);
    assert_int_equal(pattern_distance("*.bais", "layers.3.bias"), 1);
    assert_int_equal(pattern_distance("*xyz", "ab"), 3);
}

/* Every bit of input and seed matters; equal inputs agree; small inputs do not collide. */
TEST(test_hash)
{
    unsigned char bytes[100] = {0}, copy[104];
    uint64_t base = hash_bytes(bytes, sizeof bytes, 1);
    memcpy(copy + 1, bytes, sizeof bytes);
    assert_true(hash_bytes(copy + 1, sizeof bytes, 1) == base);
    assert_true(hash_bytes(bytes, sizeof bytes, 2) != base);
    int flipped = 0;
    for (unsigned i = 0; i < 8 * sizeof bytes; i++) {
        bytes[i / 8] ^= (unsigned char)(1 << i % 8);
        uint64_t h = hash_bytes(bytes, sizeof bytes, 1);
        bytes[i / 8] ^= (unsigned char)(1 << i % 8);
        assert_true(h != base);
        flipped += __builtin_popcountll(h ^ base);
    }
    double share = flipped / (64.0 * 800); /* a fair coin: standard deviation 0.0022 over 51200 throws */
    assert_true(share > 0.48 && share < 0.52);
    for (size_t n = 0; n < sizeof bytes; n++)
        for (size_t m = 0; m < n; m++) assert_true(hash_bytes(bytes, n, 0) != hash_bytes(bytes, m, 0));
    double t = clock_seconds();
    assert_true(clock_seconds() >= t);
}

/* ---- dtypes ---- */

TEST(test_dtype_table)
{
    for (int t = 1; t < DT_COUNT; t++) {
        const bool named = t != DT_E4M3; /* stored with scales, under other names */
        assert_int_equal(dtype_by_safetensors_name(dtype_table[t].safetensors), named ? t : DT_NONE);
        assert_true(dtype_table[t].size > 0);
        assert_true(dtype_table[t].is_float == (dtype_table[t].epsilon > 0));
        if (!dtype_is_float((enum dtype)t)) continue;
        double x; /* 1 + epsilon is the next value: halfway rounds back to the even 1 */
        dtype_store(&x, (enum dtype)t, 0, 1 + dtype_table[t].epsilon);
        assert_true(dtype_load(&x, (enum dtype)t, 0) == 1 + dtype_table[t].epsilon);
        dtype_store(&x, (enum dtype)t, 0, 1 + dtype_table[t].epsilon / 2);
        assert_true(dtype_load(&x, (enum dtype)t, 0) == 1);
    }
    assert_int_equal(dtype_by_safetensors_name("f32"), DT_NONE);
    assert_int_equal(dtype_by_safetensors_name(""), DT_NONE);
}

/* The value of an f16 by its definition. */
static double f16_value(uint16_t h)
{
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    double x = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    if (exponent == 31) x = mantissa ? NAN : INFINITY;
    return h & 0x8000 ? -x : x;
}

TEST(test_f16_exhaustive)
{
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t)i;
        double x = f16_value(h);
        float f = f16_to_f32(h);
        if (isnan(x)) {
            assert_true(isnan(f) && isnan(f16_to_f32(f32_to_f16(f))));
            assert_int_equal(f32_to_f16(f) & 0x8000, h & 0x8000);
            continue;
        }
        assert_true((double)f == x);
        assert_int_equal(f32_to_f16(f), h);
        uint16_t stored;
        dtype_store(&stored, DT_F16, 0, x);
        assert_int_equal(stored, h);
    }
}

/* Around each boundary between neighbours: a value below it rounds down, one above it rounds up,
 * one on it rounds to even. The offsets are below an f32's unit, so doubles must round once. */
TEST(test_rounding)
{
    for (uint32_t i = 0; i < 0x7bff; i++) {
        uint16_t got;
        double low = f16_value((uint16_t)i), high = f16_value((uint16_t)(i + 1)), half = (low + high) / 2;
        uint16_t even = (uint16_t)(i & 1 ? i + 1 : i);
        assert_int_equal(f32_to_f16((float)half), even);
        assert_int_equal(f32_to_f16(nextafterf((float)half, 0)), i);
        assert_int_equal(f32_to_f16(-nextafterf((float)half, INFINITY)), (i + 1) | 0x8000);
        dtype_store(&got, DT_F16, 0, nextafter(half, 0));
        assert_int_equal(got, i);
        dtype_store(&got, DT_F16, 0, nextafter(half, INFINITY));
        assert_int_equal(got, i + 1);
    }
    assert_int_equal(f32_to_f16(65519.996f), 0x7bff);
    assert_int_equal(f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(f32_to_f16(-INFINITY), 0xfc00);
    assert_int_equal(f32_to_f16(3.4e38f), 0x7c00);
    assert_int_equal(f32_to_f16(1e-45f), 0);
    assert_int_equal(f32_to_f16(-0.0f), 0x8000);
}

TEST(test_bf16_exhaustive)
{
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t)i, got;
        float f = bf16_to_f32(h);
        if (isnan(f)) {
            assert_true(isnan(bf16_to_f32(f32_to_bf16(f))));
            continue;
        }
        assert_int_equal(f32_to_bf16(f), h);
        if ((h & 0x7fff) >= 0x7f7f) continue;
        double half = (f + (double)bf16_to_f32((uint16_t)(h + 1))) / 2;
        dtype_store(&got, DT_BF16, 0, half);
        assert_int_equal(got, h & 1 ? h + 1 : h);
        dtype_store(&got, DT_BF16, 0, nextafter(half, 0));
        assert_int_equal(got, h);
        dtype_store(&got, DT_BF16, 0, nextafter(half, h & 0x8000 ? -INFINITY : INFINITY));
        assert_int_equal(got, h + 1);
    }
}

/* Whole-array conversion agrees with the conversion of single elements, for every pair of
 * dtypes. */
TEST(test_convert)
{
    enum { N = 131 };
    double from[N], to[N], expected[N];
    unsigned seed = 7;
    for (int a = 1; a < DT_COUNT; a++)
        for (int b = 1; b < DT_COUNT; b++) {
            for (int i = 0; i < N; i++) dtype_store(from, (enum dtype)a, i, (rand_r(&seed) / 1e6 - 1000) * (i % 5));
            dtype_convert(to, (enum dtype)b, from, (enum dtype)a, N);
            for (int i = 0; i < N; i++) dtype_store(expected, (enum dtype)b, i, dtype_load(from, (enum dtype)a, i));
            assert_memory_equal(to, expected, N * dtype_size((enum dtype)b));
        }
    int64_t big[2] = {9007199254740993ll, INT64_MIN}, back[2];
    int32_t small[2];
    dtype_convert(back, DT_I64, big, DT_I64, 2);
    assert_memory_equal(back, big, sizeof big);
    dtype_convert(small, DT_I32, big, DT_I64, 2);
    assert_true(small[0] == INT32_MAX && small[1] == INT32_MIN);
    dtype_store(back, DT_I64, 0, 1e30);
    dtype_store(back, DT_I64, 1, NAN);
    assert_true(back[0] == INT64_MAX && back[1] == 0);
    uint8_t byte;
    dtype_store(&byte, DT_U8, 0, -3.5);
    assert_int_equal(byte, 0);
    dtype_store(&byte, DT_U8, 0, 255.9);
    assert_int_equal(byte, 255);
}

MAIN(NULL, NULL)

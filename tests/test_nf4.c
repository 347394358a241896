/*
 * test_nf4.c: NF4 against bitsandbytes (tests/golden/nf4.safetensors, made by make_nf4.py): codes,
 * scales, offsets and dequantized weights have the same bits; tensors are quantized and dequantized
 * in chunks too.
 */
#include "base/nf4.h"
#include "io/safetensors.h"

#include "harness.h"

static struct st_file file;

/* The bytes of tensor "CASE.KEY"; the caller frees. */
static void *data_of(int number, const char *key, const struct st_entry **entry)
{
    char name[64];
    struct error e = {0};
    snprintf(name, sizeof name, "%d.%s", number, key);
    *entry = st_find(&file, name);
    if (!*entry) return NULL;
    void *data = mem_alloc((*entry)->bytes + 1);
    if (st_read(&file, *entry, 0, (*entry)->bytes, data, &e)) fail_msg("%s", e.text);
    return data;
}

static void same(int number, const char *key, const void *ours, uint64_t bytes)
{
    const struct st_entry *t;
    uint8_t *theirs = data_of(number, key, &t);
    assert_non_null(theirs);
    if (t->bytes != bytes)
        fail_msg("%d.%s: %llu bytes, expected %llu", number, key, (unsigned long long)bytes,
                 (unsigned long long)t->bytes);
    for (uint64_t i = 0; i < bytes; i++)
        if (theirs[i] != ((const uint8_t *)ours)[i])
            fail_msg("case %d, %s: byte %llu is %d, expected %d", number, key, (unsigned long long)i,
                     ((const uint8_t *)ours)[i], theirs[i]);
    mem_free(theirs);
}

struct quantized {
    uint8_t *codes, *scales;
    float *plain, *absmax, offset;
    int64_t n, blocks;
};

static struct quantized quantize(const void *weight, enum dtype t, int64_t n, int64_t chunk)
{
    struct quantized q = {.n = n, .blocks = nf4_blocks(n)};
    q.codes = mem_alloc((size_t)(n + 1) / 2);
    q.scales = mem_alloc((size_t)q.blocks);
    q.plain = mem_alloc((size_t)q.blocks * sizeof(float));
    q.absmax = mem_alloc((size_t)(q.blocks + NF4_SCALES - 1) / NF4_SCALES * sizeof(float));
    for (int64_t at = 0; at < n; at += chunk)
        nf4_quantize(q.codes + at / 2, q.plain + at / NF4_BLOCK, (const char *)weight + at * dtype_size(t), t,
                     min_i64(chunk, n - at));
    nf4_quantize_scales(q.scales, q.absmax, &q.offset, q.plain, q.blocks);
    return q;
}

static void release(struct quantized *q)
{
    mem_free(q->codes);
    mem_free(q->scales);
    mem_free(q->plain);
    mem_free(q->absmax);
}

static void check_values(const struct quantized *q, int number, int64_t chunk)
{
    static const struct { const char *key; enum dtype t; } as[] = {{"f32", DT_F32}, {"bf16", DT_BF16}, {"f16", DT_F16}};
    const struct nf4_parts p = {q->codes, q->scales, q->absmax, &q->offset};
    for (size_t i = 0; i < COUNT(as); i++) {
        const uint32_t size = dtype_size(as[i].t);
        char *y = mem_alloc((size_t)q->n * size);
        for (int64_t at = 0; at < q->n; at += chunk)
            nf4_dequantize(y + at * size, as[i].t, &p, at, min_i64(chunk, q->n - at));
        same(number, as[i].key, y, (uint64_t)q->n * size);
        mem_free(y);
    }
}

TEST(test_golden)
{
    int cases = 0;
    const struct st_entry *t;
    void *weight;
    for (; (weight = data_of(cases, "weight", &t)); cases++) {
        static const int64_t chunks[] = {64, 192, 16384, INT64_MAX / 2};
        for (size_t c = 0; c < COUNT(chunks); c++) {
            struct quantized q = quantize(weight, t->dtype, t->elements, chunks[c]);
            same(cases, "codes", q.codes, (uint64_t)(q.n + 1) / 2);
            same(cases, "plain", q.plain, (uint64_t)q.blocks * 4);
            same(cases, "scales", q.scales, (uint64_t)q.blocks);
            same(cases, "absmax", q.absmax, (uint64_t)(q.blocks + NF4_SCALES - 1) / NF4_SCALES * 4);
            same(cases, "offset", &q.offset, 4);
            check_values(&q, cases, chunks[c]);
            release(&q);
        }
        mem_free(weight);
    }
    assert_int_equal(cases, 20);
}

TEST(test_map)
{
    struct error e = {0};
    float theirs[256];
    const struct st_entry *t = st_find(&file, "map");
    assert_true(t && t->elements == 256 && !st_read(&file, t, 0, sizeof theirs, theirs, &e));
    for (int k = 0; k < 256; k++) {
        const float ours = nf4_map(k);
        assert_memory_equal(&ours, &theirs[k], sizeof ours);
    }
}

/* A dequantized weight has the same code again, and nothing is further off than half a step. */
TEST(test_round_trip)
{
    enum { N = 5000 };
    float w[N], back[N];
    uint8_t codes[N / 2];
    for (int i = 0; i < N; i++) w[i] = (float)((i * 7919) % 2003 - 1001) / 1000;
    struct quantized q = quantize(w, DT_F32, N, N);
    const struct nf4_parts p = {q.codes, NULL, q.plain, NULL};
    nf4_dequantize(back, DT_F32, &p, 0, N);
    for (int i = 0; i < N; i++)
        assert_true(back[i] - w[i] <= 0.16f * q.plain[i / 64] && w[i] - back[i] <= 0.16f * q.plain[i / 64]);
    nf4_quantize(codes, q.plain, back, DT_F32, N);
    assert_memory_equal(codes, q.codes, sizeof codes);
    release(&q);
}

/* The parts do not overlap, are aligned, and take 4.127 bits per weight. */
TEST(test_bytes)
{
    const int64_t n = 14336 * 4096;
    const struct nf4_layout l = nf4_layout(n, true);
    assert_int_equal(l.scales, n / 2);
    assert_int_equal(l.absmax, n / 2 + n / 64);
    assert_int_equal(l.offset, n / 2 + n / 64 + n / 16384 * 4);
    assert_int_equal(l.bytes, l.offset + 4);
    assert_true((double)l.bytes * 8 / (double)n < 4.12696 && (double)l.bytes * 8 / (double)n > 4.12694);
    assert_true((double)nf4_layout(n, false).bytes * 8 / (double)n == 4.5);
    for (int64_t k = 1; k < 1000; k += 13) {
        const struct nf4_layout s = nf4_layout(k, true);
        assert_true(s.scales % 16 == 0 && s.absmax % 16 == 0 && s.offset % 16 == 0);
        assert_true(s.scales >= (uint64_t)(k + 1) / 2 && s.absmax >= s.scales + (uint64_t)nf4_blocks(k) &&
                    s.offset >= s.absmax + 4);
    }
}

static int open_golden(void **state)
{
    struct error e = {0};
    must(st_open("tests/golden/nf4.safetensors", &file, &e), &e);
    return 0;
}

MAIN(open_golden, NULL)

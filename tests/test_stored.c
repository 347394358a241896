/*
 * test_stored.c: the forms in which storages keep values: parts do not overlap, chunks of a tensor
 * lie where the whole tensor has them, and values come back from every form.
 */
#include "graph/stored.h"

#include "base/e4m3.h"

#include "harness.h"

static const enum dtype FLOATS[] = {DT_F32, DT_BF16, DT_F16};
static const int64_t COUNTS[] = {1, 2, 63, 64, 65, 1000, 16384, 16385};

TEST(test_parts)
{
    for (int form = 0; form < STORED_FORMS; form++)
        for (size_t f = 0; f < COUNT(FLOATS); f++)
            for (size_t c = 0; c < COUNT(COUNTS); c++) {
                const struct stored_form *x = &stored_forms[form];
                const struct stored_shape s = {FLOATS[f], COUNTS[c], COUNTS[c] % 4 ? 1 : COUNTS[c] / 4};
                uint64_t end = 0, all = 0;
                assert_true(STORED_GROUP % x->group == 0);
                assert_true(x->name && x->n_parts >= 1 && x->n_parts <= STORED_PARTS && x->group >= 1);
                for (int i = 0; i < x->n_parts; i++) {
                    assert_true(stored_part_offset(x, i, s) >= end);
                    end = stored_part_offset(x, i, s) + stored_part_bytes(x, i, s);
                    all += stored_part_bytes(x, i, s);
                    assert_true(stored_part_at(x, i, (struct stored_shape){FLOATS[f], 0, s.row}) == 0);
                    /* A chunk that begins at a group begins at an entry. */
                    assert_true(x->part[i].values <= 0 || x->group % x->part[i].values == 0);
                }
                assert_true(stored_file_bytes(x, s) == all && all <= end);
            }
}

/* Plain: elements x size, as a tensor without a form has. */
TEST(test_plain)
{
    struct graph g;
    graph_init(&g);
    for (size_t f = 0; f < COUNT(FLOATS); f++) {
        const char *name = dtype_name(FLOATS[f]);
        const struct tensor *t =
            tensor_at(&g, graph_param(&g, name, FLOATS[f], 2, (int64_t[]){7, 9}, (struct init){INIT_ZERO, 0, 0}));
        assert_true(tensor_form(&g, t) == &stored_forms[STORED_PLAIN]);
        assert_true(stored_bytes(&g, t) == tensor_bytes(t) && stored_bytes(&g, t) == g.storages.at[t->storage].bytes);
    }
    graph_free(&g);
    float values[100], back[100];
    uint16_t stored[100];
    void *parts[STORED_PARTS] = {stored};
    for (int i = 0; i < 100; i++) values[i] = (float)(i - 50) / 8;
    const struct stored_shape s = {DT_BF16, 100, 10};
    stored_forms[STORED_PLAIN].pack(parts, s, values, DT_F32);
    stored_forms[STORED_PLAIN].unpack(back, DT_F32, (const void *const *)parts, s);
    assert_memory_equal(back, values, sizeof back);
}

/* e4m3: numbers of few bits come back, and the transpose holds the same numbers. */
TEST(test_e4m3)
{
    enum { R = 48, C = 80 };
    static float values[R * C], back[R * C];
    static uint8_t codes[R * C], turned[R * C];
    float scales[R], turned_scales[C];
    void *parts[STORED_PARTS] = {codes, scales, turned, turned_scales};
    const struct stored_shape s = {DT_F32, R * C, C};
    for (int i = 0; i < R * C; i++) values[i] = ldexpf((float)(8 + i % 8), i % 7 - i / C % 5) * (i % 3 ? 1 : -1);
    stored_forms[STORED_E4M3_BOTH].pack(parts, s, values, DT_F32);
    stored_forms[STORED_E4M3_BOTH].unpack(back, DT_F32, (const void *const *)parts, s);
    assert_memory_equal(back, values, sizeof back);
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++)
            assert_true(e4m3_to_f32(turned[c * R + r]) * turned_scales[c] == values[r * C + c]);
    memset(codes, 0, sizeof codes);
    stored_forms[STORED_E4M3].pack(parts, s, values, DT_F32);
    stored_forms[STORED_E4M3].unpack(back, DT_F32, (const void *const *)parts, s);
    assert_memory_equal(back, values, sizeof back);
}

MAIN(NULL, NULL)

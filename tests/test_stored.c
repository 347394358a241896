/*
 * test_stored.c: the forms in which storages keep values: parts do not overlap, chunks of a tensor
 * lie where the whole tensor has them, and values come back from every form.
 */
#include "graph/stored.h"

#include "harness.h"

static const enum dtype FLOATS[] = {DT_F32, DT_BF16, DT_F16};
static const int64_t COUNTS[] = {1, 2, 63, 64, 65, 1000, 16384, 16385};

TEST(test_parts)
{
    for (int form = 0; form < STORED_FORMS; form++)
        for (size_t f = 0; f < COUNT(FLOATS); f++)
            for (size_t c = 0; c < COUNT(COUNTS); c++) {
                const struct stored_form *x = &stored_forms[form];
                uint64_t end = 0, all = 0;
                assert_true(STORED_GROUP % x->group == 0 && stored_part_at(x, 0, FLOATS[f], 0) == 0);
                assert_true(x->name && x->n_parts >= 1 && x->n_parts <= STORED_PARTS && x->group >= 1);
                for (int i = 0; i < x->n_parts; i++) {
                    assert_true(stored_part_offset(x, i, FLOATS[f], COUNTS[c]) >= end);
                    end =
                        stored_part_offset(x, i, FLOATS[f], COUNTS[c]) + stored_part_bytes(x, i, FLOATS[f], COUNTS[c]);
                    all += stored_part_bytes(x, i, FLOATS[f], COUNTS[c]);
                    /* A chunk that begins at a group begins at an entry. */
                    assert_true(!x->part[i].values || x->group % x->part[i].values == 0);
                }
                assert_true(stored_file_bytes(x, FLOATS[f], COUNTS[c]) == all && all <= end);
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
    stored_forms[STORED_PLAIN].pack(parts, DT_BF16, values, DT_F32, 100);
    stored_forms[STORED_PLAIN].unpack(back, DT_F32, (const void *const *)parts, DT_BF16, 100);
    assert_memory_equal(back, values, sizeof back);
}

MAIN(NULL, NULL)

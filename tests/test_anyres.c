/*
 * test_anyres.c: images in tiles with a map: the shape of an image follows from its ids, and the
 * features of its tokens are its own.
 */
#include "harness.h"
#include "text/template/anyres.h"

enum { TOKEN = 7, VIDEO = 8, FIRST = 1000 };

/* Makes LLaVA-OneVision as published, or LLaVA-NeXT. */
static struct anyres make(bool onevision)
{
    struct anyres a = {.token = TOKEN};
    struct error e;
    must(anyres_parse(&a, NULL, onevision, &e), &e);
    a.tile = onevision ? 384 : 336;
    a.side = onevision ? 27 : 24;
    if (onevision) a.most = 9, a.pooled = anyres_pooled(a.side), a.video = VIDEO;
    return a;
}

/* The ids of a shape give the shape, and no part of them does. */
static void check_ids(const struct anyres *a, struct anyres_shape s)
{
    const int32_t n = anyres_tokens(a, s);
    int32_t *ids = mem_alloc((size_t)(n + 1) * sizeof *ids);
    struct anyres_shape found;
    ids[n] = 3;
    anyres_put(a, s, ids);
    assert_true(anyres_find(a, ids, n + 1, &found) && !memcmp(&found, &s, sizeof s));
    assert_false(anyres_find(a, ids, n - 1, &found));
    for (int32_t i = 0; i < n; i++) {
        assert_true(anyres_is_token(a, ids[i]));
        assert_int_equal(anyres_placeholder(a, ids[i]), s.frames ? VIDEO : TOKEN);
    }
    ids[n / 2] = 3;
    assert_false(anyres_find(a, ids, n + 1, &found));
    mem_free(ids);
}

/* Each token is a newline, or a mean of features of the image. */
static void check_features(const struct anyres *a, struct anyres_shape s, int32_t newlines)
{
    const int32_t all = (anyres_images(s) + s.frames) * a->side * a->side;
    for (int32_t i = 0; i < anyres_tokens(a, s); i++) {
        struct anyres_feature f;
        float sum = 0;
        anyres_feature(a, s, FIRST, i, &f);
        newlines -= !f.row[0];
        for (int k = 0; k < 4; k++) {
            assert_true((f.row[k] < 0) == !(f.weight[k] > 0));
            assert_true(f.row[k] <= 0 || (f.row[k] >= FIRST && f.row[k] < FIRST + all));
            sum += f.weight[k];
        }
        assert_true(fabsf(sum - 1) < 1e-6f);
    }
    assert_int_equal(newlines, 0);
}

TEST(test_shapes)
{
    static const uint32_t sides[] = {1, 27, 384, 500, 769, 1151, 2304, 4000, 9000};
    for (int onevision = 0; onevision < 2; onevision++) {
        const struct anyres a = make(onevision);
        for (size_t i = 0; i < COUNT(sides) * COUNT(sides); i++) {
            const uint32_t w = sides[i % COUNT(sides)], h = sides[i / COUNT(sides)];
            const struct anyres_shape s = anyres_shape_of(&a, w, h);
            if (!s.height || !s.width) continue; /* so narrow that no feature shows it */
            assert_true(!onevision || s.to_height * s.to_width <= 1.21 * 9 * 27 * 27);
            check_ids(&a, s);
            check_features(&a, s, s.to_height);
        }
    }
}

/* An image that shares its conversation, and videos. */
TEST(test_onevision)
{
    const struct anyres a = make(true);
    const struct anyres_shape whole = {0}, video = {.frames = 5};
    assert_int_equal(anyres_tokens(&a, whole), 730);
    assert_int_equal(anyres_tokens(&a, video), 5 * 14 * 14 + 1);
    check_ids(&a, whole);
    check_ids(&a, video);
    check_features(&a, whole, 1);
    check_features(&a, video, 1);
    assert_int_equal(anyres_images(whole), 1);
    assert_int_equal(anyres_images(video), 0);
}

/* Ids that no image has, and those of a size that is not in the list. */
TEST(test_wrong_ids)
{
    const struct anyres a = make(true), next = make(false);
    int32_t ids[800];
    struct anyres_shape found;
    for (size_t i = 0; i < COUNT(ids); i++) ids[i] = TOKEN;
    assert_false(anyres_find(&a, ids, COUNT(ids), &found));
    for (int32_t id = ANYRES_AFTER_VIDEO - 1; id <= ANYRES_FIRST; id += 511) {
        ids[729] = ids[576] = id;
        assert_false(anyres_find(&a, ids, COUNT(ids), &found) && id != ANYRES_AFTER_IMAGE);
        assert_false(anyres_find(&next, ids, COUNT(ids), &found));
        ids[576] = TOKEN;
    }
    ids[0] = VIDEO; /* of a frame in part */
    assert_false(anyres_find(&a, ids, COUNT(ids), &found));
}

MAIN(NULL, NULL)

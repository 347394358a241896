/*
 * test_rows.c: packing puts every sample into exactly one row, within its room, and fills rows.
 */
#include "base/random.h"
#include "data/text/conversations.h"

#include "harness.h"

/* Every sample once, no row over its room, rows in the order of their first samples. Returns the
 * fill with tokens; *images, if not NULL: that of the slots of images. */
static double check_sizes(const struct rows *r, const struct row_size *sizes, uint32_t n, struct row_size most,
                          double *images)
{
    uint64_t sum = 0, all = 0;
    unsigned char *seen = mem_alloc(n + 1);
    assert_int_equal(r->first[0], 0);
    assert_int_equal(r->first[r->n], n);
    for (uint32_t row = 0; row < r->n; row++) {
        uint64_t used = 0, shown = 0;
        assert_true(r->first[row] < r->first[row + 1]);
        if (row) assert_true(r->samples[r->first[row - 1]] < r->samples[r->first[row]]);
        for (uint32_t k = r->first[row]; k < r->first[row + 1]; k++) {
            assert_true(r->samples[k] < n && !seen[r->samples[k]]++);
            if (k > r->first[row]) assert_true(r->samples[k - 1] < r->samples[k]);
            used += sizes[r->samples[k]].tokens;
            shown += sizes[r->samples[k]].images;
        }
        assert_true(used <= most.tokens && shown <= most.images);
        sum += used;
        all += shown;
    }
    mem_free(seen);
    if (images) *images = (double)all / ((double)r->n * most.images);
    return (double)sum / ((double)r->n * most.tokens);
}

static void pack_text(struct rows *r, const uint32_t *lengths, uint32_t n, uint32_t T, bool pack, uint32_t images)
{
    struct row_size *sizes = mem_alloc((n + 1) * sizeof *sizes);
    for (uint32_t i = 0; i < n; i++) sizes[i].tokens = lengths[i];
    rows_pack(r, sizes, n, (struct row_size){T, images}, pack);
    mem_free(sizes);
}

static double check_rows(const struct rows *r, const uint32_t *lengths, uint32_t n, uint32_t T)
{
    struct row_size *sizes = mem_alloc((n + 1) * sizeof *sizes);
    for (uint32_t i = 0; i < n; i++) sizes[i].tokens = lengths[i];
    const double fill = check_sizes(r, sizes, n, (struct row_size){T, 0}, NULL);
    mem_free(sizes);
    return fill;
}

/* Lengths as those of chat datasets: log-normal, cut at T. */
static void fill_lengths(uint32_t *lengths, uint32_t n, uint32_t T, double median, double sigma)
{
    float *x = mem_alloc(n * sizeof *x);
    random_normal(x, random_key(1, "lengths"), 0, n, (float)sigma);
    for (uint32_t i = 0; i < n; i++) lengths[i] = (uint32_t)fmin(T, fmax(1, median * exp((double)x[i])));
    mem_free(x);
}

TEST(test_fills_rows)
{
    static const struct {
        uint32_t T;
        double median, sigma;
    } cases[] = {{2048, 400, 0.8}, {4096, 900, 1.0}, {1024, 150, 0.7}, {512, 300, 0.5}};
    enum { N = 20000 };
    uint32_t *lengths = mem_alloc(N * sizeof *lengths);
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct rows r;
        fill_lengths(lengths, N, cases[i].T, cases[i].median, cases[i].sigma);
        pack_text(&r, lengths, N, cases[i].T, true, 0);
        double fill = check_rows(&r, lengths, N, cases[i].T);
        if (i < 3 && fill < 0.99) fail_msg("case %zu: %.3f of the rows is filled", i, fill);
        assert_true(fill > 0.85); /* lengths above half a row cannot share one */
        rows_free(&r);
    }
    mem_free(lengths);
}

TEST(test_any_size)
{
    static const uint32_t sizes[] = {1, 2, 63, 64, 65, 4095, 4096, 4097, 1 << 20};
    uint32_t lengths[300];
    for (size_t i = 0; i < COUNT(sizes); i++)
        for (uint32_t n = 1; n <= 300; n += 23) {
            struct rows r, again;
            for (uint32_t k = 0; k < n; k++) lengths[k] = 1 + (uint32_t)(random_bits(i, k) % sizes[i]);
            pack_text(&r, lengths, n, sizes[i], true, 0);
            pack_text(&again, lengths, n, sizes[i], true, 5); /* room for images that no sample has changes nothing */
            check_rows(&r, lengths, n, sizes[i]);
            assert_int_equal(r.n, again.n);
            assert_memory_equal(r.samples, again.samples, n * sizeof *r.samples);
            rows_free(&r);
            rows_free(&again);
        }
}

TEST(test_best_fit)
{
    const uint32_t lengths[] = {4, 6, 3, 7, 5, 5}; /* 7+3, 6+4, 5+5 */
    struct rows r;
    pack_text(&r, lengths, COUNT(lengths), 10, true, 0);
    assert_int_equal(r.n, 3);
    const uint32_t want[] = {0, 1, 2, 3, 4, 5};
    assert_memory_equal(r.samples, want, sizeof want);
    rows_free(&r);
    pack_text(&r, lengths, COUNT(lengths), 10, false, 0);
    assert_int_equal(r.n, 6);
    check_rows(&r, lengths, COUNT(lengths), 10);
    rows_free(&r);
    pack_text(&r, lengths, 0, 10, true, 0);
    assert_int_equal(r.n, 0);
    rows_free(&r);
}

/* Samples as those of LLaVA's instructions: an image of 576 tokens, or up to three, and some text;
 * 6 % are longer text without an image. */
static uint32_t like_llava(struct row_size *sizes, uint32_t n, uint32_t T, uint32_t most_images)
{
    float *x = mem_alloc(n * sizeof *x);
    uint32_t kept = 0;
    random_normal(x, random_key(2, "lengths"), 0, n, 0.8F);
    for (uint32_t i = 0; i < n; i++) {
        const bool text = random_bits(random_key(3, "text"), i) % 100 < 6;
        const uint32_t images = text ? 0 : 1 + (uint32_t)(random_bits(random_key(4, "images"), i) % most_images);
        const uint32_t tokens = 576 * images + (uint32_t)fmax(20, (text ? 500 : 160) * exp((double)x[i]));
        if (tokens <= T) sizes[kept++] = (struct row_size){tokens, images};
    }
    mem_free(x);
    return kept;
}

TEST(test_fills_images)
{
    static const struct {
        struct row_size most;
        uint32_t images;
    } cases[] = {{{4096, 5}, 1}, {{8192, 11}, 1}, {{4096, 6}, 3}, {{2048, 3}, 3}, {{8192, 11}, 3}};
    enum { N = 20000 };
    struct row_size *sizes = mem_alloc(N * sizeof *sizes);
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct rows r;
        double images;
        const uint32_t n = like_llava(sizes, N, cases[i].most.tokens, cases[i].images);
        rows_pack(&r, sizes, n, cases[i].most, true);
        const double tokens = check_sizes(&r, sizes, n, cases[i].most, &images);
        if (tokens < 0.9 || images < 0.8)
            fail_msg("case %zu: %.3f of the tokens and %.3f of the slots of images are filled", i, tokens, images);
        rows_free(&r);
    }
    mem_free(sizes);
}

/* A row has room for frames, too: the least room for tokens among the rows that have it. */
TEST(test_frames)
{
    const struct row_size sizes[] = {{6, 1, 4}, {5, 0, 8}, {4, 0, 4}, {3, 1, 0}, {2, 0, 4}, {1, 0, 0}};
    struct rows r;
    rows_pack(&r, sizes, COUNT(sizes), (struct row_size){10, 1, 8}, true);
    /* 4 has no room beside the frames of the others */
    const uint32_t first[] = {0, 2, 5, 6}, samples[] = {0, 2, 1, 3, 5, 4};
    assert_int_equal(r.n, 3);
    assert_memory_equal(r.first, first, sizeof first);
    assert_memory_equal(r.samples, samples, sizeof samples);
    rows_free(&r);
}

MAIN(NULL, NULL)

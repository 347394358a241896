/*
 * allocate.c: ALLOCATE, how an image's tokens are shared among its patches (base/allocation.h).
 *
 * The best features are found one after the other, each behind the one before: by score, of equal
 * ones the first. All of it is exact, so that the reference is the same code on one thread.
 */
#include "base/allocation.h"
#include "cpu/cpu.h"
#include "cpu/reference/ref.h"

struct image_span {
    int64_t begin, end; /* features */
};

/* Returns the features of image m; begin = end: there is no such image. */
static struct image_span span_of(const struct launch *l, int64_t r, int64_t m, int64_t F)
{
    const int64_t unit = l->attr->allocate.merge * l->attr->allocate.merge;
    struct image_span s = {0, 0};
    for (int64_t i = 0; i <= m; i++) {
        s.begin = s.end;
        if (s.begin < F) s.end = (int64_t)ref_get(&l->in[1], ((r * F + s.begin) * unit) * 2 + 1) / unit;
        if (s.end <= s.begin || s.end > F) return (struct image_span){0, 0};
    }
    return s;
}

static bool is_better(float a, int64_t i, float b, int64_t j) { return a > b || (a == b && i < j); }

/* Finds the n best features of the span, from the best on. NaN counts as 0. */
static void find_best(const struct ref_row *score, struct image_span s, int64_t n, float *best, int32_t *at)
{
    for (int64_t k = 0; k < n; k++) {
        int64_t found = -1;
        float most = 0;
        for (int64_t i = s.begin; i < s.end; i++) {
            const float raw = (float)ref_at(score, i), x = raw == raw ? raw : 0;
            if (k && !is_better(best[k - 1], at[k - 1], x, i)) continue;
            if (found < 0 || is_better(x, i, most, found)) found = i, most = x;
        }
        best[k] = most;
        at[k] = (int32_t)found;
    }
}

/* Sorts features, of which the first `fine` have the finer level: that becomes the lowest bit. */
static void sort_kept(int32_t *at, struct allocation a)
{
    for (int64_t i = 0; i < a.kept; i++) {
        const int32_t x = at[i] * 2 + (i < a.fine);
        int64_t k = i;
        for (; k && at[k - 1] > x; k--) at[k] = at[k - 1];
        at[k] = x;
    }
}

static void put_slot(const struct launch *l, int64_t slot, int64_t feature, int64_t coarse, int64_t patch)
{
    ref_put(&l->out[0], 3 * slot, (double)feature);
    ref_put(&l->out[0], 3 * slot + 1, (double)coarse);
    ref_put(&l->out[0], 3 * slot + 2, (double)patch);
}

static void allocate_image(const struct launch *l, int64_t r, int64_t m, int64_t F)
{
    const int64_t tokens = l->attr->allocate.tokens, unit = l->attr->allocate.merge * l->attr->allocate.merge;
    const struct image_span s = span_of(l, r, m, F);
    const struct ref_row score = ref_row(&l->in[0], r * F);
    const int64_t cap = allocation_most(s.end - s.begin, tokens, l->attr->allocate.most, unit);
    float best[ALLOCATION_MOST];
    int32_t at[ALLOCATION_MOST];
    int64_t slot = (r * l->attr->allocate.images + m) * tokens, end = slot + tokens;
    find_best(&score, s, min_i64(cap, tokens), best, at);
    const struct allocation a = allocation_share(best, s.end - s.begin, tokens, l->attr->allocate.most, unit);
    sort_kept(at, a);
    for (int64_t k = 0; k < a.kept; k++) {
        const int64_t feature = at[k] / 2;
        if (at[k] % 2)
            for (int64_t i = 0; i < unit; i++) put_slot(l, slot++, feature, -1, feature * unit + i);
        else put_slot(l, slot++, feature, feature, -1);
    }
    while (slot < end) put_slot(l, slot++, -1, -1, -1);
}

/* Writes the positions of the tokens of row b. */
static void place_tokens(const struct launch *l, int64_t b, int64_t F)
{
    const int64_t R = l->in[0].dim[0], B = l->in[3].dim[0], T = l->in[3].dim[1], merge = l->attr->allocate.merge;
    const int64_t r = b * R / B, S = l->attr->allocate.images * l->attr->allocate.tokens;
    for (int64_t t = b * T; t < (b + 1) * T; t++) {
        const int64_t index = (int64_t)ref_get(&l->in[4], t),
                      feature = index >= 0 && index < S ? (int64_t)ref_get(&l->out[0], (r * S + index) * 3) : -1;
        for (int k = 0; k < 3; k++) {
            const double place =
                feature < 0 || !k
                    ? 0
                    : (double)((int64_t)ref_get(&l->in[2], (r * F + feature) * merge * merge * 3 + k - 1) / merge);
            ref_put(&l->out[1], 3 * t + k, ref_get(&l->in[3], 3 * t + k) + place);
        }
    }
}

static void allocate_on(const struct launch *l, int threads)
{
    const int64_t R = l->in[0].dim[0], F = l->in[0].dim[1], B = l->in[3].dim[0], images = l->attr->allocate.images;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < R * images; i++) allocate_image(l, i / images, i % images, F);
    for (int64_t b = 0; b < B; b++) place_tokens(l, b, F);
}

static void ref_allocate(const struct launch *l) { allocate_on(l, 1); }

static bool allocate_match(const struct query *q)
{
    (void)q;
    return true;
}
static void allocate_run(const struct launch *l) { allocate_on(l, l->threads); }

REF_KERNEL(ALLOCATE, allocate);
CPU_KERNEL(ALLOCATE, allocate);

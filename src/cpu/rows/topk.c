/*
 * topk.c: TOPK, the reference and the fast kernel.
 *
 * An element is kept if fewer than k others come before it, where x[j] comes before x[i] if it is
 * larger, or equal and earlier. Comparing all pairs finds the same elements in any order of work.
 */
#include "cpu/cpu.h"
#include "cpu/reference/ref.h"
#include "cpu/rows.h"

/* Whether a is larger than b; a NaN is larger than any number. */
static bool is_larger(double a, double b) { return a > b || (a != a && b == b); }

/* --- the reference ---------------------------------------------------------------- */

static void ref_topk(const struct launch *l)
{
    const int64_t rows = operand_rows(&l->in[0]), N = operand_last(&l->in[0]), k = l->attr->topk.k;
    for (int64_t r = 0; r < rows; r++) {
        const struct ref_row x = ref_row(&l->in[0], r * N);
        int64_t kept = 0;
        for (int64_t i = 0; i < N; i++) {
            int64_t before = 0;
            for (int64_t j = 0; j < N && before < k; j++)
                before +=
                    is_larger(ref_at(&x, j), ref_at(&x, i)) || (j < i && !is_larger(ref_at(&x, i), ref_at(&x, j)));
            if (before < k) ref_put(&l->out[0], r * k + kept++, (double)i);
        }
    }
}

/* --- fast ---------------------------------------------------------------------------- */

static bool topk_match(const struct query *q)
{
    return (tensor_is(q->in[0], DT_F32) || tensor_is(q->in[0], DT_BF16) || tensor_is(q->in[0], DT_F16)) &&
           tensor_is(q->out[0], DT_I32);
}

/* How many of n elements come before `one`; `equal`: those that are equal do. */
static int count_before(const float *x, int n, float one, bool equal)
{
    int count = 0;
    if (one != one) {
        for (int j = 0; j < n && equal; j++) count += x[j] != x[j];
        return count;
    }
#pragma omp simd reduction(+ : count)
    for (int j = 0; j < n; j++) count += (x[j] > one) | (x[j] != x[j]) | (equal & (x[j] == one));
    return count;
}

/* Whether element i of the row that begins at `row` is kept. */
static bool is_kept(const struct operand *x, int64_t row, int64_t N, int64_t i, int64_t k)
{
    float scratch[TILE];
    const float one = *row_view(x, row + i, 1, scratch);
    int64_t before = 0;
    for (int64_t j = 0; j < N && before < k;) {
        const int n = row_tile((j <= i ? i + 1 : N) - j); /* no tile is on both sides of i; i itself is on neither */
        const float *v = row_view(x, row + j, n, scratch);
        before += count_before(v, j + n == i + 1 ? n - 1 : n, one, j <= i);
        j += n;
    }
    return before < k;
}

static void topk_run(const struct launch *l)
{
    const int64_t rows = operand_rows(&l->in[0]), N = operand_last(&l->in[0]), k = l->attr->topk.k;
#pragma omp parallel for num_threads(l->threads) schedule(static) if (rows > 1)
    for (int64_t r = 0; r < rows; r++) {
        int32_t *index = (int32_t *)l->out[0].data + r * k;
        for (int64_t i = 0; i < N; i++)
            if (is_kept(&l->in[0], r * N, N, i, k)) *index++ = (int32_t)i;
    }
}

REF_KERNEL(TOPK, topk);
CPU_KERNEL(TOPK, topk);

/*
 * fold.c: FOLD: sums over shares, and SQUARES and TOTAL: the norm of what shares and ranks
 * (collective.c) leave.
 *
 * One tree adds leaves 0..n-1, whoever holds them:
 *
 *     for w = 1, 2, 4 .. < n:   for k = 0, 2w, 4w ..:   x[k] += x[k + w]
 *
 *     0   1   2   3   4          A rank's consecutive leaves are a subtree if their number is a power of two, so
 *      \ /     \ /   |           2 ranks of 2 shares give the bits of 4 ranks and of 4 shares. Each sum of two is
 *        \     /     |           rounded to the dtype: also in bf16 the grouping changes no bit.
 *           \        /
 *
 * FOLD meets the leaves one after the other. Before leaf i, partial[l] is the sum of 2^l leaves for
 * every bit l of i. The leaf takes the partials of i's trailing ones, which are complete with it,
 * or after the last leaf all of them.
 */
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/update/fold.h"
#include "cpu/reference/ref.h"
#include "cpu/rows.h"
#include "run/ranks.h"

/* --- two terms -------------------------------------------------------------------------------- */

void fold_add(void *to, const void *a, const void *b, enum dtype t, int64_t n, int threads)
{
    if (t == DT_F64) {
        for (int64_t i = 0; i < n; i++) ((double *)to)[i] = ((const double *)a)[i] + ((const double *)b)[i];
        return;
    }
    struct operand r = {.data = to, .dtype = t}, x = {.data = (void *)(uintptr_t)a, .dtype = t},
                   y = {.data = (void *)(uintptr_t)b, .dtype = t};
    const int64_t each = 64 * TILE, blocks = ceil_div(n, each);
#pragma omp parallel for num_threads(threads) schedule(static) if (blocks > 1)
    for (int64_t k = 0; k < blocks; k++) row_sum(&r, &x, &y, k * each, min_i64(each, n - k * each));
}

/* --- FOLD ------------------------------------------------------------------------------------- */

static bool fold_match(const struct query *q)
{
    return tensor_is_fast(q->in[0]) && tensor_is(q->in[1], q->in[0]->dtype);
}

static void fold_run(const struct launch *l)
{
    const uint32_t i = l->iteration;
    const bool last = (int)i + 1 == l->attr->fold.shares;
    const enum dtype t = l->out[0].dtype;
    const int64_t n = operand_elements(&l->out[0]);
    const size_t bytes = (size_t)n * dtype_size(t);
    char *x = l->out[0].data, *partials = l->out[1].data;
    int level = 0;
    CHECK(l->in[0].data == x && l->in[1].data == partials, "x and the partial sums are updated in place");
    for (; last ? i >> level : i >> level & 1; level++)
        if (i >> level & 1) fold_add(x, partials + (size_t)level * bytes, x, t, n, l->threads);
    if (!last) memcpy(partials + (size_t)level * bytes, x, bytes);
}

/* The same in double, with any strides of x. */
static void ref_fold(const struct launch *l)
{
    const uint32_t i = l->iteration;
    const bool last = (int)i + 1 == l->attr->fold.shares;
    const int64_t n = operand_elements(&l->out[0]);
    int level = 0;
    for (; last ? i >> level : i >> level & 1; level++)
        for (int64_t k = 0; k < n && i >> level & 1; k++)
            ref_put(&l->out[0], k, ref_get(&l->in[1], level * n + k) + ref_get(&l->out[0], k));
    for (int64_t k = 0; k < n && !last; k++) ref_put(&l->out[1], level * n + k, ref_get(&l->out[0], k));
}

CPU_KERNEL(FOLD, fold);
REF_KERNEL(FOLD, fold);

/* --- the norm --------------------------------------------------------------------------------- */

static bool squares_match(const struct query *q) { return tensor_is_fast(q->in[0]) && tensor_is(q->in[1], DT_F64); }

/* The place of x in the whole gradient, and its elements without the padding of a shard. */
static int64_t squares_first(const struct launch *l) { return launch_first(l, l->attr->squares.part); }
static int64_t squares_elements(const struct launch *l)
{
    const int64_t n = operand_elements(&l->in[0]);
    return l->attr->squares.part ? max_i64(0, min_i64(n, l->attr->squares.n - squares_first(l))) : n;
}

/* Eight sums over the elements with the same index modulo 8, then their tree: the order depends on
 * the cell alone. */
static double squares_of(const struct operand *x, int64_t from, int64_t to)
{
    double sum[8] = {0};
    float scratch[TILE];
    for (int64_t at = from; at < to; at += TILE) {
        const int n = row_tile(to - at);
        const float *v = row_view(x, at, n, scratch);
        int i = 0;
        for (; i + 8 <= n; i += 8)
            for (int k = 0; k < 8; k++) sum[k] += (double)v[i + k] * (double)v[i + k];
        for (; i < n; i++) sum[i % 8] += (double)v[i] * (double)v[i];
    }
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

static void squares_run(const struct launch *l)
{
    const int64_t cell = l->attr->squares.cell, first = squares_first(l), n = squares_elements(l),
                  cells = ceil_div(n, cell);
    double *to = (double *)l->out[0].data + l->attr->squares.at + first / cell;
    CHECK(l->in[1].data == l->out[0].data, "the cells are updated in place");
#pragma omp parallel for num_threads(l->threads) schedule(static) if (n > 32768)
    for (int64_t c = 0; c < cells; c++) to[c] = squares_of(&l->in[0], c * cell, min_i64(n, (c + 1) * cell));
}

static void ref_squares(const struct launch *l)
{
    const int64_t cell = l->attr->squares.cell, first = squares_first(l), n = squares_elements(l);
    for (int64_t c = 0; c < ceil_div(n, cell); c++) {
        double sum = 0;
        for (int64_t i = c * cell; i < min_i64(n, (c + 1) * cell); i++)
            sum += ref_get(&l->in[0], i) * ref_get(&l->in[0], i);
        ref_put(&l->out[0], l->attr->squares.at + first / cell + c, sum);
    }
}

CPU_KERNEL(SQUARES, squares);
REF_KERNEL(SQUARES, squares);

enum { TOTAL_BLOCK = 1024 };

static bool total_match(const struct query *q) { return tensor_is(q->in[0], DT_F64); }
static uint64_t total_workspace(const struct query *q)
{
    return (uint64_t)ceil_div(tensor_elements(q->in[0]), TOTAL_BLOCK) * sizeof(double);
}

static void total_run(const struct launch *l)
{
    const int64_t n = operand_elements(&l->in[0]), blocks = ceil_div(n, TOTAL_BLOCK);
    const double *x = l->in[0].data;
    double *sum = l->work;
    for (int64_t b = 0; b < blocks; b++) {
        sum[b] = 0;
        for (int64_t i = b * TOTAL_BLOCK; i < min_i64(n, (b + 1) * TOTAL_BLOCK); i++) sum[b] += x[i];
    }
    for (int64_t w = 1; w < blocks; w *= 2)
        for (int64_t k = 0; k + w < blocks; k += 2 * w) sum[k] += sum[k + w];
    *(double *)l->out[0].data = blocks ? sum[0] : 0;
}

static uint64_t ref_total_workspace(const struct query *q) { return total_workspace(q); }
/* f64 is the reference's own precision: one order of the sum. */
static void ref_total(const struct launch *l) { total_run(l); }

CPU_KERNEL_WORK(TOTAL, total);
REF_KERNEL_WORK(TOTAL, total);

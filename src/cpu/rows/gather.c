/*
 * gather.c: GATHER, rows by index, and SCATTER_ADD, sums of rows by index.
 *
 * Indices repeat, so the terms of each sum must be found before threads can share the sums: the
 * indices of each image are sorted by counting into
 *
 *     first [N+1]   where the list of row n begins
 *     order [M]     the rows of y, listed by the index they have, in order
 *
 * Each row of the result is then computed by one thread, in f32, its terms in order. An index
 * outside 0..N-1 reads zeros and adds nothing.
 */
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/rows.h"

/* --- gather ------------------------------------------------------------------------ */

static bool gather_match(const struct query *q)
{
    return tensor_is_dense(q->in[0]) && tensor_is(q->in[1], DT_I32) && tensor_is(q->out[0], q->in[0]->dtype);
}

static void gather_run(const struct launch *l)
{
    const int64_t N = l->in[0].dim[1], M = l->out[0].dim[1], rows = l->out[0].dim[0] * M;
    const size_t bytes = (size_t)l->in[0].dim[2] * dtype_size(l->in[0].dtype);
    const int32_t *index = l->in[1].data; // [B,M]
    const char *from = l->in[0].data;     // [B,N,C]
    char *to = l->out[0].data;            // [B,M,C]
#pragma omp parallel for num_threads(l->threads) schedule(static) if (rows * (int64_t)bytes > 65536)
    for (int64_t r = 0; r < rows; r++) {
        const int64_t n = index[r];
        if (n < 0 || n >= N) memset(to + (size_t)r * bytes, 0, bytes);
        else memcpy(to + (size_t)r * bytes, from + (size_t)(r / M * N + n) * bytes, bytes);
    }
}

/* --- scatter ------------------------------------------------------------------------ */

static bool scatter_add_match(const struct query *q)
{
    const struct tensor *acc = query_in(q, 2);
    return tensor_is_fast(q->in[0]) && tensor_is(q->in[1], DT_I32) && tensor_is_fast(q->out[0]) &&
           (!acc || tensor_is(acc, q->out[0]->dtype));
}

/* Per image: first [N+1], order [M]. */
static int64_t lists_length(int64_t N, int64_t M) { return N + 1 + M; }

static uint64_t scatter_add_workspace(const struct query *q)
{
    const struct tensor *x = q->out[0];
    return (uint64_t)(x->dim[0] * lists_length(x->dim[1], q->in[1]->dim[1])) * sizeof(int32_t);
}

/* Sorts the indices of one image; first[n] .. first[n+1] is then the list of row n. */
static void sort_by_row(int32_t *first, int32_t *order, const int32_t *index, int64_t N, int64_t M)
{
    memset(first, 0, (size_t)(N + 1) * sizeof *first);
    for (int64_t m = 0; m < M; m++)
        if (index[m] >= 0 && index[m] < N) first[index[m]]++;
    int32_t end = 0;
    for (int64_t n = 0; n <= N; n++) first[n] = end += n < N ? first[n] : 0;
    /* Iterates backwards, so each list fills from its end: afterwards first[n] is its beginning. */
    for (int64_t m = M; m-- > 0;)
        if (index[m] >= 0 && index[m] < N) order[--first[index[m]]] = (int32_t)m;
}

/* Row n of an image: the sum of the rows of y in its list, added to acc. */
static void sum_row(const struct launch *l, int64_t b, int64_t n, const int32_t *first, const int32_t *order)
{
    const struct operand *y = &l->in[0], *x = &l->out[0];
    const int64_t C = y->dim[2], row = (b * x->dim[1] + n) * C;
    for (int64_t c = 0; c < C; c += TILE) {
        float sum[TILE] = {0}, scratch[TILE];
        const int width = row_tile(C - c);
        if (launch_has(l, 2)) memcpy(sum, row_view(x, row + c, width, scratch), (size_t)width * sizeof *sum);
        for (int32_t k = first[n]; k < first[n + 1]; k++) {
            const float *v = row_view(y, (b * y->dim[1] + order[k]) * C + c, width, scratch);
#pragma omp simd
            for (int i = 0; i < width; i++) sum[i] += v[i];
        }
        row_store(x, row + c, width, sum);
    }
}

static void scatter_add_run(const struct launch *l)
{
    const int64_t B = l->out[0].dim[0], N = l->out[0].dim[1], M = l->in[1].dim[1], C = l->out[0].dim[2];
    const int64_t each = lists_length(N, M);
    int32_t *lists = l->work; // [B, each]
    CHECK(!launch_has(l, 2) || l->in[2].data == l->out[0].data, "the accumulator is updated in place");
#pragma omp parallel for num_threads(l->threads) schedule(static) if (B * M > 8192)
    for (int64_t b = 0; b < B; b++)
        sort_by_row(lists + b * each, lists + b * each + N + 1, (const int32_t *)l->in[1].data + b * M, N, M);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (B * (M + N) * C > 8192)
    for (int64_t r = 0; r < B * N; r++) {
        const int32_t *first = lists + r / N * each;
        sum_row(l, r / N, r % N, first, first + N + 1);
    }
}

CPU_KERNEL(GATHER, gather);
CPU_KERNEL_WORK(SCATTER_ADD, scatter_add);

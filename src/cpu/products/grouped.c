/*
 * grouped.c: products of rows with the weight of their expert, the reference and the fast kernels.
 *
 *     rows       0 ........ offsets[1] .... offsets[2] ......... M
 *     expert     |    0    |       1       |         2          |
 *     y        = |  x w0^T |     x w1^T    |       x w2^T       |
 *
 * One product after the other, each by all threads. Where an expert has few rows its product is
 * computed as those of many are (gemm.rows), so that a row's bits do not depend on the others.
 */
#include "cpu/cpu.h"
#include "cpu/products/gemm.h"
#include "cpu/reference/ref.h"

/* Returns the tensor's element (e,i,j), where its stride in j or in i is 1. */
static struct matrix matrix_at(const struct operand *w, int64_t e)
{
    return (struct matrix){(char *)w->data + e * w->stride[0] * dtype_size(w->dtype), w->dtype, w->stride[1],
                           w->stride[2]};
}

static struct matrix transposed(struct matrix m)
{
    const int64_t row = m.row;
    m.row = m.column;
    m.column = row;
    return m;
}

/* Returns the rows of a dense operand from `first` on. */
static struct matrix rows_from(const struct operand *x, int64_t first)
{
    const int64_t C = operand_last(x);
    return (struct matrix){(char *)x->data + first * C * dtype_size(x->dtype), x->dtype, C, 1};
}

/* --- GROUPED_LINEAR --------------------------------------------------------------------------- */

static void ref_grouped_linear(const struct launch *l)
{
    const struct operand *x = &l->in[0], *w = &l->in[1];
    const int64_t N = w->dim[1], K = w->dim[2];
    const int32_t *offsets = l->in[2].data;
    for (int64_t e = 0; e < w->dim[0]; e++)
        for (int64_t m = offsets[e]; m < offsets[e + 1]; m++)
            for (int64_t n = 0; n < N; n++)
                ref_put(&l->out[0], m * N + n, ref_dot(x, m * K, w, (e * N + n) * K, K));
}

/* Reports whether each expert's matrix is dense, itself or transposed. */
static bool is_stack(const struct tensor *w)
{
    const int64_t N = w->dim[1], K = w->dim[2];
    const bool plain = w->stride[2] == 1 && w->stride[1] == K, turned = w->stride[1] == 1 && w->stride[2] == N;
    return (plain || turned) && w->stride[0] == N * K &&
           (w->dtype == DT_F32 || w->dtype == DT_BF16 || w->dtype == DT_F16);
}

static bool grouped_linear_match(const struct query *q)
{
    return tensor_is_fast(q->in[0]) && is_stack(q->in[1]) && tensor_is(q->in[2], DT_I32) && tensor_is_fast(q->out[0]);
}

static uint64_t grouped_linear_workspace(const struct query *q)
{
    enum { FEW = 64 }; /* at least the rows up to which a product by itself needs another workspace */
    const struct tensor *x = q->in[0], *w = q->in[1];
    const int64_t M = x->dim[0];
    const int threads = q->profile->threads;
    uint64_t bytes = gemm_workspace(M, w->dim[1], w->dim[2], x->dtype, threads);
    for (int64_t few = 1; few <= min_i64(M, FEW); few++) {
        const uint64_t needed = gemm_workspace(few, w->dim[1], w->dim[2], x->dtype, threads);
        if (needed > bytes) bytes = needed;
    }
    return bytes;
}

static void grouped_linear_run(const struct launch *l)
{
    const struct operand *x = &l->in[0], *w = &l->in[1];
    const int32_t *offsets = l->in[2].data;
    for (int64_t e = 0; e < w->dim[0]; e++) {
        const struct gemm g = {.M = offsets[e + 1] - offsets[e], .N = w->dim[1], .K = w->dim[2], .rows = x->dim[0],
                               .a = rows_from(x, offsets[e]), .b = transposed(matrix_at(w, e)),
                               .c = rows_from(&l->out[0], offsets[e])};
        gemm_run(&g, l->work, l->work_bytes, l->threads);
    }
}

/* --- GROUPED_DW ------------------------------------------------------------------------------- */

static void ref_grouped_dw(const struct launch *l)
{
    const struct operand *dy = &l->in[0], *x = &l->in[1];
    const int64_t N = operand_last(dy), K = operand_last(x);
    const int32_t *offsets = l->in[2].data;
    for (int64_t i = 0; i < operand_elements(&l->out[0]); i++) {
        const int64_t e = i / (N * K), n = i / K % N, k = i % K;
        double sum = ref_get_acc(l, 3, i);
        for (int64_t m = offsets[e]; m < offsets[e + 1]; m++) sum += ref_get(dy, m * N + n) * ref_get(x, m * K + k);
        ref_put(&l->out[0], i, sum);
    }
}

static bool grouped_dw_match(const struct query *q)
{
    const struct tensor *acc = query_in(q, 3);
    return tensor_is_fast(q->in[0]) && tensor_is_fast(q->in[1]) && tensor_is(q->in[2], DT_I32) &&
           tensor_is_fast(q->out[0]) && (!acc || (tensor_is_fast(acc) && acc->dtype == q->out[0]->dtype));
}

/* Returns the workspace of the largest product: the length of a block of rows does not grow with
 * their number beyond BLOCK of them. */
static uint64_t grouped_dw_workspace(const struct query *q)
{
    enum { BLOCK = 512 };
    const int64_t M = q->in[0]->dim[0], N = q->in[0]->dim[1], K = q->in[1]->dim[1];
    const int64_t lengths[] = {M, min_i64(M, BLOCK), min_i64(M, BLOCK / 2)};
    uint64_t bytes = 0;
    for (size_t i = 0; i < COUNT(lengths); i++) {
        const uint64_t needed = gemm_workspace(N, K, lengths[i], q->out[0]->dtype, q->profile->threads);
        if (needed > bytes) bytes = needed;
    }
    return bytes;
}

static void grouped_dw_run(const struct launch *l)
{
    const struct operand *dy = &l->in[0], *x = &l->in[1];
    const int32_t *offsets = l->in[2].data;
    const int64_t N = operand_last(dy), K = operand_last(x);
    CHECK(!launch_has(l, 3) || l->in[3].data == l->out[0].data, "the result is not in the accumulator's bytes");
    for (int64_t e = 0; e < l->out[0].dim[0]; e++) {
        const struct gemm g = {.M = N, .N = K, .K = offsets[e + 1] - offsets[e],
                               .a = transposed(rows_from(dy, offsets[e])), .b = rows_from(x, offsets[e]),
                               .c = matrix_at(&l->out[0], e), .add = launch_has(l, 3)};
        gemm_run(&g, l->work, l->work_bytes, l->threads);
    }
}

REF_KERNEL(GROUPED_LINEAR, grouped_linear);
REF_KERNEL(GROUPED_DW, grouped_dw);
CPU_KERNEL_WORK(GROUPED_LINEAR, grouped_linear);
CPU_KERNEL_WORK(GROUPED_DW, grouped_dw);

/*
 * plan_products.c: matrix products, by cuBLASLt.
 *
 * The only requirement is that operands have rows of one stride: gemm.c decides which strides and
 * dtypes the library supports and computes the others with its own kernel.
 */
#include "cuda/plan.h"
#include "cuda/products/row_stride.h"

static bool is_float(const struct tensor *t) { return t->dtype == DT_F32 || t->dtype == DT_BF16 || t->dtype == DT_F16; }

static bool is_matrix(const struct tensor *t)
{
    int64_t row;
    return is_float(t) && rows_have_one_stride(t->rank, t->dim, t->stride, &row);
}

static bool is_bias(const struct tensor *t) { return !t || (is_float(t) && tensor_is_dense(t)); }

static bool match_linear(const struct query *q)
{
    const struct tensor *add = given(q, 3);
    return is_matrix(q->in[0]) && is_matrix(q->in[1]) && is_storable(q->out[0]) && is_bias(given(q, 2)) && (!add || is_dense(add, q->out[0]->dtype));
}

static bool match_linear_act(const struct query *q)
{
    return match_linear(q) && (!q->out[1] || is_dense(q->out[1], q->out[0]->dtype));
}

static bool match_matmul(const struct query *q)
{
    const struct tensor *acc = given(q, 2);
    return is_matrix(q->in[0]) && is_matrix(q->in[1]) && is_storable(q->out[0]) && (!acc || is_dense(acc, q->out[0]->dtype));
}

/* The operands of a batch may have any strides; the accumulator must be the result. */
static bool match_bmm(const struct query *q)
{
    const struct tensor *acc = given(q, 2);
    return is_float(q->in[0]) && is_float(q->in[1]) && is_float(q->out[0]) && (!acc || acc->dtype == q->out[0]->dtype);
}

const struct kernel cuda_plan_products[] = {
    {OP_LINEAR, "cublaslt_linear", match_linear, workspace_library, NULL},
    {OP_LINEAR_ACT, "cublaslt_linear_act", match_linear_act, workspace_library, NULL},
    {OP_MATMUL, "cublaslt_matmul", match_matmul, workspace_library, NULL},
    {OP_BMM, "cublaslt_bmm", match_bmm, workspace_library, NULL},
    {.op = OP_NONE},
};

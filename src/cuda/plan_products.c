/*
 * plan_products.c: matrix products, by cuBLASLt.
 */
#include "cuda/plan.h"

/* The library reads a bias in 16-byte pieces; storages lie at multiples of 256. */
static bool is_bias(const struct tensor *t, enum dtype dtype)
{
    return is_dense(t, dtype) && t->offset % 16 == 0 && (!t->loop || t->advance % 16 == 0);
}

/* Inputs and result share one storage dtype; sums are f32. */
static bool match_linear(const struct query *q)
{
    const struct tensor *x = q->in[0], *bias = given(q, 2);
    return is_storable(x) && is_dense(q->in[1], x->dtype) && is_dense(q->out[0], x->dtype) &&
           (!bias || is_bias(bias, x->dtype));
}

const struct kernel cuda_plan_products[] = {
    {OP_LINEAR, "cublaslt_linear", match_linear, workspace_library, NULL},
    {.op = OP_NONE},
};

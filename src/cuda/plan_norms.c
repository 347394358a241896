/*
 * plan_norms.c: normalisations.
 */
#include "cuda/plan.h"

static bool match_rmsnorm(const struct query *q)
{
    const struct tensor *x = q->in[0];
    return is_storable(x) && is_dense(q->in[1], x->dtype) && is_dense(q->out[0], x->dtype) &&
           is_dense(q->out[1], DT_F32);
}

const struct kernel cuda_plan_norms[] = {
    {OP_RMSNORM, "cuda_rmsnorm", match_rmsnorm, NULL, NULL},
    {.op = OP_NONE},
};

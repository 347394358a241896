/*
 * plan_update.c: the optimizer.
 */
#include "cuda/plan.h"

static bool match_adamw(const struct query *q)
{
    for (int i = 0; i < 4; i++)
        if (!is_dense(q->in[i], DT_F32)) return false;
    const struct tensor *clip = given(q, 5), *w = given(q, 6);
    return (!clip || is_dense(clip, DT_F32)) && (!w || is_storable(w));
}

const struct kernel cuda_plan_update[] = {
    {OP_ADAMW, "cuda_adamw", match_adamw, NULL, NULL},
    {.op = OP_NONE},
};

/*
 * plan_elementwise.c: every element from the elements at its own place, fills and copies.
 */
#include "cuda/plan.h"

/* Two inputs and the result alike, none repeated: SILU_GATE, ADD, ACCUMULATE. */
static bool match_pair(const struct query *q)
{
    const struct tensor *a = q->in[0];
    int64_t n = tensor_elements(q->out[0]);
    return is_storable(a) && is_dense(q->in[1], a->dtype) && is_dense(q->out[0], a->dtype) && tensor_elements(a) == n &&
           tensor_elements(q->in[1]) == n;
}

static bool match_fill(const struct query *q) { return tensor_is_dense(q->out[0]); }

static bool match_copy(const struct query *q)
{
    return tensor_is_dense(q->in[0]) && is_dense(q->out[0], q->in[0]->dtype);
}

const struct kernel cuda_plan_elementwise[] = {
    {OP_SILU_GATE, "cuda_silu_gate", match_pair, NULL, NULL},
    {OP_ADD, "cuda_add", match_pair, NULL, NULL},
    {OP_ACCUMULATE, "cuda_add", match_pair, NULL, NULL},
    {OP_FILL, "cuda_fill", match_fill, NULL, NULL},
    {OP_COPY, "cuda_copy", match_copy, NULL, NULL},
    {.op = OP_NONE},
};

/*
 * plan_shuffle.c: ops that move elements, and ops on maps.
 */
#include "cuda/plan.h"

/* Any dtype and strides. */
static bool match_copy(const struct query *q) { return q->in[0]->dtype == q->out[0]->dtype; }

static bool match_concat(const struct query *q)
{
    for (int i = 0; i < q->nin; i++)
        if (q->in[i]->dtype != q->out[0]->dtype) return false;
    return true;
}

/* PAD writes zeros first, then x between them. */
static bool match_pad(const struct query *q) { return is_dense(q->out[0], q->in[0]->dtype); }

/* Dense operands of one dtype: REPEAT, windows. */
static bool match_dense(const struct query *q) { return tensor_is_dense(q->in[0]) && is_dense(q->out[0], q->in[0]->dtype); }
static bool match_gather(const struct query *q) { return match_dense(q) && is_dense(q->in[1], DT_I32); }

static bool match_scatter_add(const struct query *q)
{
    const struct tensor *acc = given(q, 2);
    return is_storable(q->in[0]) && is_dense(q->in[1], DT_I32) && is_storable(q->out[0]) && (!acc || is_dense(acc, q->out[0]->dtype));
}

static bool match_shift_labels(const struct query *q) { return is_dense(q->in[0], DT_I32) && is_dense(q->out[0], DT_I32); }
static bool match_image(const struct query *q) { return is_dense(q->in[0], DT_U8) && is_dense(q->in[1], DT_I32) && is_storable(q->out[0]); }
static bool match_fourier(const struct query *q) { return tensor_is_dense(q->in[0]) && tensor_is_dense(q->in[1]) && tensor_is_dense(q->out[0]); }
static bool match_map(const struct query *q) { return is_storable(q->in[0]) && is_dense(q->out[0], q->in[0]->dtype); }

const struct kernel cuda_plan_shuffle[] = {
#include "cuda/maps/shuffle.def"
    {.op = OP_NONE},
};

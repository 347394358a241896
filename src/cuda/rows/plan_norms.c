/*
 * plan_norms.c: normalisations. Activations and their gradients have one dtype; vectors of weights
 * and statistics may have any.
 */
#include "cuda/rows/norm_blocks.h"
#include "cuda/plan.h"

enum { GROUPS_MAX = 65535 }; /* the limit of a CUDA grid's y dimension */

/* All operands are storable; the first `main` inputs and output 0 have one dtype; the other outputs
 * are f32. */
static bool fits(const struct query *q, int main)
{
    for (int i = 0; i < q->nin; i++)
        if (!is_storable(q->in[i])) return false;
    for (int i = 0; i < main; i++)
        if (q->in[i]->dtype != q->in[0]->dtype) return false;
    for (int o = 1; o < q->nout; o++)
        if (q->out[o] && !is_dense(q->out[o], DT_F32)) return false;
    return is_dense(q->out[0], q->in[0]->dtype);
}

static bool match_forward(const struct query *q) { return fits(q, 1); }
static bool match_backward(const struct query *q) { return fits(q, 2); }

static bool match_norm_bwd(const struct query *q, int statistics)
{
    for (int i = 3; i < 3 + statistics; i++)
        if (!is_dense(q->in[i], DT_F32)) return false;
    return fits(q, 2) && (q->nin <= 3 + statistics || !q->in[3 + statistics] || is_dense(q->in[3 + statistics], q->in[0]->dtype));
}
static bool match_rmsnorm_bwd(const struct query *q) { return match_norm_bwd(q, 1); }
static bool match_layernorm_bwd(const struct query *q) { return match_norm_bwd(q, 2); }

static bool match_add_norm(const struct query *q)
{
    for (int i = 0; i < q->nin; i++)
        if (!is_storable(q->in[i])) return false;
    for (int o = 1; o < q->nout - 1; o++)
        if (!is_dense(q->out[o], DT_F32)) return false;
    const enum dtype t = q->in[0]->dtype;
    return q->in[1]->dtype == t && is_dense(q->out[0], t) && is_dense(q->out[q->nout - 1], t);
}

static uint64_t work_rmsnorm_bwd(const struct query *q)
{
    const struct tensor *x = q->in[1];
    return (uint64_t)norm_partial(tensor_rows(x), tensor_last(x), (int)dtype_size(x->dtype), 1) * sizeof(float);
}
static uint64_t work_layernorm_bwd(const struct query *q) { return 2 * work_rmsnorm_bwd(q); }

/* --- maps ------------------------------------------------------------------------------- */

static bool match_batchnorm(const struct query *q) { return fits(q, 1) && q->out[1]->dim[0] <= GROUPS_MAX; }
static bool match_batchnorm_bwd(const struct query *q) { return match_norm_bwd(q, 2) && q->in[3]->dim[0] <= GROUPS_MAX; }

static bool match_batchnorm_update(const struct query *q)
{
    for (int i = 0; i < 4; i++)
        if (!is_dense(q->in[i], DT_F32)) return false;
    return true;
}

static uint64_t work_maps(const struct tensor *x, int64_t G)
{
    return (uint64_t)batch_partial(G, tensor_rows(x) / G, tensor_last(x)) * sizeof(float);
}
static uint64_t work_batchnorm(const struct query *q) { return work_maps(q->in[0], q->out[1]->dim[0]); }
static uint64_t work_batchnorm_bwd(const struct query *q)
{
    const int64_t G = q->in[3]->dim[0];
    return work_maps(q->in[1], G) + (uint64_t)(G * 2 * tensor_last(q->in[1])) * sizeof(float);
}
static uint64_t work_batchnorm_frozen_bwd(const struct query *q) { return work_maps(q->in[1], 1); }

const struct kernel cuda_plan_norms[] = {
    {OP_RMSNORM, "cuda_rmsnorm", match_forward, NULL, NULL},
    {OP_RMSNORM_BWD, "cuda_rmsnorm_bwd", match_rmsnorm_bwd, work_rmsnorm_bwd, NULL},
    {OP_LAYERNORM, "cuda_layernorm", match_forward, NULL, NULL},
    {OP_LAYERNORM_BWD, "cuda_layernorm_bwd", match_layernorm_bwd, work_layernorm_bwd, NULL},
    {OP_ADD_RMSNORM, "cuda_add_rmsnorm", match_add_norm, NULL, NULL},
    {OP_ADD_LAYERNORM, "cuda_add_layernorm", match_add_norm, NULL, NULL},
    {OP_L2NORM, "cuda_l2norm", match_forward, NULL, NULL},
    {OP_L2NORM_BWD, "cuda_l2norm_bwd", match_backward, NULL, NULL},
    {OP_SOFTMAX, "cuda_softmax", match_forward, NULL, NULL},
    {OP_SOFTMAX_BWD, "cuda_softmax_bwd", match_backward, NULL, NULL},
    {OP_BATCHNORM, "cuda_batchnorm", match_batchnorm, work_batchnorm, NULL},
    {OP_BATCHNORM_BWD, "cuda_batchnorm_bwd", match_batchnorm_bwd, work_batchnorm_bwd, NULL},
    {OP_BATCHNORM_FROZEN, "cuda_batchnorm_frozen", match_forward, NULL, NULL},
    {OP_BATCHNORM_FROZEN_BWD, "cuda_batchnorm_frozen_bwd", match_backward, work_batchnorm_frozen_bwd, NULL},
    {OP_BATCHNORM_UPDATE, "cuda_batchnorm_update", match_batchnorm_update, NULL, NULL},
    {.op = OP_NONE},
};

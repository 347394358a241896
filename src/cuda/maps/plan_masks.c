/*
 * plan_masks.c: the mask loss, the structure loss, and simulated prompts.
 */
#include "cuda/plan_kernels.h"
#include "cuda/maps/mask_blocks.h"
#include "cuda/products/thin.h"
#include "graph/ops.h"

enum { IN_LOGITS, IN_IOU, IN_BITS, IN_VALID, IN_STEP, IN_STATS, IN_DLOSS };
enum { GRID_Y = 65535 }; /* maximum blocks in the y dimension of a CUDA grid */

static bool masks_fit(const struct query *q)
{
    const struct tensor *x = q->in[IN_LOGITS];
    return is_storable(x) && x->dim[0] * x->dim[1] <= GRID_Y && x->dim[3] <= INT32_MAX / MASK_ROWS &&
           is_storable(q->in[IN_IOU]) && is_dense(q->in[IN_BITS], DT_U8) && is_dense(q->in[IN_VALID], DT_I32);
}

static bool match_mask_loss(const struct query *q)
{
    return masks_fit(q) && is_dense(q->out[0], DT_F32) && is_dense(q->out[1], DT_F32);
}

static uint64_t work_mask_loss(const struct query *q)
{
    const int64_t *n = q->in[IN_LOGITS]->dim;
    return (uint64_t)(n[0] * n[1] * mask_blocks(n[2]) * MASK_SUMS) * sizeof(double);
}

static bool match_mask_loss_bwd(const struct query *q)
{
    return masks_fit(q) && is_dense(q->in[IN_STATS], DT_F32) && is_dense(q->in[IN_DLOSS], DT_F32) &&
           is_dense(q->out[0], q->in[IN_LOGITS]->dtype) && is_storable(q->out[1]);
}

static bool structure_fits(const struct query *q)
{
    const struct tensor *x = q->in[0];
    return is_storable(x) && x->dim[0] <= GRID_Y && x->dim[3] <= INT32_MAX && is_dense(q->in[1], DT_U8) &&
           is_dense(q->in[2], DT_I32);
}

static bool match_structure_loss(const struct query *q)
{
    return structure_fits(q) && is_dense(q->out[0], DT_F32) && is_dense(q->out[1], DT_F32) &&
           is_dense(q->out[2], DT_F32);
}

static uint64_t work_structure_loss(const struct query *q)
{
    const int64_t *n = q->in[0]->dim;
    return (uint64_t)(n[0] * structure_blocks(n[2], n[3]) * STRUCTURE_SUMS) * sizeof(double);
}

static bool match_structure_loss_bwd(const struct query *q)
{
    return structure_fits(q) && is_dense(q->in[4], DT_F32) && is_dense(q->in[5], DT_F32) &&
           is_dense(q->in[6], DT_F32) && is_dense(q->out[0], q->in[0]->dtype);
}

static bool match_score_loss(const struct query *q)
{
    const struct tensor *x = q->in[0];
    return is_storable(x) && x->dim[0] * x->dim[1] <= INT32_MAX && is_storable(q->in[1]) && is_storable(q->in[2]) &&
           is_dense(q->in[3], DT_U8) && is_dense(q->in[4], DT_I32) && is_dense(q->out[0], DT_F32) &&
           is_dense(q->out[1], DT_F32);
}

static uint64_t work_score_loss(const struct query *q)
{
    const int64_t *n = q->in[0]->dim;
    return (uint64_t)(n[0] * n[1] * SCORE_COUNTS) * sizeof(double);
}

static bool match_stability(const struct query *q)
{
    const struct tensor *x = q->in[0];
    return is_storable(x) && x->dim[0] <= INT32_MAX && is_storable(q->in[1]) && is_dense(q->out[0], x->dtype);
}

static bool match_mask_pick(const struct query *q)
{
    const struct tensor *x = q->in[0];
    return is_storable(x) && x->dim[0] <= GRID_Y && is_storable(q->in[1]) && is_dense(q->out[0], x->dtype);
}

static bool match_prompt_next(const struct query *q)
{
    return is_dense(q->in[0], DT_F32) && is_dense(q->in[1], DT_I32) && is_dense(q->in[2], DT_I32) &&
           is_storable(q->in[3]) && q->in[3]->dim[0] <= INT32_MAX && is_dense(q->in[4], DT_U8) &&
           is_dense(q->in[5], DT_I32) && is_dense(q->in[6], DT_I32);
}

static int access_mask_loss(const struct query *q) { return access_rows(q, IN(IN_LOGITS), q->in[IN_LOGITS]); }
static int access_mask_loss_bwd(const struct query *q)
{
    return access_rows(q, IN(IN_LOGITS) | OUT(0), q->in[IN_LOGITS]);
}
static int access_mask_pick(const struct query *q)
{
    const struct tensor *x = q->in[0];
    return access_wide(q, IN(0) | OUT(0), x->dim[2] * x->dim[3] * (int64_t)dtype_size(x->dtype),
                       2 /* no element is smaller */);
}

const struct kernel cuda_plan_masks[] = {
#include "cuda/maps/masks.def"
    {.op = OP_NONE},
};

/* --- BMM_ACT ---------------------------------------------------------------------------------- */

/* Filters over a map whose activation is computed as the map is read, and its gradients. There are
 * two kernels per op: those of thin.h for few filters over GELU, which read the map once; and plain
 * ones, for any shape and any activation. */

static bool any_match(const struct query *q)
{
    for (int i = 0; i < q->nin; i++)
        if (!is_storable(q->in[i])) return false;
    for (int i = 0; i < q->nout; i++)
        if (!is_storable(q->out[i])) return false;
    const struct tensor *a = q->in[q->nin - 2], *z = q->in[q->nin - 1];
    return filters_countable(filters_of(a->rank, a->dim, z->dim));
}

/* Reports whether thin.h has the depth; others, which no model uses, take the generic kernel. */
static bool is_thin(struct thin t) { return t.mode && t.K == THIN_GELU; }

static struct thin thin_across(const struct query *q)
{
    return thin_of(false, false, q->in[0]->rank, q->in[0]->dim, q->in[2]->dim, q->out[0]->dim);
}

static bool match_thin(const struct query *q)
{
    const struct tensor *a = q->in[0], *z = q->in[1], *y = q->out[0];
    return any_match(q) && q->attr->act.kind == ACT_GELU &&
           is_thin(thin_of(false, true, y->rank, a->dim, z->dim, y->dim)) && is_aligned(z);
}

/* Matches the gradients; dz has z's dtype, and so its alignment. */
static bool match_thin_bwd(const struct query *q)
{
    const struct tensor *dy = q->in[0], *a = q->in[1], *z = q->in[2], *dz = q->out[1];
    return any_match(q) && q->attr->act.kind == ACT_GELU && is_thin(thin_across(q)) && is_aligned(z) &&
           is_aligned(dz) && dz->dtype == z->dtype && is_thin(thin_of(true, false, dz->rank, dy->dim, a->dim, dz->dim));
}

static uint64_t work_thin_bwd(const struct query *q)
{
    const struct thin t = thin_across(q);
    return (uint64_t)(t.batches * t.blocks * t.m * t.K) * sizeof(float);
}

const struct kernel cuda_plan_filters[] = {
#include "cuda/maps/filters.def"
    {.op = OP_NONE},
};

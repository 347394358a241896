/*
 * plan_filters.c: BMM_ACT, filters over a map whose activation is computed as the map is read, and
 * its gradients.
 *
 * There are two kernels per op: those of thin.h for few filters over GELU, which read the map once;
 * and plain ones, for any shape and any activation.
 */
#include "cuda/maps/filters.h"
#include "cuda/plan.h"
#include "cuda/products/thin.h"
#include "graph/ops.h"

static bool any_match(const struct query *q)
{
    for (int i = 0; i < q->nin; i++)
        if (!is_storable(q->in[i])) return false;
    for (int i = 0; i < q->nout; i++)
        if (!is_storable(q->out[i])) return false;
    const struct tensor *a = q->in[q->nin - 2], *z = q->in[q->nin - 1];
    return filters_countable(filters_of(a->rank, a->dim, z->dim));
}

/* Other depths, which no model uses, take the generic kernel. */
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

/* dz has z's dtype, and so its alignment. */
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

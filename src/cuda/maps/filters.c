/*
 * filters.c: the running half of BMM_ACT, filters over an activation (plan_filters.c).
 */
#include "cuda/maps/launch_filters.h"
#include "cuda/products/launch_thin.h"
#include "cuda/device/operands.h"

static struct filters filters_launched(const struct launch *l, int a)
{
    struct filters n = filters_of(l->in[a].rank, l->in[a].dim, l->in[a + 1].dim);
    n.kind = l->attr->act.kind;
    return n;
}

static int launch_any(const struct launch *l, struct error *e)
{
    TRY_CUDA(cuda_filters(typed_of(&l->out[0]), typed_of(&l->in[0]), typed_of(&l->in[1]), filters_launched(l, 0),
                          l->stream));
    return PL_OK;
}

static int launch_any_bwd(const struct launch *l, struct error *e)
{
    TRY_CUDA(cuda_filters_bwd(typed_of(&l->out[0]), typed_of(&l->out[1]), typed_of(&l->in[0]), typed_of(&l->in[1]),
                              typed_of(&l->in[2]), filters_launched(l, 1), l->stream));
    return PL_OK;
}

static int launch_thin(const struct launch *l, struct error *e)
{
    const struct operand *a = &l->in[0], *z = &l->in[1], *y = &l->out[0];
    struct thin t = thin_of(false, true, y->rank, a->dim, z->dim, y->dim);
    t.gelu = true;
    TRY_CUDA(cuda_thin(typed_of(a), typed_of(z), typed_of(y), NULL, NULL, t, THIN_FORM_DOWN, l->stream));
    return PL_OK;
}

/* da is computed first: dz may alias z. */
static int launch_thin_bwd(const struct launch *l, struct error *e)
{
    const struct operand *dy = &l->in[0], *a = &l->in[1], *z = &l->in[2], *da = &l->out[0], *dz = &l->out[1];
    struct thin across = thin_of(false, false, dy->rank, dy->dim, z->dim, da->dim),
                up = thin_of(true, false, dz->rank, dy->dim, a->dim, dz->dim);
    across.gelu = up.gelu = true;
    TRY_CUDA(cuda_thin(typed_of(da), typed_of(z), typed_of(dy), NULL, l->work, across, THIN_FORM_ACROSS, l->stream));
    TRY_CUDA(cuda_thin(typed_of(a), typed_of(dz), typed_of(dy), z->data, NULL, up, THIN_FORM_UP, l->stream));
    return PL_OK;
}

CUDA_KERNEL(cuda_filters_thin, .launch = launch_thin);
CUDA_KERNEL(cuda_filters_thin_bwd, .launch = launch_thin_bwd);
CUDA_KERNEL(cuda_filters, .launch = launch_any);
CUDA_KERNEL(cuda_filters_bwd, .launch = launch_any_bwd);

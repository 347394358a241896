/*
 * masks.c: the running half of the mask loss and of simulated prompts (masks.cu, prompts.cu).
 */
#include "cuda/maps/launch_masks.h"
#include "cuda/device/host.h"
#include "cuda/products/launch_products.h"

static struct mask_task task_of(const struct launch *l)
{
    const struct operand *x = &l->in[0];
    const union attr *a = l->attr;
    return (struct mask_task){
        .logits = x->data, .type = store_of(x->dtype), .iou = typed_of(&l->in[1]), .bits = l->in[2].data,
        .valid = l->in[3].data, .inv_count = l->in[4].data, .N = x->dim[0], .K = x->dim[1], .h = x->dim[2],
        .w = x->dim[3], .row_bytes = l->in[2].dim[2], .focal = a->mask_loss.focal, .dice = a->mask_loss.dice,
        .weight = a->mask_loss.iou, .alpha_on = a->mask_loss.alpha,
        .alpha_off = a->mask_loss.alpha_both ? a->mask_loss.alpha : 1 - a->mask_loss.alpha, .gamma = a->mask_loss.gamma,
        .smooth = a->mask_loss.smooth,
    };
}

static int launch_mask_loss(const struct launch *l, struct error *e)
{
    const struct mask_task t = task_of(l);
    const uint64_t sums = (uint64_t)(t.N * t.K * mask_blocks(t.h) * MASK_SUMS);
    CHECK(l->work_bytes >= sums * sizeof(double), "plan_masks.c and launch_masks.h disagree");
    TRY_CUDA(cuda_mask_loss(l->out[0].data, l->out[1].data, l->work, t, l->access, l->stream));
    return PL_OK;
}

static int launch_mask_loss_bwd(const struct launch *l, struct error *e)
{
    TRY_CUDA(cuda_mask_loss_bwd(l->out[0].data, typed_of(&l->out[1]), l->in[5].data, l->in[6].data, task_of(l),
                                l->access, l->stream));
    return PL_OK;
}

static struct structure_task structure_of(const struct launch *l)
{
    const struct operand *x = &l->in[0];
    const union attr *a = l->attr;
    return (struct structure_task){
        .logits = x->data, .type = store_of(x->dtype), .bits = l->in[1].data, .valid = l->in[2].data,
        .inv_count = l->in[3].data, .N = x->dim[0], .h = x->dim[2], .w = x->dim[3], .row_bytes = l->in[1].dim[2],
        .edge = a->structure_loss.edge, .bce_edge = a->structure_loss.bce_edge, .smooth = a->structure_loss.smooth,
        .size = a->structure_loss.size,
    };
}

static int launch_structure_loss(const struct launch *l, struct error *e)
{
    const struct structure_task t = structure_of(l);
    CHECK(l->work_bytes >= (uint64_t)(t.N * structure_blocks(t.h, t.w) * STRUCTURE_SUMS) * sizeof(double),
          "plan_masks.c and launch_masks.h disagree");
    TRY_CUDA(cuda_structure_loss(l->out[0].data, l->out[1].data, l->out[2].data, l->work, t, l->stream));
    return PL_OK;
}

static int launch_structure_loss_bwd(const struct launch *l, struct error *e)
{
    TRY_CUDA(cuda_structure_loss_bwd(l->out[0].data, l->in[4].data, l->in[5].data, l->in[6].data, structure_of(l),
                                     l->stream));
    return PL_OK;
}

static int launch_mask_pick(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0];
    TRY_CUDA(cuda_mask_pick(l->out[0].data, x->data, typed_of(&l->in[1]), x->dim[0], x->dim[1],
                            x->dim[2] * x->dim[3] * dtype_size(x->dtype), l->access, l->stream));
    return PL_OK;
}

static int launch_prompt_next(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[3];
    const struct prompt_task t = {
        .coords = l->out[0].data, .kinds = l->out[1].data, .round = l->out[2].data, .logits = typed_of(x),
        .bits = l->in[4].data, .valid = l->in[5].data, .keys = l->in[6].data, .step = l->in[7].data, .N = x->dim[0],
        .P = l->in[0].dim[1], .h = x->dim[1], .w = x->dim[2], .row_bytes = l->in[4].dim[2],
        .rounds = l->attr->prompt_next.rounds, .first = l->attr->prompt_next.first,
    };
    TRY_CUDA(cuda_prompt_next(t, l->stream));
    return PL_OK;
}

CUDA_KERNEL(cuda_mask_loss, .launch = launch_mask_loss);
CUDA_KERNEL(cuda_mask_loss_bwd, .launch = launch_mask_loss_bwd);
CUDA_KERNEL(cuda_structure_loss, .launch = launch_structure_loss);
CUDA_KERNEL(cuda_structure_loss_bwd, .launch = launch_structure_loss_bwd);
CUDA_KERNEL(cuda_mask_pick, .launch = launch_mask_pick);
CUDA_KERNEL(cuda_prompt_next, .launch = launch_prompt_next);

/* --- BMM_ACT, filters over an activation (filters.cu) ----------------------------------------- */

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

/* Computes da first: dz may alias z. */
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

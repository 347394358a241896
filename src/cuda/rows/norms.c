/*
 * norms.c: the running half of the normalisations (norms.cu, norm_packs.cu, batchnorm.cu).
 */
#include "cuda/rows/launch_norms.h"
#include "cuda/device/host.h"

static const struct typed_ptr none = {NULL, STORE_F32};

static const void *optional(const struct launch *l, int i) { return i < l->nin ? l->in[i].data : NULL; }

/* --- rows ------------------------------------------------------------------------------ */

/* The pieces of a norm's launch. `at`: the input with the weights, behind which comes the bias. */
struct norm {
    const struct operand *x;
    struct norm_stats stats;
    struct norm_sum sum;
    struct typed_ptr w, b;
    float eps;
};

/* Returns the statistics of RMSNORM: rstd, and what is added to the weights. */
static struct norm_stats rms_stats(const struct launch *l, const struct operand *rstd)
{
    return (struct norm_stats){NULL, rstd->data, l->attr->rmsnorm.unit_offset ? 1.0f : 0.0f};
}

static struct norm rmsnorm_of(const struct launch *l, int at)
{
    return (struct norm){.x = &l->in[0], .stats = rms_stats(l, &l->out[1]), .w = typed_of(&l->in[at]), .b = none,
                         .eps = l->attr->rmsnorm.eps};
}

static struct norm layernorm_of(const struct launch *l, int at)
{
    return (struct norm){.x = &l->in[0], .stats = {l->out[1].data, l->out[2].data, 0}, .w = typed_of(&l->in[at]),
                         .b = typed_of(&l->in[at + 1]), .eps = l->attr->layernorm.eps};
}

static int norm(const struct launch *l, struct norm n, struct error *e)
{
    TRY_CUDA(cuda_norm(l->out[0].data, n.stats, n.x->data, n.w, n.b, store_of(n.x->dtype), operand_rows(n.x),
                       operand_last(n.x), n.eps, l->access, l->stream));
    return PL_OK;
}

static int add_norm(const struct launch *l, struct norm n, int sum, struct error *e)
{
    n.sum = (struct norm_sum){l->out[sum].data, l->in[1].data};
    TRY_CUDA(cuda_add_norm(l->out[0].data, n.stats, n.x->data, n.sum, n.w, n.b, store_of(n.x->dtype), operand_rows(n.x),
                           operand_last(n.x), n.eps, l->access, l->stream));
    return PL_OK;
}

/* Launches a norm in packs. sum: the output with the sum; 0: nothing is added. */
static int norm_packs(const struct launch *l, struct norm n, int sum, struct error *e)
{
    if (sum) n.sum = (struct norm_sum){l->out[sum].data, l->in[1].data};
    TRY_CUDA(cuda_norm_packs(l->out[0].data, n.stats, n.x->data, n.sum, n.w.data, n.b.data, store_of(n.x->dtype),
                             operand_rows(n.x), operand_last(n.x), n.eps, (enum norm_packs_form)l->form, l->stream));
    return PL_OK;
}

static int launch_rmsnorm(const struct launch *l, struct error *e) { return norm(l, rmsnorm_of(l, 1), e); }
static int launch_layernorm(const struct launch *l, struct error *e) { return norm(l, layernorm_of(l, 1), e); }
static int launch_add_rmsnorm(const struct launch *l, struct error *e) { return add_norm(l, rmsnorm_of(l, 2), 2, e); }
static int launch_add_layernorm(const struct launch *l, struct error *e)
{
    return add_norm(l, layernorm_of(l, 2), 3, e);
}
static int launch_rmsnorm_packs(const struct launch *l, struct error *e)
{
    return norm_packs(l, rmsnorm_of(l, 1), 0, e);
}
static int launch_layernorm_packs(const struct launch *l, struct error *e)
{
    return norm_packs(l, layernorm_of(l, 1), 0, e);
}
static int launch_add_rmsnorm_packs(const struct launch *l, struct error *e)
{
    return norm_packs(l, rmsnorm_of(l, 2), 2, e);
}
static int launch_add_layernorm_packs(const struct launch *l, struct error *e)
{
    return norm_packs(l, layernorm_of(l, 2), 3, e);
}

/* Returns the statistics, inputs from 3 on: rstd, or mean and rstd; the gradient to add follows
 * them. */
static struct norm_stats stats_of(const struct launch *l, bool centred)
{
    return centred ? (struct norm_stats){l->in[3].data, l->in[4].data, 0} : rms_stats(l, &l->in[3]);
}

static struct norm_rows rows_of(const struct launch *l, const struct operand *x)
{
    return (struct norm_rows){operand_rows(x), launch_whole(l, operand_rows(x))};
}

static int norm_bwd(const struct launch *l, bool centred, struct error *e)
{
    const struct operand *x = &l->in[1];
    TRY_CUDA(cuda_norm_bwd(l->out[0].data, l->out[1].data, centred ? l->out[2].data : NULL, l->work, l->in[0].data,
                           x->data, typed_of(&l->in[2]), optional(l, centred ? 5 : 4), stats_of(l, centred),
                           store_of(x->dtype), rows_of(l, x), operand_last(x), l->access, (enum norm_bwd_form)l->form,
                           l->stream));
    return PL_OK;
}

static int norm_packs_bwd(const struct launch *l, bool centred, struct error *e)
{
    const struct operand *x = &l->in[1];
    TRY_CUDA(cuda_norm_packs_bwd(l->out[0].data, l->out[1].data, centred ? l->out[2].data : NULL, l->work,
                                 l->in[0].data, x->data, l->in[2].data, optional(l, centred ? 5 : 4),
                                 stats_of(l, centred), store_of(x->dtype), rows_of(l, x), operand_last(x),
                                 (enum norm_packs_form)l->form, l->stream));
    return PL_OK;
}

static int launch_rmsnorm_bwd(const struct launch *l, struct error *e) { return norm_bwd(l, false, e); }
static int launch_layernorm_bwd(const struct launch *l, struct error *e) { return norm_bwd(l, true, e); }
static int launch_rmsnorm_packs_bwd(const struct launch *l, struct error *e) { return norm_packs_bwd(l, false, e); }
static int launch_layernorm_packs_bwd(const struct launch *l, struct error *e) { return norm_packs_bwd(l, true, e); }

static int launch_l2norm(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0];
    TRY_CUDA(cuda_l2norm(l->out[0].data, x->data, store_of(x->dtype), operand_rows(x), operand_last(x),
                         l->attr->rmsnorm.eps, l->access, l->stream));
    return PL_OK;
}

static int launch_l2norm_bwd(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[1];
    TRY_CUDA(cuda_l2norm_bwd(l->out[0].data, l->in[0].data, x->data, store_of(x->dtype), operand_rows(x),
                             operand_last(x), l->attr->rmsnorm.eps, l->access, l->stream));
    return PL_OK;
}

static int launch_softmax(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0];
    TRY_CUDA(cuda_softmax(l->out[0].data, x->data, store_of(x->dtype), operand_rows(x), operand_last(x), l->access,
                          l->stream));
    return PL_OK;
}

static int launch_softmax_bwd(const struct launch *l, struct error *e)
{
    const struct operand *y = &l->in[1];
    TRY_CUDA(cuda_softmax_bwd(l->out[0].data, l->in[0].data, y->data, store_of(y->dtype), operand_rows(y),
                              operand_last(y), l->access, l->stream));
    return PL_OK;
}

/* --- maps -------------------------------------------------------------------------------- */

static struct maps maps_of(const struct operand *x, int64_t G)
{
    return (struct maps){store_of(x->dtype), G, operand_rows(x) / G, operand_last(x)};
}

static int launch_batchnorm(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0];
    TRY_CUDA(cuda_batchnorm(l->out[0].data, l->out[1].data, l->out[2].data, l->work, x->data, typed_of(&l->in[1]),
                            typed_of(&l->in[2]), maps_of(x, l->out[1].dim[0]), l->attr->batchnorm.eps, l->access,
                            l->stream));
    return PL_OK;
}

static int launch_batchnorm_frozen(const struct launch *l, struct error *e)
{
    const struct channel c = {typed_of(&l->in[3]), typed_of(&l->in[4]), typed_of(&l->in[1]), typed_of(&l->in[2]), 1,
                              l->attr->batchnorm_frozen.eps};
    TRY_CUDA(cuda_batchnorm_frozen(l->out[0].data, l->in[0].data, c, maps_of(&l->in[0], 1), l->access, l->stream));
    return PL_OK;
}

static int backward(const struct launch *l, struct channel c, int64_t G, struct error *e)
{
    TRY_CUDA(cuda_batchnorm_bwd(l->out[0].data, l->out[1].data, l->out[2].data, l->work, l->in[0].data, l->in[1].data,
                                c, maps_of(&l->in[1], G), l->access, l->stream));
    return PL_OK;
}

static int launch_batchnorm_bwd(const struct launch *l, struct error *e)
{
    const struct channel c = {typed_of(&l->in[3]), typed_of(&l->in[4]), typed_of(&l->in[2]), none, 0, 0};
    return backward(l, c, l->in[3].dim[0], e);
}

static int launch_batchnorm_frozen_bwd(const struct launch *l, struct error *e)
{
    const struct channel c = {typed_of(&l->in[3]),          typed_of(&l->in[4]), typed_of(&l->in[2]), none, 1,
                              l->attr->batchnorm_frozen.eps};
    return backward(l, c, 1, e);
}

static int launch_batchnorm_update(const struct launch *l, struct error *e)
{
    TRY_CUDA(cuda_batchnorm_update(l->out[0].data, l->out[1].data, l->in[0].data, l->in[1].data, l->in[0].dim[0],
                                   l->in[0].dim[1], l->attr->batchnorm_update.count, l->attr->batchnorm_update.momentum,
                                   (double)l->attr->batchnorm_update.eps, l->stream));
    return PL_OK;
}

CUDA_KERNEL(cuda_rmsnorm_packs, .launch = launch_rmsnorm_packs);
CUDA_KERNEL(cuda_rmsnorm_packs_bwd, .launch = launch_rmsnorm_packs_bwd);
CUDA_KERNEL(cuda_layernorm_packs, .launch = launch_layernorm_packs);
CUDA_KERNEL(cuda_layernorm_packs_bwd, .launch = launch_layernorm_packs_bwd);
CUDA_KERNEL(cuda_add_rmsnorm_packs, .launch = launch_add_rmsnorm_packs);
CUDA_KERNEL(cuda_add_layernorm_packs, .launch = launch_add_layernorm_packs);
CUDA_KERNEL(cuda_rmsnorm, .launch = launch_rmsnorm);
CUDA_KERNEL(cuda_rmsnorm_bwd, .launch = launch_rmsnorm_bwd);
CUDA_KERNEL(cuda_layernorm, .launch = launch_layernorm);
CUDA_KERNEL(cuda_layernorm_bwd, .launch = launch_layernorm_bwd);
CUDA_KERNEL(cuda_add_rmsnorm, .launch = launch_add_rmsnorm);
CUDA_KERNEL(cuda_add_layernorm, .launch = launch_add_layernorm);
CUDA_KERNEL(cuda_l2norm, .launch = launch_l2norm);
CUDA_KERNEL(cuda_l2norm_bwd, .launch = launch_l2norm_bwd);
CUDA_KERNEL(cuda_softmax, .launch = launch_softmax);
CUDA_KERNEL(cuda_softmax_bwd, .launch = launch_softmax_bwd);
CUDA_KERNEL(cuda_batchnorm, .launch = launch_batchnorm);
CUDA_KERNEL(cuda_batchnorm_bwd, .launch = launch_batchnorm_bwd);
CUDA_KERNEL(cuda_batchnorm_frozen, .launch = launch_batchnorm_frozen);
CUDA_KERNEL(cuda_batchnorm_frozen_bwd, .launch = launch_batchnorm_frozen_bwd);
CUDA_KERNEL(cuda_batchnorm_update, .launch = launch_batchnorm_update);

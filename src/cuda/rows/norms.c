/*
 * norms.c: the running half of the normalisations (norms.cu, norm_packs.cu, batchnorm.cu).
 */
#include "cuda/rows/launch_norms.h"
#include "cuda/device/operands.h"

static const struct typed_ptr none = {NULL, STORE_F32};

static const void *optional(const struct launch *l, int i) { return i < l->nin ? l->in[i].data : NULL; }

/* --- rows ------------------------------------------------------------------------------ */

static int launch_rmsnorm(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0];
    TRY_CUDA(cuda_norm(l->out[0].data, (struct norm_stats){NULL, l->out[1].data}, x->data, typed_of(&l->in[1]), none,
                       store_of(x->dtype), operand_rows(x), operand_last(x), l->attr->rmsnorm.eps, l->stream));
    return PL_OK;
}

static int launch_rmsnorm_bwd(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[1];
    TRY_CUDA(cuda_norm_bwd(l->out[0].data, l->out[1].data, NULL, l->work, l->in[0].data, x->data, typed_of(&l->in[2]),
                           optional(l, 4), (struct norm_stats){NULL, l->in[3].data}, store_of(x->dtype), operand_rows(x), operand_last(x),
                           l->stream));
    return PL_OK;
}

static int launch_layernorm(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0];
    TRY_CUDA(cuda_norm(l->out[0].data, (struct norm_stats){l->out[1].data, l->out[2].data}, x->data, typed_of(&l->in[1]),
                       typed_of(&l->in[2]), store_of(x->dtype), operand_rows(x), operand_last(x), l->attr->layernorm.eps, l->stream));
    return PL_OK;
}

static int launch_layernorm_bwd(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[1];
    TRY_CUDA(cuda_norm_bwd(l->out[0].data, l->out[1].data, l->out[2].data, l->work, l->in[0].data, x->data, typed_of(&l->in[2]),
                           optional(l, 5), (struct norm_stats){l->in[3].data, l->in[4].data}, store_of(x->dtype), operand_rows(x), operand_last(x),
                           l->stream));
    return PL_OK;
}

static int launch_add_rmsnorm(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0];
    TRY_CUDA(cuda_add_norm(l->out[0].data, (struct norm_stats){NULL, l->out[1].data}, x->data,
                           (struct norm_sum){l->out[2].data, l->in[1].data}, typed_of(&l->in[2]), none, store_of(x->dtype),
                           operand_rows(x), operand_last(x), l->attr->rmsnorm.eps, l->stream));
    return PL_OK;
}

static int launch_add_layernorm(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0];
    TRY_CUDA(cuda_add_norm(l->out[0].data, (struct norm_stats){l->out[1].data, l->out[2].data}, x->data,
                           (struct norm_sum){l->out[3].data, l->in[1].data}, typed_of(&l->in[2]), typed_of(&l->in[3]),
                           store_of(x->dtype), operand_rows(x), operand_last(x), l->attr->layernorm.eps, l->stream));
    return PL_OK;
}

static int launch_l2norm(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0];
    TRY_CUDA(cuda_l2norm(l->out[0].data, x->data, store_of(x->dtype), operand_rows(x), operand_last(x), l->attr->rmsnorm.eps,
                         l->stream));
    return PL_OK;
}

static int launch_l2norm_bwd(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[1];
    TRY_CUDA(cuda_l2norm_bwd(l->out[0].data, l->in[0].data, x->data, store_of(x->dtype), operand_rows(x), operand_last(x),
                             l->attr->rmsnorm.eps, l->stream));
    return PL_OK;
}

static int launch_softmax(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0];
    TRY_CUDA(cuda_softmax(l->out[0].data, x->data, store_of(x->dtype), operand_rows(x), operand_last(x), l->stream));
    return PL_OK;
}

static int launch_softmax_bwd(const struct launch *l, struct error *e)
{
    const struct operand *y = &l->in[1];
    TRY_CUDA(cuda_softmax_bwd(l->out[0].data, l->in[0].data, y->data, store_of(y->dtype), operand_rows(y), operand_last(y),
                              l->stream));
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
                            typed_of(&l->in[2]), maps_of(x, l->out[1].dim[0]), l->attr->batchnorm.eps, l->stream));
    return PL_OK;
}

static int launch_batchnorm_frozen(const struct launch *l, struct error *e)
{
    const struct channel c = {typed_of(&l->in[3]), typed_of(&l->in[4]), typed_of(&l->in[1]), typed_of(&l->in[2]), 1,
                              l->attr->batchnorm_frozen.eps};
    TRY_CUDA(cuda_batchnorm_frozen(l->out[0].data, l->in[0].data, c, maps_of(&l->in[0], 1), l->stream));
    return PL_OK;
}

static int backward(const struct launch *l, struct channel c, int64_t G, struct error *e)
{
    TRY_CUDA(cuda_batchnorm_bwd(l->out[0].data, l->out[1].data, l->out[2].data, l->work, l->in[0].data, l->in[1].data, c,
                                maps_of(&l->in[1], G), l->stream));
    return PL_OK;
}

static int launch_batchnorm_bwd(const struct launch *l, struct error *e)
{
    const struct channel c = {typed_of(&l->in[3]), typed_of(&l->in[4]), typed_of(&l->in[2]), none, 0, 0};
    return backward(l, c, l->in[3].dim[0], e);
}

static int launch_batchnorm_frozen_bwd(const struct launch *l, struct error *e)
{
    const struct channel c = {typed_of(&l->in[3]), typed_of(&l->in[4]), typed_of(&l->in[2]), none, 1, l->attr->batchnorm_frozen.eps};
    return backward(l, c, 1, e);
}

static int launch_batchnorm_update(const struct launch *l, struct error *e)
{
    TRY_CUDA(cuda_batchnorm_update(l->out[0].data, l->out[1].data, l->in[0].data, l->in[1].data, l->in[0].dim[0], l->in[0].dim[1],
                                   l->attr->batchnorm_update.count, l->attr->batchnorm_update.momentum,
                                   (double)l->attr->batchnorm_update.eps, l->stream));
    return PL_OK;
}

const struct cuda_kernel cuda_run_norms[] = {
    {"cuda_rmsnorm", NULL, launch_rmsnorm, NULL},
    {"cuda_rmsnorm_bwd", NULL, launch_rmsnorm_bwd, NULL},
    {"cuda_layernorm", NULL, launch_layernorm, NULL},
    {"cuda_layernorm_bwd", NULL, launch_layernorm_bwd, NULL},
    {"cuda_add_rmsnorm", NULL, launch_add_rmsnorm, NULL},
    {"cuda_add_layernorm", NULL, launch_add_layernorm, NULL},
    {"cuda_l2norm", NULL, launch_l2norm, NULL},
    {"cuda_l2norm_bwd", NULL, launch_l2norm_bwd, NULL},
    {"cuda_softmax", NULL, launch_softmax, NULL},
    {"cuda_softmax_bwd", NULL, launch_softmax_bwd, NULL},
    {"cuda_batchnorm", NULL, launch_batchnorm, NULL},
    {"cuda_batchnorm_bwd", NULL, launch_batchnorm_bwd, NULL},
    {"cuda_batchnorm_frozen", NULL, launch_batchnorm_frozen, NULL},
    {"cuda_batchnorm_frozen_bwd", NULL, launch_batchnorm_frozen_bwd, NULL},
    {"cuda_batchnorm_update", NULL, launch_batchnorm_update, NULL},
    {0},
};

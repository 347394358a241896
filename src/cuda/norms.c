/*
 * norms.c: the running half of the normalisations (norms.cu).
 */
#include "cuda/host.h"

static int launch_rmsnorm(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0];
    TRY_CUDA(cuda_rmsnorm(l->out[0].data, l->out[1].data, x->data, l->in[1].data, store_of(x->dtype), operand_rows(x),
                          operand_last(x), l->attr->rmsnorm.eps, l->stream));
    return PL_OK;
}

const struct cuda_kernel cuda_run_norms[] = {
    {"cuda_rmsnorm", NULL, launch_rmsnorm, NULL},
    {0},
};

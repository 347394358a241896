/*
 * update.c: the running half of the optimizer (adamw.cu).
 */
#include "cuda/host.h"

static int launch_adamw(const struct launch *l, struct error *e)
{
    const struct adamw_rates rates = {l->attr->adamw.beta1, l->attr->adamw.beta2, l->attr->adamw.eps,
                                      l->attr->adamw.weight_decay, l->attr->adamw.lr_scale};
    void *w = has(l, 6) ? l->in[6].data : NULL;
    TRY_CUDA(cuda_adamw(l->in[0].data, l->in[2].data, l->in[3].data, w, l->in[1].data, l->in[4].data,
                        has(l, 5) ? l->in[5].data : NULL, w ? store_of(l->in[6].dtype) : STORE_F32,
                        operand_elements(&l->in[0]), rates, l->stream));
    return PL_OK;
}

const struct cuda_kernel cuda_run_update[] = {
    {"cuda_adamw", NULL, launch_adamw, NULL},
    {0},
};

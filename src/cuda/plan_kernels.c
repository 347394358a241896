/*
 * plan_kernels.c: the kernel families of the planning half (see plan_kernels.h), in order of
 * preference.
 */
#include "cuda/plan_kernels.h"

const struct kernel *const cuda_kernels[] = {
    cuda_plan_thin,      cuda_plan_filters,     cuda_plan_products, cuda_plan_conv,
    cuda_plan_attention, cuda_plan_elementwise, cuda_plan_shuffle,  cuda_plan_norms,
    cuda_plan_tokens,    cuda_plan_masks,       cuda_plan_update,   NULL,
};

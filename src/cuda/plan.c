/*
 * plan.c: the families of the planning half (see plan.h), in order of preference.
 */
#include "cuda/plan.h"

const struct kernel *const cuda_kernels[] = {
    cuda_plan_products, cuda_plan_elementwise, cuda_plan_norms, cuda_plan_update, cuda_plan_attention, NULL,
};

/*
 * none.c: the CUDA device of a build without CUDA: there is none. The planning
 * half (plan.c) is there all the same, so a plan for a card can be made here.
 */
#include "cuda/cuda.h"

const struct device_ops *cuda_device(void) { return NULL; }

int cuda_cards(void) { return 0; }

bool cuda_look(const struct device *d, struct cuda_view *out)
{
    (void)d, (void)out;
    return false;
}

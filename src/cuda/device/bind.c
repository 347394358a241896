/*
 * bind.c: finds the running half of a CUDA kernel by the planning half's name. Each family converts
 * launches into the arguments of its launchers: addresses, sizes, the lane's stream.
 */
#include <string.h>

#include "cuda/device/host.h"

static const struct cuda_kernel *const families[] = {
    cuda_run_thin, cuda_run_filters, cuda_run_products, cuda_run_conv, cuda_run_attention_few, cuda_run_attention_window, cuda_run_attention, cuda_run_elementwise, cuda_run_shuffle, cuda_run_norms, cuda_run_tokens, cuda_run_masks, cuda_run_update,
};

const struct cuda_kernel *cuda_kernel_named(const char *name)
{
    for (size_t f = 0; f < COUNT(families); f++)
        for (const struct cuda_kernel *k = families[f]; k->name; k++)
            if (!strcmp(k->name, name)) return k;
    return NULL;
}

enum store store_of(enum dtype t)
{
    CHECK(t == DT_F32 || t == DT_BF16 || t == DT_F16, "%s has no CUDA kernels", dtype_name(t));
    return t == DT_F32 ? STORE_F32 : t == DT_BF16 ? STORE_BF16 : STORE_F16;
}

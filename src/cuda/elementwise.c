/*
 * elementwise.c: the running half of what elementwise.cu does, and copies.
 */
#include "cuda/host.h"

static int launch_silu_gate(const struct launch *l, struct error *e)
{
    TRY_CUDA(cuda_silu_gate(l->out[0].data, l->in[0].data, l->in[1].data, store_of(l->out[0].dtype),
                            operand_elements(&l->out[0]), l->stream));
    return PL_OK;
}

static int launch_add(const struct launch *l, struct error *e)
{
    TRY_CUDA(cuda_add(l->out[0].data, l->in[0].data, l->in[1].data, store_of(l->out[0].dtype),
                      operand_elements(&l->out[0]), l->stream));
    return PL_OK;
}

/* One element, repeated until it is eight bytes: every dtype's size divides eight. */
static int launch_fill(const struct launch *l, struct error *e)
{
    const struct operand *y = &l->out[0];
    const uint32_t size = dtype_size(y->dtype);
    uint64_t pattern = 0;
    for (uint32_t i = 0; i < sizeof pattern / size; i++) dtype_store(&pattern, y->dtype, i, l->attr->fill.value);
    TRY_CUDA(cuda_fill(y->data, pattern, operand_elements(y) * size, l->stream));
    return PL_OK;
}

/* Between spaces or within one; the driver knows which from the addresses. */
static int launch_copy(const struct launch *l, struct error *e)
{
    const struct operand *from = &l->in[0];
    const size_t bytes = (size_t)operand_elements(from) * dtype_size(from->dtype);
    TRY_CUDA(cudaMemcpyAsync(l->out[0].data, from->data, bytes, cudaMemcpyDefault, l->stream));
    return PL_OK;
}

const struct cuda_kernel cuda_run_elementwise[] = {
    {"cuda_silu_gate", NULL, launch_silu_gate, NULL},
    {"cuda_add", NULL, launch_add, NULL},
    {"cuda_fill", NULL, launch_fill, NULL},
    {"cuda_copy", NULL, launch_copy, NULL},
    {0},
};

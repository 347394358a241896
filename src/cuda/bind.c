/*
 * bind.c: the running halves of the CUDA kernels, found by the planning half's
 * name. Each takes the launch apart into what its launcher wants: addresses,
 * sizes, the lane's stream.
 */
#include <string.h>

#include "cuda/host.h"

static bool has(const struct launch *l, int i) { return i < l->nin && l->in[i].data; }

static enum store store_of(enum dtype t)
{
    CHECK(t == DT_F32 || t == DT_BF16 || t == DT_F16, "%s has no CUDA kernels", dtype_name(t));
    return t == DT_F32 ? STORE_F32 : t == DT_BF16 ? STORE_BF16 : STORE_F16;
}

static int launch_rmsnorm(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0];
    TRY_CUDA(cuda_rmsnorm(l->out[0].data, l->out[1].data, x->data, l->in[1].data, store_of(x->dtype), operand_rows(x),
                          operand_last(x), l->attr->rmsnorm.eps, l->stream));
    return PL_OK;
}

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

static const struct cuda_kernel bindings[] = {
    {"cublaslt_linear", linear_prepare, linear_launch, linear_release},
    {"cuda_rmsnorm", NULL, launch_rmsnorm, NULL},
    {"cuda_silu_gate", NULL, launch_silu_gate, NULL},
    {"cuda_add", NULL, launch_add, NULL},
    {"cuda_fill", NULL, launch_fill, NULL},
    {"cuda_copy", NULL, launch_copy, NULL},
    {"cuda_adamw", NULL, launch_adamw, NULL},
};

const struct cuda_kernel *cuda_kernel_named(const char *name)
{
    for (size_t i = 0; i < COUNT(bindings); i++)
        if (!strcmp(bindings[i].name, name)) return &bindings[i];
    return NULL;
}

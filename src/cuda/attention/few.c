/*
 * few.c: the running half of attention with few queries or few keys: the operands and
 * workspace of an entry become a struct few_attention.
 */
#include "cuda/device/host.h"
#include "cuda/attention/launch_few.h"

static struct few_rows rows_of(const struct operand *x)
{
    return (struct few_rows){x->data, x->stride[0], x->stride[1], x->stride[2]};
}

/* q, k and v are the inputs from index `q` on; the mask is input `mask`. */
static struct few_attention few_of(const struct launch *l, int q, int mask, const struct operand *lse, int backward)
{
    const struct operand *x = &l->in[q], *y = &l->in[q + 1];
    struct few_attention a = {
        .q = rows_of(x), .k = rows_of(y), .v = rows_of(&l->in[q + 2]), .lse = lse->data, .lse_sample = lse->stride[0],
        .lse_head = lse->stride[1], .lse_token = lse->stride[2], .type = store_of(x->dtype), .B = (int)x->dim[0],
        .T = (int)x->dim[1], .S = (int)y->dim[1], .H = (int)x->dim[2], .D = (int)x->dim[3], .scale = l->attr->attention.scale,
        .cut = few_cut_of(x->dim[0], x->dim[1], y->dim[1], x->dim[2], x->dim[3], backward),
    };
    if (has(l, mask)) a.mask = l->in[mask].data, a.mask_sample = l->in[mask].stride[0], a.mask_key = l->in[mask].stride[1];
    CHECK(a.cut.total <= l->work_bytes, "%llu bytes of workspace", (unsigned long long)l->work_bytes);
    a.partial = l->work;
    a.other = (float *)((char *)l->work + a.cut.other);
    return a;
}

typedef cudaError_t few_fn(const struct few_attention *a, int backward, cudaStream_t stream);

static int forward(const struct launch *l, few_fn *kernel, struct error *e)
{
    struct few_attention a = few_of(l, 0, 3, &l->out[1], 0);
    a.o = rows_of(&l->out[0]);
    TRY_CUDA(kernel(&a, 0, l->stream));
    TRY_CUDA(cuda_attention_few_join(&a, 0, l->stream));
    return PL_OK;
}

static int backward(const struct launch *l, few_fn *kernel, struct error *e)
{
    struct few_attention a = few_of(l, 1, 6, &l->in[5], 1);
    a.dout = rows_of(&l->in[0]), a.o = rows_of(&l->in[4]);
    a.dq = rows_of(&l->out[0]), a.dk = rows_of(&l->out[1]), a.dv = rows_of(&l->out[2]);
    TRY_CUDA(kernel(&a, 1, l->stream));
    TRY_CUDA(cuda_attention_few_join(&a, 1, l->stream));
    return PL_OK;
}

static int launch_mma(const struct launch *l, struct error *e) { return forward(l, cuda_attention_few_mma, e); }
static int launch_mma_bwd(const struct launch *l, struct error *e) { return backward(l, cuda_attention_few_mma, e); }
static int launch_few(const struct launch *l, struct error *e) { return forward(l, cuda_attention_few, e); }
static int launch_few_bwd(const struct launch *l, struct error *e) { return backward(l, cuda_attention_few, e); }

CUDA_KERNEL(cuda_attention_few_mma, .launch = launch_mma);
CUDA_KERNEL(cuda_attention_few_mma_bwd, .launch = launch_mma_bwd);
CUDA_KERNEL(cuda_attention_few, .launch = launch_few);
CUDA_KERNEL(cuda_attention_few_bwd, .launch = launch_few_bwd);

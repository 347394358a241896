/*
 * tokens.c: the running half of embeddings, rotary position embedding, the KV cache and cross
 * entropy (tokens.cu, rope.cu, cache.cu).
 */
#include "cuda/rows/launch_tokens.h"
#include "cuda/device/host.h"

static int launch_embedding(const struct launch *l, struct error *e)
{
    const struct operand *table = &l->in[1];
    TRY_CUDA(cuda_embedding(l->out[0].data, l->in[0].data, table->data, operand_elements(&l->in[0]),
                            operand_last(table) * dtype_size(table->dtype), l->access, l->stream));
    return PL_OK;
}

static int launch_embedding_dw(const struct launch *l, struct error *e)
{
    const struct operand *dy = &l->in[1], *dw = &l->out[0];
    if (has(l, 2)) CHECK(l->in[2].data == dw->data, "the accumulator is updated in place");
    TRY_CUDA(cuda_embedding_dw(dw->data, l->work, l->in[0].data, dy->data, store_of(dy->dtype),
                               operand_elements(&l->in[0]), dw->dim[0], dw->dim[1],
                               (int32_t)l->attr->embedding_dw.padding - 1, has(l, 2), l->access, l->stream));
    return PL_OK;
}

struct rope_shape cuda_rope_shape(const struct launch *l)
{
    const struct operand *x = &l->in[0];
    const struct attr_rope *a = &l->attr->rope;
    struct rope_shape s = {x->dim[0], x->dim[1], x->dim[2], x->dim[3], a->scale, a->inverse ? -1.0f : 1.0f, .per = 1,
                           .interleaved = a->interleaved};
    memcpy(s.sections, a->sections, sizeof s.sections);
    if (has(l, 2)) s.positions = l->in[2].data, s.per = l->in[2].rank == 3 ? 3 : 1;
    return s;
}

static int launch_rope(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0];
    TRY_CUDA(cuda_rope(l->out[0].data, x->data, l->in[1].data, store_of(x->dtype), cuda_rope_shape(l), l->access,
                       l->stream));
    return PL_OK;
}

static int launch_cache_write(const struct launch *l, struct error *e)
{
    const struct operand *cache = &l->out[0], *x = &l->in[1];
    const int64_t rows = x->dim[0] * x->dim[1];
    CHECK(l->in[0].data == cache->data, "the cache is updated in place");
    TRY_CUDA(cuda_cache_write(cache->data, x->data, l->in[2].data, x->dim[0], cache->dim[1], x->dim[1],
                              operand_elements(x) / rows * dtype_size(x->dtype),
                              operand_elements(cache) / (cache->dim[0] * cache->dim[1]) * dtype_size(x->dtype),
                              l->access, l->stream));
    return PL_OK;
}

static int launch_xent(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0];
    TRY_CUDA(cuda_xent(l->out[0].data, l->out[1].data, l->work, x->data, l->in[1].data, l->in[2].data,
                       store_of(x->dtype), operand_rows(x), operand_last(x), l->access, l->stream));
    return PL_OK;
}

static int launch_xent_bwd(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0];
    TRY_CUDA(cuda_xent_bwd(l->out[0].data, x->data, l->in[1].data, l->in[2].data, l->in[3].data, l->in[4].data,
                           store_of(x->dtype), operand_rows(x), operand_last(x), l->access, l->stream));
    return PL_OK;
}

CUDA_KERNEL(cuda_embedding, .launch = launch_embedding);
CUDA_KERNEL(cuda_embedding_dw, .launch = launch_embedding_dw);
CUDA_KERNEL(cuda_rope, .launch = launch_rope);
CUDA_KERNEL(cuda_cache_write, .launch = launch_cache_write);
CUDA_KERNEL(cuda_xent, .launch = launch_xent);
CUDA_KERNEL(cuda_xent_bwd, .launch = launch_xent_bwd);

/*
 * cache_write.c: CACHE_WRITE: rows into a cache, each at the position of its token. The bytes are
 * moved as they are, in any dtype.
 */
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/reference/ref.h"

static bool cache_write_match(const struct query *q)
{
    return tensor_is_dense(q->in[1]) && tensor_is_dense(q->in[2]);
}

static void cache_write_run(const struct launch *l)
{
    const struct operand *x = &l->in[1];     // [B,T,...]
    const int32_t *position = l->in[2].data; // [B,T]
    const int64_t S = l->out[0].dim[1], T = x->dim[1], rows = x->dim[0] * T;
    const size_t bytes = rows ? (size_t)(operand_elements(x) / rows) * dtype_size(x->dtype) : 0;
    CHECK(l->in[0].data == l->out[0].data, "the cache is updated in place");
#pragma omp parallel for num_threads(l->threads) schedule(static) if (rows * (int64_t)bytes > 65536)
    for (int64_t r = 0; r < rows; r++) {
        const int64_t s = position[r];
        if (s >= 0 && s < S)
            memcpy((char *)l->out[0].data + (size_t)(r / T * S + s) * bytes, (const char *)x->data + (size_t)r * bytes,
                   bytes);
    }
}

static void ref_cache_write(const struct launch *l)
{
    const struct operand *x = &l->in[1];
    const int64_t S = l->out[0].dim[1], T = x->dim[1], each = operand_elements(x) / (x->dim[0] * T);
    for (int64_t i = 0; i < operand_elements(x); i++) {
        const int64_t r = i / each, s = (int64_t)ref_get(&l->in[2], r);
        if (s >= 0 && s < S) ref_put(&l->out[0], (r / T * S + s) * each + i % each, ref_get(x, i));
    }
}

REF_KERNEL(CACHE_WRITE, cache_write);
CPU_KERNEL(CACHE_WRITE, cache_write);

/*
 * dequantize.c: DEQUANTIZE: weights in NF4 (base/nf4.h) to a dense tensor. Threads take whole
 * blocks of 64 weights; each weight is computed by itself, so the result does not depend on their
 * number.
 */
#include "base/nf4.h"
#include "cpu/cpu.h"
#include "cpu/reference/ref.h"
#include "cpu/rows.h"

enum { RUN = 64 * NF4_BLOCK }; /* weights per unit of work */

static struct nf4_parts parts_of(const struct launch *l)
{
    const int nested = l->attr->dequantize.nested;
    const struct nf4_layout at = nf4_layout(operand_elements(&l->out[0]), nested);
    const uint8_t *x = l->in[0].data;
    return (struct nf4_parts){x, nested ? x + at.scales : NULL, (const float *)(const void *)(x + at.absmax),
                              nested ? (const float *)(const void *)(x + at.offset) : NULL};
}

static bool dequantize_match(const struct query *q) { return tensor_is_fast(q->out[0]); }

static void dequantize_run(const struct launch *l)
{
    const struct operand *y = &l->out[0];
    const struct nf4_parts p = parts_of(l);
    const int64_t n = operand_elements(y);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (n > 4 * RUN)
    for (int64_t at = 0; at < n; at += RUN)
        nf4_dequantize((char *)y->data + at * dtype_size(y->dtype), y->dtype, &p, at, min_i64(RUN, n - at));
}

static void ref_dequantize(const struct launch *l)
{
    const struct nf4_parts p = parts_of(l);
    const int64_t n = operand_elements(&l->out[0]);
    for (int64_t at = 0; at < n; at += NF4_BLOCK) {
        float block[NF4_BLOCK];
        nf4_dequantize(block, DT_F32, &p, at, min_i64(NF4_BLOCK, n - at));
        for (int64_t i = at; i < n && i < at + NF4_BLOCK; i++) ref_put(&l->out[0], i, (double)block[i - at]);
    }
}

REF_KERNEL(DEQUANTIZE, dequantize);
CPU_KERNEL(DEQUANTIZE, dequantize);

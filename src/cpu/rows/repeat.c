/*
 * repeat.c: REPEAT: repeats rows consecutively. Its gradient is SUM_TO.
 */
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/reference/ref.h"

static bool repeat_match(const struct query *q)
{
    return tensor_is_dense(q->in[0]) && tensor_is_dense(q->out[0]) && q->in[0]->dtype == q->out[0]->dtype;
}

static void repeat_run(const struct launch *l)
{
    const struct operand *x = &l->in[0], *y = &l->out[0];
    const int64_t rows = y->dim[0], n = rows / x->dim[0];
    const size_t bytes = (size_t)(operand_elements(x) / x->dim[0]) * dtype_size(x->dtype);
#pragma omp parallel for num_threads(l->threads) schedule(static) if ((size_t)rows * bytes > 16384)
    for (int64_t r = 0; r < rows; r++)
        memcpy((char *)y->data + (size_t)r * bytes, (const char *)x->data + (size_t)(r / n) * bytes, bytes);
}

static void ref_repeat(const struct launch *l)
{
    const int64_t each = operand_elements(&l->in[0]) / l->in[0].dim[0], n = l->out[0].dim[0] / l->in[0].dim[0];
    for (int64_t i = 0; i < operand_elements(&l->out[0]); i++)
        ref_put(&l->out[0], i, ref_get(&l->in[0], i / each / n * each + i % each));
}

CPU_KERNEL(REPEAT, repeat);
REF_KERNEL(REPEAT, repeat);

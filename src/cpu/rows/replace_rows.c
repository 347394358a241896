/*
 * replace_rows.c: REPLACE_ROWS: rows of one tensor, and rows of another where an index says so. The
 * bytes are moved as they are, in any dtype. The result may be x itself: then the rows that stay
 * are not touched.
 */
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/reference/ref.h"
#include "cpu/rows.h"

static bool replace_rows_match(const struct query *q)
{
    const struct tensor *y = query_in(q, 2);
    return tensor_is_dense(q->in[0]) && tensor_is(q->in[1], DT_I32) && (!y || tensor_is_dense(y)) &&
           tensor_is(q->out[0], q->in[0]->dtype);
}

/* N, 0 without y; and how far the rows of two samples lie apart, 0 if they share them. */
static int64_t other_rows(const struct launch *l) { return launch_has(l, 2) ? l->in[2].dim[l->in[2].rank - 2] : 0; }
static int64_t rows_each(const struct launch *l)
{
    return launch_has(l, 2) && l->in[2].rank == 3 ? l->in[2].dim[1] : 0;
}

static void replace_rows_run(const struct launch *l)
{
    const struct operand *x = &l->in[0];  // [B,T,C]
    const int32_t *index = l->in[1].data; // [B,T]
    const int64_t T = x->dim[1], rows = x->dim[0] * T, N = other_rows(l), each = rows_each(l);
    const size_t bytes = (size_t)x->dim[2] * dtype_size(x->dtype);
    const char *from = x->data, *other = N ? l->in[2].data : NULL; // [N,C] or [B,N,C]
    char *to = l->out[0].data;
#pragma omp parallel for num_threads(l->threads) schedule(static) if (rows * (int64_t)bytes > 65536)
    for (int64_t r = 0; r < rows; r++) {
        char *row = to + (size_t)r * bytes;
        if (index[r] >= 0 && index[r] < N) memcpy(row, other + (size_t)(r / T * each + index[r]) * bytes, bytes);
        else if (index[r] >= 0) memset(row, 0, bytes);
        else if (to != from) memcpy(row, from + (size_t)r * bytes, bytes);
    }
}

static void ref_replace_rows(const struct launch *l)
{
    const struct operand *x = &l->in[0];
    const int64_t T = x->dim[1], C = x->dim[2], N = other_rows(l), each = rows_each(l);
    for (int64_t i = 0; i < operand_elements(x); i++) {
        const int64_t n = (int64_t)ref_get(&l->in[1], i / C);
        ref_put(&l->out[0], i,
                n < 0   ? ref_get(x, i)
                : n < N ? ref_get(&l->in[2], (i / C / T * each + n) * C + i % C)
                        : 0);
    }
}

REF_KERNEL(REPLACE_ROWS, replace_rows);
CPU_KERNEL(REPLACE_ROWS, replace_rows);

/*
 * operand_loops.h: converts the operands of a launch into launcher arguments: loop nests
 * (loop_nest.h), dtypes, alignment.
 */
#ifndef OPERAND_LOOPS_H
#define OPERAND_LOOPS_H

#include "cuda/device/host.h"
#include "cuda/rows/launch_elementwise.h"

/* An operand's stride at a dimension of the result, counted from the last; 0 where the operand is
 * broadcast. */
static inline int64_t stride_from_last(const struct operand *x, int from_last)
{
    const int d = x->rank - 1 - from_last;
    return d >= 0 && x->dim[d] != 1 ? x->stride[d] : 0;
}

/* The loop nest over y, with a and b (NULL: none) broadcast to its shape. */
static inline struct loop_nest loop_nest_of(const struct operand *y, const struct operand *a, const struct operand *b)
{
    struct loop_nest f = {0};
    for (int i = 0; i < y->rank; i++)
        loop_nest_push(&f, y->dim[y->rank - 1 - i], y->stride[y->rank - 1 - i], a ? stride_from_last(a, i) : 0, b ? stride_from_last(b, i) : 0);
    loop_nest_end(&f);
    return f;
}

static inline enum any any_of(enum dtype t)
{
    static const enum any of[DT_COUNT] = {[DT_F64] = ANY_F64, [DT_F32] = ANY_F32, [DT_BF16] = ANY_BF16, [DT_F16] = ANY_F16,
                                          [DT_I64] = ANY_I64, [DT_I32] = ANY_I32, [DT_U8] = ANY_U8};
    return of[t];
}

#endif

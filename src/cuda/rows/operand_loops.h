/*
 * operand_loops.h: converts the operands of a launch into launcher arguments: loop nests
 * (loop_nest.h), dtypes, alignment.
 */
#pragma once

#include "cuda/device/host.h"
#include "cuda/rows/launch_elementwise.h"

static inline struct strides strides_of(const struct operand *x)
{
    return x ? (struct strides){x->rank, x->dim, x->stride} : (struct strides){-1, NULL, NULL};
}

/* Returns the loop nest over y, with a and b (NULL: none) broadcast to its shape. */
static inline struct loop_nest loop_nest_of(const struct operand *y, const struct operand *a, const struct operand *b)
{
    return loop_nest_over(strides_of(y), strides_of(a), strides_of(b));
}

static inline enum any any_of(enum dtype t)
{
    static const enum any of[DT_COUNT] =
        {[DT_F64] = ANY_F64, [DT_F32] = ANY_F32, [DT_BF16] = ANY_BF16, [DT_F16] = ANY_F16,
         [DT_I64] = ANY_I64, [DT_I32] = ANY_I32, [DT_U8] = ANY_U8};
    return of[t];
}

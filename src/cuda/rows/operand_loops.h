/*
 * operand_loops.h: converts the operands of a launch into launcher arguments: loop nests
 * (loop_nest.h), dtypes, alignment.
 */
#pragma once

#include <assert.h>

#include "cuda/device/host.h"
#include "cuda/rows/launch_elementwise.h"

static inline struct strides strides_of(const struct operand *x)
{
    const struct strides s = {x ? x->rank : -1, x ? x->dim : NULL, x ? x->stride : NULL};
    return s;
}

/* Returns the loop nest over y, with a and b (NULL: none) broadcast to its shape. */
static inline struct loop_nest loop_nest_of(const struct operand *y, const struct operand *a, const struct operand *b)
{
    return loop_nest_over(strides_of(y), strides_of(a), strides_of(b));
}

static inline enum any any_of(enum dtype t)
{
    static_assert(ANY_F64 == 0 && DT_F64 == 1 && ANY_U8 + 1 == DT_U8, "one order");
    return (enum any)(t - 1);
}

/* Computes y = ACT of x, dense and aligned, for a launch with ACT's attributes. */
int cuda_launch_act(const struct launch *l, const struct operand *y, const struct operand *x, struct error *e);

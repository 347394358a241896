/*
 * operands.h: converts the operands of a launch into typed pointers for the launchers.
 */
#ifndef CUDA_OPERANDS_H
#define CUDA_OPERANDS_H

#include "cuda/device/host.h"
#include "cuda/device/typed_ptr.h"

static inline struct typed_ptr typed_of(const struct operand *x)
{
    return (struct typed_ptr){x->data, store_of(x->dtype)};
}

/* Input i, which may be absent. */
static inline struct typed_ptr typed_in(const struct launch *l, int i)
{
    return has(l, i) ? typed_of(&l->in[i]) : (struct typed_ptr){NULL, STORE_F32};
}
static inline void *data_in(const struct launch *l, int i) { return has(l, i) ? l->in[i].data : NULL; }

#endif

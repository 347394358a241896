/*
 * typed_ptr.h: a pointer with the storage type of its elements, for operands whose type may differ
 * from the kernel's: weights of a norm, gradients of an update. A kernel branches on the type where
 * it reads; all threads take the same branch.
 */
#ifndef TYPED_PTR_H
#define TYPED_PTR_H

#include "cuda/device/launch.h"

struct typed_ptr {
    void *data; /* NULL: absent */
    enum store type;
};

#endif

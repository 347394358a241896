/*
 * typed_ptr.h: an address with the storage type of what lies there, for operands whose type
 * need not be the kernel's: weights of a norm, gradients of an update. A kernel asks for the
 * type where it reads; the branch is the same for all threads.
 */
#ifndef TYPED_PTR_H
#define TYPED_PTR_H

#include "cuda/launch.h"

struct typed_ptr {
    void *data; /* NULL: not given */
    enum store type;
};

#endif

/*
 * launch.h: the interface between C and the .cu files. A launcher is a pure function over device
 * addresses: outputs first, inputs next, sizes last, then the stream it enqueues on. It never
 * blocks and never allocates, so it can be captured.
 *
 * Included by C and by CUDA C++; it does not depend on graphs and tapes.
 */
#pragma once

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "graph/step.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The storage type of elements; the arithmetic is f32 for all of them. */
enum store { STORE_F32, STORE_BF16, STORE_F16 };

/* A pointer with the storage type of its elements, for operands whose type may differ
 * from the kernel's: weights of a norm, gradients of an update. A kernel branches on the type where
 * it reads; all threads take the same branch. */
struct typed_ptr {
    void *data; /* NULL: absent */
    enum store type;
};

/* Checks that the GPU can run this build's kernels, by loading one. */
cudaError_t cuda_probe(void);
/* Returns the lowest compute capability that this build has kernels for: 75 for 7.5. */
int cuda_min_capability(void);
/* Says whether this build's kernels were compiled only to test the build, almost without
 * optimization: by `make test` on a machine without a GPU. */
bool cuda_is_quick_build(void);

/* Fills the `bytes` bytes of y with the repeated 8 bytes of `pattern`. */
cudaError_t cuda_fill(void *y, uint64_t pattern, int64_t bytes, int access, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

/*
 * launch.h: the seam between C and the .cu files. A launcher is a pure function
 * over device addresses: outputs first, inputs next, sizes last, then the stream
 * it enqueues on. It never waits and never allocates, so it can be captured.
 *
 * Included by C and by CUDA C++; it knows nothing of graphs and tapes.
 */
#ifndef LAUNCH_H
#define LAUNCH_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "graph/step.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How elements are stored; arithmetic is f32 whatever this is. */
enum store { STORE_F32, STORE_BF16, STORE_F16 };

/* Whether the GPU can run this build's kernels: loads one and asks. */
cudaError_t cuda_probe(void);
/* The least compute capability that this build has kernels for: 75 for 7.5. */
int cuda_min_capability(void);

/* y, so many bytes, becomes the repetition of the 8 bytes of `pattern`. */
cudaError_t cuda_fill(void *y, uint64_t pattern, int64_t bytes, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

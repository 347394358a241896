/*
 * gpu.h: the two facts by which tensor-core kernels are selected: the compute capability of the GPU
 * in use, and the shared memory available to a thread block.
 */
#ifndef GPU_H
#define GPU_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* 75, 80, 86 ...; 0: unknown. */
int gpu_capability(void);
/* Maximum bytes of shared memory per block. */
size_t gpu_shared_bytes(void);
/* For tests: selects kernels as on an older GPU of this capability; 0: as on the GPU in use. */
void gpu_emulate(int capability);

#ifdef __cplusplus
}
#endif

#endif

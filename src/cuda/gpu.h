/*
 * gpu.h: what kernels on tensor cores are chosen by: the compute capability of the GPU in use, and the shared memory of a block.
 */
#ifndef GPU_H
#define GPU_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* 75, 80, 86 ...; 0: nobody knows. */
int gpu_capability(void);
/* Bytes of shared memory that a block may have. */
size_t gpu_shared_bytes(void);
/* For tests: kernels are chosen as on a lesser GPU; 0: as on this one. */
void gpu_emulate(int capability);

#ifdef __cplusplus
}
#endif

#endif

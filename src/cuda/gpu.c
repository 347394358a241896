/*
 * gpu.c: see gpu.h.
 */
#include "cuda/gpu.h"

#include <cuda_runtime_api.h>

static int emulated;

void gpu_emulate(int capability) { emulated = capability; }

static int attribute(enum cudaDeviceAttr what)
{
    int gpu = 0, value = 0;
    return cudaGetDevice(&gpu) == cudaSuccess && cudaDeviceGetAttribute(&value, what, gpu) == cudaSuccess ? value : 0;
}

int gpu_capability(void)
{
    return emulated ? emulated : 10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor);
}

/* Of 8.0, which has more, as of all others between 7.5 and 9.0. */
size_t gpu_shared_bytes(void)
{
    if (emulated) return (emulated < 80 ? 64 : 99) * 1024;
    return (size_t)attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
}

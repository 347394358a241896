/*
 * gpu.c: see gpu.h.
 */
#include "cuda/device/gpu.h"

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

/* An emulated 8.0 has the limit of the other GPUs from 8.0 up to 9.0, although the real one has
 * more. */
size_t gpu_shared_bytes(void)
{
    if (emulated) return (emulated < 80 ? 64 : 99) * 1024;
    return (size_t)attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
}

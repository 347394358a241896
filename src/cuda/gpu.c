/*
 * gpu.c: see gpu.h.
 */
#include "cuda/gpu.h"

#include <cuda_runtime_api.h>

static int like;

void gpu_act_like(int capability) { like = capability; }

static int ask(enum cudaDeviceAttr what)
{
    int gpu = 0, value = 0;
    return cudaGetDevice(&gpu) == cudaSuccess && cudaDeviceGetAttribute(&value, what, gpu) == cudaSuccess ? value : 0;
}

int gpu_capability(void)
{
    return like ? like : 10 * ask(cudaDevAttrComputeCapabilityMajor) + ask(cudaDevAttrComputeCapabilityMinor);
}

/* Of 8.0, which has more, as of all others between 7.5 and 9.0. */
size_t gpu_room(void)
{
    if (like) return (like < 80 ? 64 : 99) * 1024;
    return (size_t)ask(cudaDevAttrMaxSharedMemoryPerBlockOptin);
}

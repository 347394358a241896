/*
 * card.c: see card.h.
 */
#include "cuda/card.h"

#include <cuda_runtime_api.h>

static int like;

void card_act_like(int capability) { like = capability; }

static int ask(enum cudaDeviceAttr what)
{
    int card = 0, value = 0;
    return cudaGetDevice(&card) == cudaSuccess && cudaDeviceGetAttribute(&value, what, card) == cudaSuccess ? value : 0;
}

int card_capability(void)
{
    return like ? like : 10 * ask(cudaDevAttrComputeCapabilityMajor) + ask(cudaDevAttrComputeCapabilityMinor);
}

/* Of 8.0, which has more, as of all others between 7.5 and 9.0. */
size_t card_room(void)
{
    if (like) return (like < 80 ? 64 : 99) * 1024;
    return (size_t)ask(cudaDevAttrMaxSharedMemoryPerBlockOptin);
}

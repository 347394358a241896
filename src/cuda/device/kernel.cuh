/*
 * kernel.cuh: for a .cu file that holds kernels together with their launch: struct launch,
 * TRY_CUDA, CUDA_KERNEL (host.h) and the element types. Such a file needs no launcher declared in a
 * header.
 */
#pragma once

/* These have C++ parts of their own. */
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <type_traits>

extern "C" {
#include "cuda/device/host.h"
}
#include "cuda/rows/elements.cuh"
#include "cuda/rows/rows.cuh"

/* C++ warns of fields that are left out; all of them are zero. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

/* --- a launch as the arguments of a kernel ---------------------------------------------------- */

static inline cudaStream_t stream_of(const struct launch *l) { return (cudaStream_t)l->stream; }
/* Return the address of an output, and of an input that may be absent. */
template <typename T> static inline T *out_as(const struct launch *l, int i) { return (T *)l->out[i].data; }
template <typename T> static inline const T *in_as(const struct launch *l, int i) { return (const T *)data_in(l, i); }

/* Calls f(T(), V) with the storage type of the elements, and how many an access moves: one, or 16
 * bytes, for which the addresses `at` are aligned. */
template <typename F, typename... P> static inline cudaError_t by_access(enum store type, int access, F f, P... at)
{
    if (misaligned(access, at...)) return cudaErrorMisalignedAddress;
    return by_type(type, [&](auto zero) {
        if (access == 16) f(zero, std::integral_constant<int, 16 / sizeof(zero)>());
        else f(zero, std::integral_constant<int, 1>());
    });
}

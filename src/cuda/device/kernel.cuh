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

/* Does as by_type, for an f that returns an error. */
template <typename F> static inline cudaError_t try_by_type(enum store type, F f)
{
    cudaError_t rc = cudaSuccess;
    const cudaError_t last = by_type(type, [&](auto zero) { rc = f(zero); });
    return rc != cudaSuccess ? rc : last;
}

static_assert(ACT_KINDS == 8, "by_kind has a case for each activation");
/* Calls f with the activation function as a constant. */
template <typename F> static inline auto by_kind(int kind, F f)
{
    switch (kind) {
    case 0: return f(std::integral_constant<int, 0>());
    case 1: return f(std::integral_constant<int, 1>());
    case 2: return f(std::integral_constant<int, 2>());
    case 3: return f(std::integral_constant<int, 3>());
    case 4: return f(std::integral_constant<int, 4>());
    case 5: return f(std::integral_constant<int, 5>());
    case 6: return f(std::integral_constant<int, 6>());
    default: return f(std::integral_constant<int, 7>());
    }
}

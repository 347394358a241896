/*
 * kernel.cuh: for a .cu file that holds kernels together with their launch: struct launch,
 * TRY_CUDA, CUDA_KERNEL (host.h) and the element types. Such a file needs no launcher declared in a
 * header.
 */
#pragma once

/* These have C++ parts of their own. */
#include <cublasLt.h>
#include <cuda_runtime_api.h>

extern "C" {
#include "cuda/device/host.h"
}
#include "cuda/rows/elements.cuh"
#include "cuda/rows/rows.cuh"

/* C++ warns of fields that are left out; all of them are zero. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

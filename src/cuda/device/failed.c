/*
 * failed.c: errors of CUDA and cuBLASLt as messages.
 */
#include "cuda/device/host.h"

int cuda_failed(struct error *e, cudaError_t rc, const char *call)
{
    cudaGetLastError();
    return error_set(e, PL_FAIL, "CUDA: %s: %s in %.200s", cudaGetErrorName(rc), cudaGetErrorString(rc), call);
}

int blas_failed(struct error *e, cublasStatus_t rc, const char *call)
{
    return error_set(e, PL_FAIL, "cuBLASLt: %s: %s in %.200s", cublasLtGetStatusName(rc), cublasLtGetStatusString(rc),
                     call);
}

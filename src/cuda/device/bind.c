/*
 * bind.c: the running halves of all kernels, in the order of kernels.def, and errors of CUDA as
 * messages. A row without a running half does not link.
 */
#include "cuda/device/host.h"

#define KERNEL(OP, NAME, ...) {#NAME, &run_##NAME},
static const struct {
    const char *name;
    const struct cuda_kernel *kernel;
} rows[] = {
#include "cuda/kernels.def"
};
#undef KERNEL

/* Returns the running half of a kernel: the program and the plug-in are built from the same rows
 * (cuda.h). */
const struct cuda_kernel *cuda_kernel_of(const struct kernel *k)
{
    if (k->run) return &cuda_host_kernel;
    CHECK(k->row >= 0 && (size_t)k->row < COUNT(rows) && !strcmp(rows[k->row].name, k->name),
          "kernel %s has no running half", k->name);
    return rows[k->row].kernel;
}

enum store store_of(enum dtype t)
{
    CHECK(t == DT_F32 || t == DT_BF16 || t == DT_F16, "%s has no CUDA kernels", dtype_name(t));
    return t == DT_F32 ? STORE_F32 : t == DT_BF16 ? STORE_BF16 : STORE_F16;
}

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

/*
 * launch_gemm.h: the launcher of gemm_generic.cu (see launch.h).
 */
#ifndef LAUNCH_GEMM_H
#define LAUNCH_GEMM_H

#include "cuda/device/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Element (i,j) of batch n is at n batch + i row + j column. */
struct strided {
    enum store type;
    int64_t row, column, batch;
};

struct generic_gemm {
    int64_t M, N, K, batches;
    struct strided a, b, c;
    enum store bias;
};
/* c [M,N] = a [M,K] b [K,N] + bias [N] + from, of any dtypes and strides; bias and from may be
 * NULL. from has c's layout and may be c. */
cudaError_t cuda_gemm_generic(void *c, const void *a, const void *b, const void *bias, const void *from,
                              const struct generic_gemm *p, cudaStream_t stream);

/* The address of a 1 in the GPU's memory. */
cudaError_t cuda_gemm_one(const float **one);

#ifdef __cplusplus
}
#endif

#endif

/*
 * launch_products.h: the launchers of gemm_generic.cu and thin.cu (see launch.h).
 */
#pragma once

#include "cuda/device/launch.h"
#include "cuda/products/thin.h"

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
/* Computes c [M,N] = a [M,K] b [K,N] + bias [N] + from, of any dtypes and strides; bias and from
 * may be NULL. from has c's layout and may be c. */
cudaError_t cuda_gemm_generic(void *c, const void *a, const void *b, const void *bias, const void *from,
                              const struct generic_gemm *p, cudaStream_t stream);

/* Numbers in e4m3 with scales: a [M,K] with one for each row and block of K / blocks terms,
 * [blocks,M], and b [N,K] likewise. */
struct scaled_gemm {
    int64_t M, N, K, blocks;
    const uint8_t *a, *b;
    const float *as, *bs;
};
/* Computes c [M,N] = a b^T + bias [N] + from by a slow kernel, for any shape; bias.data and
 * from.data may be NULL. from has c's layout and dtype, and may be c. */
cudaError_t cuda_gemm_scaled(struct typed_ptr c, const struct scaled_gemm *p, struct typed_ptr bias,
                             struct typed_ptr from, cudaStream_t stream);
/* Computes c [M,N] = rows [M] columns [N] product [M,N] + bias [N] + from, rounded once. */
cudaError_t cuda_scale_product(struct typed_ptr c, const float *product, const float *rows, const float *columns,
                               struct typed_ptr bias, struct typed_ptr from, int64_t M, int64_t N,
                               cudaStream_t stream);

/* Finds the address of a 1 in the GPU's memory. */
cudaError_t cuda_gemm_one(const float **one);

/* Writes the operand that t.mode selects as the result. x is at a multiple of 16 bytes. partial,
 * for THIN_ACROSS: batches x blocks x m x K floats. z, if t.gelu and the mode is THIN_UP: the
 * argument of the GELU, of x's type and alignment; it may alias x. */
cudaError_t cuda_thin(struct typed_ptr s, struct typed_ptr x, struct typed_ptr y, const void *z, float *partial,
                      struct thin t, enum thin_form form, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

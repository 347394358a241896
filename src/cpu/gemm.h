/*
 * gemm.h: matrix products, C = A B (+ C) (+ bias), on f32, bf16 or f16 storage.
 */
#ifndef CPU_GEMM_H
#define CPU_GEMM_H

#include "base/dtype.h"

/* Element (i,j) lies i * row + j * column elements after data. A transpose is an
 * exchange of the two strides. */
struct matrix {
    void *data;
    enum dtype dtype;
    int64_t row, column;
};

struct gemm {
    int64_t M, N, K;
    struct matrix a; /* [M,K] */
    struct matrix b; /* [K,N] */
    struct matrix c; /* [M,N], column = 1 */
    const void *bias; /* [N], NULL: none */
    enum dtype bias_dtype;
    bool add;        /* C += instead of C = */
};

/* Bytes of `work` for a product whose result is stored as c. Depends on the shape and
 * the thread count alone, and stops growing: a few MiB per thread at most. */
uint64_t gemm_workspace(int64_t M, int64_t N, int64_t K, enum dtype c, int threads);

/* Sums in f32, rounds once on store. The same bits for any number of threads. C must
 * not overlap A or B; work is 64-aligned. */
void gemm_run(const struct gemm *g, void *work, uint64_t work_bytes, int threads);

#endif

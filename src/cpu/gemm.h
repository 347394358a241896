/*
 * gemm.h: matrix products, C = A B (+ C) (+ bias), on f32, bf16 or f16 storage.
 */
#ifndef CPU_GEMM_H
#define CPU_GEMM_H

#include "base/dtype.h"

struct gather; /* pack.h */

/* Element (i,j) lies i * row + j * column elements after data. A transpose is an
 * exchange of the two strides. */
struct matrix {
    void *data;
    enum dtype dtype;
    int64_t row, column;
    /* Not NULL: A's or B's elements come from here instead of data. The gatherer's rows are
     * the matrix's when column is 1, its columns when row is 1. */
    const struct gather *gather;
};

/* Where C's rows go that do not lie at even distances. The first member of what knows. */
struct scatter {
    /* Stores n finished elements of row i, from column j on. */
    void (*store)(const struct scatter *s, int64_t i, int64_t j, int64_t n, const float *sum);
};

/* What is done with C's elements once they are finished, while they are in cache. The first
 * member of what knows. */
struct epilogue {
    /* Takes rows i.. and columns j.., m and n of them. Whoever finished them calls it, once for each. */
    void (*take)(const struct epilogue *e, int64_t i, int64_t m, int64_t j, int64_t n);
};

struct gemm {
    int64_t M, N, K;
    struct matrix a; /* [M,K] */
    struct matrix b; /* [K,N] */
    struct matrix c; /* [M,N], column = 1 */
    const void *bias; /* [N], NULL: none */
    enum dtype bias_dtype;
    bool add;        /* C += instead of C = */
    const struct scatter *scatter; /* not NULL: takes C instead of c; no add */
    const struct epilogue *epilogue; /* not NULL: takes what has been stored; no scatter */
};

/* Bytes of `work` for a product whose result is stored as c (DT_NONE: scattered). Depends on the shape and
 * the thread count alone, and stops growing: a few MiB per thread at most. */
uint64_t gemm_workspace(int64_t M, int64_t N, int64_t K, enum dtype c, int threads);

/* Sums in f32, rounds once on store. The same bits for any number of threads. C must
 * not overlap A or B; work is 64-aligned. */
void gemm_run(const struct gemm *g, void *work, uint64_t work_bytes, int threads);

#endif

/*
 * gemm.h: matrix products, C = A B (+ C) (+ bias), on f32, bf16 or f16 storage.
 */
#pragma once

#include "base/dtype.h"

struct gather; /* pack.h */

/* Element (i,j) is at data + i * row + j * column elements. A transpose exchanges the two
 * strides. */
struct matrix {
    void *data;
    enum dtype dtype;
    int64_t row, column;
    /* Not NULL: the elements of A or B are gathered by this instead of read from data. The
     * gatherer's rows are the matrix's rows when column is 1, its columns when row is 1. */
    const struct gather *gather;
};

/* Stores the rows of C if they are not at equal distances. Embed it as the first member of the
 * struct that implements it. */
struct scatter {
    /* Stores n finished elements of row i, from column j on. */
    void (*store)(const struct scatter *s, int64_t i, int64_t j, int64_t n, const float *sum);
};

/* Applied to finished elements of C while they are in cache. Embed it as the first member of the
 * struct that implements it. */
struct epilogue {
    /* Called once for each block of m rows from i and n columns from j, by the thread that finished
     * it. */
    void (*apply)(const struct epilogue *e, int64_t i, int64_t m, int64_t j, int64_t n);
};

struct gemm {
    int64_t M, N, K;
    int64_t rows;    /* of the whole product, of which this one computes M; 0: M */
    int64_t depth;   /* the terms of the whole sums, of which these have the first K; 0: K */
    struct matrix a; /* [M,K] */
    struct matrix b; /* [K,N] */
    struct matrix c; /* [M,N], column = 1 */
    const void *bias; /* [N], NULL: none */
    enum dtype bias_dtype;
    bool add;        /* C += instead of C = */
    const struct scatter *scatter; /* not NULL: stores C instead of c; excludes add */
    const struct epilogue *epilogue; /* not NULL: called on stored elements; excludes scatter */
};

/* Returns the bytes of `work` for a product with a result of dtype c (DT_NONE: scattered). They
 * depend only on the shape and the thread count, and are bounded: a few MiB per thread. */
uint64_t gemm_workspace(int64_t M, int64_t N, int64_t K, enum dtype c, int threads);

/* Sums are f32, rounded once on store. The result is bit-identical for any number of threads, and a
 * row of it whichever of the whole's rows are computed. C must not overlap A or B; work is 64-byte
 * aligned. */
void gemm_run(const struct gemm *g, void *work, uint64_t work_bytes, int threads);

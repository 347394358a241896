/*
 * gemm.h: one matrix product on the GPU, batched or not, as products.c and conv.c ask for it.
 *
 *     c [M,N]  =  a [M,K] b [K,N]  (+ bias [N] in every row)  (+ c, or what lies elsewhere as c does)
 *
 * A transpose is a pair of strides and nothing else: whoever wants a^T says where element (i,k)
 * of it lies. The library's own notions (column-major, leading dimensions, transposed
 * operands) exist in gemm.c alone.
 */
#ifndef GEMM_H
#define GEMM_H

#include "cuda/host.h"

/* Element (i,j) of batch n lies at n batch + i row + j column, counted in elements. */
struct view {
    enum dtype dtype;
    int64_t row, column, batch;
    uint32_t align; /* a power of two that divides all its batches' addresses */
};

struct gemm_shape {
    int64_t M, N, K, batches;
    struct view a, b, c;
    bool bias;
    enum dtype bias_dtype;
    uint32_t bias_align;
    uint32_t from_align; /* of what is added from elsewhere; 0: there is nothing */
};

struct gemm {
    struct gemm_shape shape;
    bool library;               /* else our own kernel makes it (gemm_generic.cu) */
    cublasLtHandle_t blas;      /* the device's */
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
};

/* Where a product's operands lie at one launch. bias is NULL where the shape has none. What lies at
 * `from`, as c does, is added in f32 and rounded once: c itself, or something else, where the
 * shape says so. NULL: nothing is added. */
struct gemm_at {
    void *c;
    const void *a, *b, *bias, *from;
};

/* Chooses the algorithm, within so many bytes of workspace. p must be zero; gemm_end frees
 * what it holds, after a failure too. */
int gemm_begin(struct gemm *p, const struct cuda_state *s, const struct gemm_shape *shape, uint64_t workspace,
                  struct error *e);
int gemm_run(const struct gemm *p, const struct gemm_at *at, void *work, uint64_t bytes, cudaStream_t stream,
                struct error *e);
void gemm_end(struct gemm *p);

/* The largest power of two, up to 256, that divides a number of bytes; of 0: 256. */
uint32_t gemm_align(uint64_t bytes);
/* The same of the operand's address in every iteration. slot: i of in[i], MAX_IN + o of out[o]. */
uint32_t gemm_align_operand(const struct entry *entry, int slot);

#endif
